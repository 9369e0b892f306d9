//! Defines [`FirstRequests`]: the queue of IKE_SA_INIT requests, which ask for a new IKE SA.
//!
//! Anyone can forge such a request, with any sender address. A flood from other addresses must not
//! displace the request of a gateway. So the requests of each sender address wait separately, and
//! the IKE thread takes one request from each address in turn.
//!
//! Limits: [`REQUESTS_MAX`] requests in total, [`REQUESTS_OF_ADDRESS_MAX`] of one address,
//! [`FIRST_REQUEST_BYTES_MAX`] for each request. If the queue is full, it accepts only requests
//! from addresses that have no waiting request. To make room, the queue drops the newest request of
//! the address with the most requests.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use tacit_ipsec::esp::DropReason;
use tacit_ipsec::ike::FIRST_REQUEST_BYTES_MAX;

use crate::packet::IkeDatagram;

/// The largest number of requests that wait.
pub(super) const REQUESTS_MAX: usize = 1024;
/// The largest number of requests that wait and have the same sender address.
pub(super) const REQUESTS_OF_ADDRESS_MAX: usize = 16;

/// The queue. Senders repeat requests that are dropped.
#[derive(Debug, Default)]
pub(super) struct FirstRequests {
    /// The waiting requests. No address has an empty queue.
    of_address: BTreeMap<IpAddr, VecDeque<IkeDatagram>>,
    /// The addresses, in the order in which their requests are taken.
    turns: VecDeque<IpAddr>,
    count: usize,
}

impl FirstRequests {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends a request. The error is the reason why this request or another one was dropped.
    pub(super) fn push(&mut self, request: IkeDatagram) -> Result<(), DropReason> {
        if request.message.len() > FIRST_REQUEST_BYTES_MAX {
            return Err(DropReason::Malformed);
        }
        let from = request.from.ip();
        let waiting = self.of_address.get(&from).map_or(0, VecDeque::len);
        if waiting >= REQUESTS_OF_ADDRESS_MAX {
            return Err(DropReason::Queue);
        }
        let is_full = self.count >= REQUESTS_MAX;
        if is_full && (waiting > 0 || !self.drop_of_longest()) {
            return Err(DropReason::Queue);
        }
        if waiting == 0 {
            self.turns.push_back(from);
        }
        self.of_address.entry(from).or_default().push_back(request);
        self.count += 1;
        if is_full { Err(DropReason::Queue) } else { Ok(()) }
    }

    /// Drops the newest request of the address with the most requests. Returns `false` if no
    /// address has more than one.
    fn drop_of_longest(&mut self) -> bool {
        let longest = self.of_address.values_mut().max_by_key(|queue| queue.len());
        let Some(longest) = longest.filter(|queue| queue.len() > 1) else { return false };
        longest.pop_back();
        self.count -= 1;
        true
    }

    /// Takes the next request: the addresses take turns.
    pub(super) fn pop(&mut self) -> Option<IkeDatagram> {
        let from = self.turns.pop_front()?;
        let queue = self.of_address.get_mut(&from)?;
        let request = queue.pop_front();
        if queue.is_empty() {
            self.of_address.remove(&from);
        } else {
            self.turns.push_back(from);
        }
        self.count -= 1;
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(address: u32, port: u16) -> IkeDatagram {
        let from = (IpAddr::V4(address.into()), port).into();
        IkeDatagram { from, message: vec![1; 100] }
    }

    fn ports(queue: &mut FirstRequests) -> Vec<(IpAddr, u16)> {
        std::iter::from_fn(|| queue.pop()).map(|one| (one.from.ip(), one.from.port())).collect()
    }

    fn of(address: u32, port: u16) -> (IpAddr, u16) {
        (IpAddr::V4(address.into()), port)
    }

    #[test]
    fn addresses_take_turns_and_each_keeps_its_order() {
        let mut queue = FirstRequests::default();
        for (address, port) in [(1, 1), (1, 2), (1, 3), (2, 4), (3, 5), (2, 6)] {
            queue.push(request(address, port)).unwrap();
        }
        let expected = [of(1, 1), of(2, 4), of(3, 5), of(1, 2), of(2, 6), of(1, 3)];
        assert_eq!(ports(&mut queue), expected);
        assert!(queue.is_empty());
    }

    #[test]
    fn an_address_cannot_take_the_room_of_another() {
        let mut queue = FirstRequests::default();
        let taken = (0..1000).filter(|port| queue.push(request(1, *port)).is_ok()).count();
        assert_eq!(taken, REQUESTS_OF_ADDRESS_MAX);
        assert_eq!(queue.push(request(2, 7)), Ok(()));
        assert_eq!(ports(&mut queue)[1], of(2, 7));
    }

    #[test]
    fn a_full_queue_has_room_for_an_address_without_a_request() {
        let mut queue = FirstRequests::default();
        for address in 0..200 {
            for port in 0..20 {
                let _ = queue.push(request(address, port));
            }
        }
        assert_eq!(queue.count, REQUESTS_MAX);
        // A place was taken from another address, so one request was dropped.
        assert_eq!(queue.push(request(1000, 7)), Err(DropReason::Queue));
        assert_eq!(queue.count, REQUESTS_MAX);
        let all = ports(&mut queue);
        assert_eq!(all.len(), REQUESTS_MAX);
        assert!(all.contains(&of(1000, 7)));
        assert!((0..200).all(|address| all.contains(&of(address, 0))));
        assert!(queue.of_address.is_empty() && queue.turns.is_empty());
    }

    #[test]
    fn a_request_of_each_of_too_many_addresses_is_limited_too() {
        let mut queue = FirstRequests::default();
        let taken = (0..5000).filter(|address| queue.push(request(*address, 1)).is_ok()).count();
        assert_eq!(taken, REQUESTS_MAX);
        assert_eq!(queue.push(request(9000, 1)), Err(DropReason::Queue));
        assert_eq!(ports(&mut queue).len(), REQUESTS_MAX);
    }

    #[test]
    fn a_request_that_is_too_long_is_dropped() {
        let mut queue = FirstRequests::default();
        let mut long = request(1, 1);
        long.message.resize(FIRST_REQUEST_BYTES_MAX + 1, 0);
        assert_eq!(queue.push(long), Err(DropReason::Malformed));
        assert!(queue.is_empty());
    }
}
