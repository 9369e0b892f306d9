//! Stores the ends of sockets that the kernel reports early: before the helper reports the start of
//! their connections. Without them, such a connection would stay in the table after its end.
//!
//! The agent knows the cookie of a socket that it gives itself. The server of a link passes a
//! socket to the helper at the same time as its cookie to the agent. So while a link may pass
//! sockets, each socket of the network namespace that is destroyed may be one of them.
//!
//! Limit: at most [`UNKNOWN_MAX`] ends of sockets whose cookie the agent does not know. After more,
//! [`EarlyEnds::take`] returns [`EarlyEnd::Unclear`].

use std::collections::{HashMap, HashSet};

use tacit_sys::netlink::usage::TcpUsage;

/// The maximum number of stored ends of sockets whose cookie the agent does not know.
pub(super) const UNKNOWN_MAX: usize = 1024;

/// The ends that the kernel has reported early, by the cookies of the sockets.
#[derive(Debug, Default)]
pub(super) struct EarlyEnds {
    /// The sockets whose start the helper may report.
    expected: HashSet<u64>,
    /// The ends of expected sockets.
    ended: HashMap<u64, TcpUsage>,
    /// The ends of other sockets, while there are requests.
    unknown: HashMap<u64, TcpUsage>,
    /// The number of requests after which a link may pass a socket to the helper.
    requests: usize,
    /// Whether an end of a socket that is or will be expected may be missing here.
    is_incomplete: bool,
}

/// Whether a socket had ended before the helper reported its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EarlyEnd {
    /// It had not ended.
    No,
    /// It had ended, after this usage.
    Yes(TcpUsage),
    /// Its end may be lost.
    Unclear,
}

impl EarlyEnds {
    /// A link may pass a socket to the helper from now on.
    pub(super) fn begin_request(&mut self) {
        self.requests += 1;
    }

    /// The link has answered: the agent expects the socket, or there is none.
    pub(super) fn end_request(&mut self) {
        self.requests = self.requests.saturating_sub(1);
        if self.requests == 0 {
            self.unknown.clear();
        }
        self.forget_loss();
    }

    /// The helper will report the start of this socket, or that no program has it.
    pub(super) fn expect(&mut self, cookie: u64) {
        self.expected.insert(cookie);
        if let Some(usage) = self.unknown.remove(&cookie) {
            self.ended.insert(cookie, usage);
        }
    }

    /// The helper will report no start of this socket.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.expected.remove(&cookie);
        self.ended.remove(&cookie);
        self.forget_loss();
    }

    /// The kernel has destroyed a socket whose start the helper has not reported.
    pub(super) fn add(&mut self, usage: TcpUsage) {
        if self.expected.contains(&usage.cookie) {
            self.ended.insert(usage.cookie, usage);
        } else if self.requests > 0 {
            if self.unknown.len() < UNKNOWN_MAX {
                self.unknown.insert(usage.cookie, usage);
            } else {
                self.is_incomplete = true;
            }
        }
    }

    /// The kernel has dropped reports of ends.
    pub(super) fn add_loss(&mut self) {
        self.is_incomplete = true;
        self.forget_loss();
    }

    /// The helper reports the start of a socket.
    pub(super) fn take(&mut self, cookie: u64) -> EarlyEnd {
        let end = match self.ended.get(&cookie) {
            Some(usage) => EarlyEnd::Yes(*usage),
            None if self.is_incomplete => EarlyEnd::Unclear,
            None => EarlyEnd::No,
        };
        self.forget(cookie);
        end
    }

    /// A lost end matters only for sockets that are or will be expected.
    fn forget_loss(&mut self) {
        if self.requests == 0 && self.expected.is_empty() {
            self.is_incomplete = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(cookie: u64) -> TcpUsage {
        TcpUsage { cookie, was_established: true, sent_bytes: cookie, received_bytes: 0 }
    }

    #[test]
    fn a_socket_that_ends_before_its_answer_arrives_is_found() {
        let mut ends = EarlyEnds::default();
        ends.begin_request();
        ends.add(usage(1));
        ends.add(usage(2));
        ends.expect(1);
        ends.end_request();
        assert_eq!(ends.take(1), EarlyEnd::Yes(usage(1)));
        // The other one belonged to another program.
        ends.begin_request();
        ends.expect(2);
        ends.end_request();
        assert_eq!(ends.take(2), EarlyEnd::No);
    }

    #[test]
    fn a_socket_that_ends_between_its_answer_and_its_start_is_found() {
        let mut ends = EarlyEnds::default();
        ends.expect(1);
        ends.expect(2);
        ends.expect(3);
        ends.add(usage(1));
        ends.add(usage(2));
        ends.forget(2);
        assert_eq!(ends.take(1), EarlyEnd::Yes(usage(1)));
        assert_eq!(ends.take(2), EarlyEnd::No);
        assert_eq!(ends.take(3), EarlyEnd::No);
    }

    #[test]
    fn ends_of_other_sockets_are_not_stored_without_a_request() {
        let mut ends = EarlyEnds::default();
        ends.add(usage(1));
        ends.expect(1);
        assert_eq!(ends.take(1), EarlyEnd::No);
    }

    #[test]
    fn an_end_is_unclear_after_a_loss_until_no_socket_is_expected() {
        let mut ends = EarlyEnds::default();
        ends.add_loss();
        ends.expect(1);
        assert_eq!(ends.take(1), EarlyEnd::No, "nothing was expected at the loss");
        ends.expect(2);
        ends.expect(3);
        ends.add_loss();
        ends.add(usage(3));
        assert_eq!(ends.take(2), EarlyEnd::Unclear);
        assert_eq!(ends.take(3), EarlyEnd::Yes(usage(3)));
        ends.expect(4);
        assert_eq!(ends.take(4), EarlyEnd::No);
    }

    #[test]
    fn more_ends_than_are_stored_make_the_others_unclear() {
        let mut ends = EarlyEnds::default();
        ends.begin_request();
        (1..=UNKNOWN_MAX as u64 + 1).for_each(|cookie| ends.add(usage(cookie)));
        ends.expect(1);
        ends.expect(UNKNOWN_MAX as u64 + 1);
        ends.end_request();
        assert_eq!(ends.take(1), EarlyEnd::Yes(usage(1)));
        assert_eq!(ends.take(UNKNOWN_MAX as u64 + 1), EarlyEnd::Unclear);
        assert_eq!(ends.take(9), EarlyEnd::No);
    }
}
