//! Defines [`Inputs`]: the queues of the IKE thread.
//!
//! ```text
//! commands of the agent ──────────────────────┐
//! reports of the packet worker ───────────────┤
//! messages of known IKE SAs ──────────────────┼─> the thread, in this order
//! first requests from addresses of peers ─────┤
//! first requests from other addresses ────────┘
//! all other datagrams at the IKE port ─> the packet worker drops and counts them
//! ```
//!
//! A *first request* is an IKE_SA_INIT request, which asks for a new IKE SA.
//!
//! Any host can send datagrams to the IKE port (UDP 4500). So each kind of input has its own queue.
//! Thus datagrams of unknown senders cannot displace commands, reports, or the messages and
//! requests of peers.
//!
//! Limits: the queues hold [`ORDERS_MAX`] commands, [`REPORTS_MAX`] reports, and [`MESSAGES_MAX`]
//! messages of known IKE SAs with [`MESSAGES_BYTES_MAX`] bytes. [`FirstRequests`] has its own
//! limits.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tacit_ipsec::esp::DropReason;
use tacit_ipsec::ike::IkeRoute;

use super::Order;
use super::first_requests::FirstRequests;
use crate::packet::{IkeDatagram, PacketEvent, PacketEvents};

/// The largest number of commands that wait. At the limit, the agent waits before it sends another
/// command.
const ORDERS_MAX: usize = 4096;
/// The largest number of reports that wait; the worker repeats those that are lost.
const REPORTS_MAX: usize = 4096;
/// The largest number of messages of known IKE SAs; peers repeat those that are lost.
const MESSAGES_MAX: usize = 1024;
/// The largest length of all messages of known IKE SAs together.
const MESSAGES_BYTES_MAX: usize = 1 << 20;
/// How many inputs of a kind the thread takes at once, before it looks at its timers.
const TAKEN_MAX: usize = 64;

/// What the thread handles next.
pub(super) enum Input {
    Order(Order),
    Packet(PacketEvent),
}

/// The queues.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    queues: Mutex<Queues>,
    /// Notified when a queue is no longer empty.
    filled: Condvar,
    /// Notified when orders have room, or when the thread has ended.
    has_room: Condvar,
}

#[derive(Default)]
struct Queues {
    orders: VecDeque<Order>,
    reports: VecDeque<PacketEvent>,
    messages: MessageQueue,
    /// Requests from the addresses of peers.
    first_requests: FirstRequests,
    /// Requests from other addresses. A peer that has a name may have got another address.
    other_requests: FirstRequests,
    /// The addresses of peers.
    peers: HashSet<IpAddr>,
    /// The SPIs of this side's IKE SAs.
    spis: HashSet<u64>,
    /// Whether the thread has ended, so that nothing is handled any more.
    has_ended: bool,
}

#[derive(Default)]
struct MessageQueue {
    messages: VecDeque<IkeDatagram>,
    bytes: usize,
}

impl Inputs {
    /// Gives an order to the thread. Waits if too many wait. Returns `false` if the thread has
    /// ended.
    pub(super) fn order(&self, order: Order) -> bool {
        let is_full = |queues: &mut Queues| !queues.has_ended && queues.orders.len() >= ORDERS_MAX;
        let queues = self.has_room.wait_while(self.queues(), is_full);
        let mut queues = queues.unwrap_or_else(PoisonError::into_inner);
        if queues.has_ended {
            return false;
        }
        queues.orders.push_back(order);
        self.filled.notify_one();
        true
    }

    /// Gives an order to the thread, unless too many wait. Returns whether it did.
    pub(super) fn offer(&self, order: Order) -> bool {
        let mut queues = self.queues();
        let is_taken = !queues.has_ended && queues.orders.len() < ORDERS_MAX;
        if is_taken {
            queues.orders.push_back(order);
            self.filled.notify_one();
        }
        is_taken
    }

    /// Takes what waits, orders first. Waits at most this long for the first input.
    pub(super) fn take(&self, wait: Duration) -> Vec<Input> {
        let is_empty = |queues: &mut Queues| queues.is_empty();
        let queues = self.filled.wait_timeout_while(self.queues(), wait, is_empty);
        let (mut queues, _) = queues.unwrap_or_else(PoisonError::into_inner);
        let mut taken: Vec<Input> = take_some(&mut queues.orders).map(Input::Order).collect();
        taken.extend(take_some(&mut queues.reports).map(Input::Packet));
        let queues = &mut *queues;
        let known = take_some(&mut queues.messages.messages);
        let known = known.inspect(|one| queues.messages.bytes -= one.message.len());
        let of_peers = std::iter::from_fn(|| queues.first_requests.pop());
        let of_others = std::iter::from_fn(|| queues.other_requests.pop());
        let first = of_peers.chain(of_others).take(TAKEN_MAX);
        taken.extend(known.chain(first).map(|one| Input::Packet(PacketEvent::Ike(one))));
        self.has_room.notify_all();
        taken
    }

    /// Accepts messages with these SPIs of this side, and no longer those with others.
    pub(super) fn replace_spis(&self, gone: &[u64], new: &[u64]) {
        let mut queues = self.queues();
        gone.iter().for_each(|spi| {
            queues.spis.remove(spi);
        });
        queues.spis.extend(new);
    }

    /// Requests from these addresses come before those from others.
    pub(super) fn replace_peers(&self, peers: HashSet<IpAddr>) {
        self.queues().peers = peers;
    }

    /// The thread has ended: no order waits for it any more.
    pub(super) fn end(&self) {
        self.queues().has_ended = true;
        self.has_room.notify_all();
    }

    fn take_event(&self, event: PacketEvent) -> Result<(), DropReason> {
        let mut queues = self.queues();
        if queues.has_ended {
            return Err(DropReason::Queue);
        }
        // The thread waits only while all queues are empty.
        let may_wait = queues.is_empty();
        let result = queues.push(event);
        if may_wait {
            self.filled.notify_one();
        }
        result
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PacketEvents for Arc<Inputs> {
    fn take(&mut self, event: PacketEvent) -> Result<(), DropReason> {
        self.take_event(event)
    }
}

impl Queues {
    fn push(&mut self, event: PacketEvent) -> Result<(), DropReason> {
        match event {
            PacketEvent::Ike(datagram) => match IkeRoute::of(&datagram.message) {
                None => Err(DropReason::Malformed),
                Some(IkeRoute::First) if self.peers.contains(&datagram.from.ip()) => {
                    self.first_requests.push(datagram)
                }
                Some(IkeRoute::First) => self.other_requests.push(datagram),
                Some(IkeRoute::Sa(spi)) if self.spis.contains(&spi) => self.messages.push(datagram),
                Some(IkeRoute::Sa(_)) => Err(DropReason::UnknownSpi),
            },
            _ if self.reports.len() >= REPORTS_MAX => Err(DropReason::Queue),
            report => {
                self.reports.push_back(report);
                Ok(())
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.orders.is_empty()
            && self.reports.is_empty()
            && self.messages.messages.is_empty()
            && self.first_requests.is_empty()
            && self.other_requests.is_empty()
    }
}

impl std::fmt::Debug for Queues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queues").finish_non_exhaustive()
    }
}

impl MessageQueue {
    fn push(&mut self, datagram: IkeDatagram) -> Result<(), DropReason> {
        let bytes = self.bytes + datagram.message.len();
        if self.messages.len() >= MESSAGES_MAX || bytes > MESSAGES_BYTES_MAX {
            return Err(DropReason::Queue);
        }
        self.bytes = bytes;
        self.messages.push_back(datagram);
        Ok(())
    }
}

fn take_some<T>(queue: &mut VecDeque<T>) -> impl Iterator<Item = T> {
    let count = queue.len().min(TAKEN_MAX);
    queue.drain(..count)
}

#[cfg(test)]
mod tests {
    use super::super::first_requests::REQUESTS_MAX;
    use super::*;

    /// A message with the own SPI 7 or 8, or a first request.
    fn message(own: u64) -> IkeDatagram {
        let (exchange, flags) = if own == 0 { (34, 8) } else { (37, 8) };
        let mut message = [5_u64.to_be_bytes(), own.to_be_bytes()].concat();
        message.extend([0, 0x20, exchange, flags, 0, 0, 0, 0, 0, 0, 0, 28]);
        IkeDatagram { from: "192.0.2.1:4500".parse().unwrap(), message }
    }

    fn take_message(inputs: &Inputs, own: u64) -> Result<(), DropReason> {
        inputs.take_event(PacketEvent::Ike(message(own)))
    }

    fn words(inputs: &Inputs) -> Vec<String> {
        let word = |input| match input {
            Input::Order(Order::RemoveRun(run)) => format!("order {run}"),
            Input::Order(_) => "another order".to_owned(),
            Input::Packet(PacketEvent::Ike(datagram)) if datagram == message(0) => "first".into(),
            Input::Packet(PacketEvent::Ike(IkeDatagram { message: bytes, .. }))
                if bytes == message(0).message =>
            {
                "another first".to_owned()
            }
            Input::Packet(PacketEvent::Ike(_)) => "known".to_owned(),
            Input::Packet(_) => "report".to_owned(),
        };
        inputs.take(Duration::ZERO).into_iter().map(word).collect()
    }

    #[test]
    fn a_flood_of_strangers_displaces_no_order_no_report_and_no_message_of_a_peer() {
        let inputs = Inputs::default();
        inputs.replace_spis(&[], &[7]);
        let mut lost = 0;
        for number in 0..10 * REQUESTS_MAX {
            let mut datagram = message(0);
            let address = u32::try_from(number % 1000).unwrap();
            datagram.from.set_ip(IpAddr::V4(address.into()));
            match inputs.take_event(PacketEvent::Ike(datagram)) {
                Ok(()) => {}
                Err(reason) => {
                    assert_eq!(reason, DropReason::Queue);
                    lost += 1;
                }
            }
        }
        assert_eq!(lost, 9 * REQUESTS_MAX);
        assert_eq!(take_message(&inputs, 7), Ok(()));
        let spi = tacit_ipsec::EspSpi::new(256).unwrap();
        assert_eq!(inputs.take_event(PacketEvent::RekeyDue(spi)), Ok(()));
        assert!(inputs.order(Order::RemoveRun(1)));
        let mut taken = words(&inputs);
        assert_eq!(taken[..3], ["order 1", "report", "known"]);
        assert_eq!(taken.len(), 3 + TAKEN_MAX);
        while !taken.is_empty() {
            taken = words(&inputs);
        }
        assert_eq!(take_message(&inputs, 0), Ok(()), "there is room again");
    }

    #[test]
    fn requests_of_peers_come_first() {
        let inputs = Inputs::default();
        let request = |address: &str| {
            let mut datagram = message(0);
            datagram.from.set_ip(address.parse().unwrap());
            inputs.take_event(PacketEvent::Ike(datagram))
        };
        inputs.replace_peers(["192.0.2.1".parse().unwrap()].into());
        for number in 0..REQUESTS_MAX {
            request(&format!("198.51.{}.{}", number / 256, number % 256)).unwrap();
        }
        assert_eq!(request("203.0.113.1"), Err(DropReason::Queue));
        assert_eq!(request("192.0.2.1"), Ok(()));
        assert_eq!(words(&inputs)[..2], ["first", "another first"]);
    }

    #[test]
    fn messages_that_belong_nowhere_are_dropped_with_their_reason() {
        let inputs = Inputs::default();
        inputs.replace_spis(&[], &[7]);
        assert_eq!(take_message(&inputs, 8), Err(DropReason::UnknownSpi));
        inputs.replace_spis(&[7], &[8]);
        assert_eq!(take_message(&inputs, 8), Ok(()));
        assert_eq!(take_message(&inputs, 7), Err(DropReason::UnknownSpi));
        let mut datagram = message(8);
        datagram.message.push(0);
        let result = inputs.take_event(PacketEvent::Ike(datagram));
        assert_eq!(result, Err(DropReason::Malformed), "the length in the header is another");
        assert_eq!(words(&inputs), ["known"]);
    }

    #[test]
    fn long_messages_fill_a_queue_too() {
        let inputs = Inputs::default();
        inputs.replace_spis(&[], &[7]);
        let long = || {
            let mut datagram = message(7);
            let bytes = 60_000_usize;
            datagram.message.resize(bytes, 0);
            datagram.message[24..28].copy_from_slice(&60_000_u32.to_be_bytes());
            inputs.take_event(PacketEvent::Ike(datagram))
        };
        let taken = (0..MESSAGES_MAX).take_while(|_| long().is_ok()).count();
        assert_eq!(taken, MESSAGES_BYTES_MAX / 60_000);
        assert_eq!(words(&inputs).len(), taken);
        assert_eq!(long(), Ok(()));
    }

    #[test]
    fn no_order_waits_for_a_thread_that_has_ended() {
        let inputs = Arc::new(Inputs::default());
        for run in 0..ORDERS_MAX as u64 {
            assert!(inputs.order(Order::RemoveRun(run)));
        }
        let waiting = Arc::clone(&inputs);
        let waiting = std::thread::spawn(move || waiting.order(Order::RemoveRun(0)));
        inputs.end();
        assert!(!waiting.join().unwrap());
        assert!(!inputs.order(Order::RemoveRun(0)));
        assert_eq!(take_message(&inputs, 0), Err(DropReason::Queue));
    }
}
