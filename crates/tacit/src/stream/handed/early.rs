//! Stores *early reports* of the kernel. For each connection, the helper reports the start, and the
//! kernel reports the end of the socket. If the report of the kernel arrives first, it is early. If
//! the agent ignored early reports, it would record an ended connection as open.
//!
//! Each socket has a number, its *cookie*. If the agent opens a socket for a program, the agent
//! knows the cookie at once. If the server of a link opens the socket, the report of the kernel may
//! arrive before the server has sent the cookie. So while the agent waits for a link, this module
//! stores all reports with unknown cookies.
//!
//! Limit: at most [`UNKNOWN_MAX`] reports with unknown cookies. Beyond this limit, or if the kernel
//! has dropped reports, a report may be missing. Then [`EarlyEnds::take`] returns
//! [`EarlyEnd::Unclear`] for sockets without a stored report.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tacit_sys::netlink::usage::TcpUsage;

/// The maximum number of stored ends of sockets whose cookie the agent does not know.
pub(super) const UNKNOWN_MAX: usize = 1024;

/// The ends that the kernel has reported early, by the cookies of the sockets.
#[derive(Debug)]
pub(super) struct EarlyEnds {
    /// The sockets whose start the helper may report.
    expected: HashSet<u64>,
    /// The ends of expected sockets.
    ended: HashMap<u64, TcpUsage>,
    /// The ends of other sockets while there are requests, with their times.
    unknown: VecDeque<(Instant, TcpUsage)>,
    /// The number of requests after which a link may pass a socket to the helper.
    requests: usize,
    /// How long a request may take.
    request_time: Duration,
    /// Whether the kernel drops reports.
    is_losing: bool,
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
    /// For requests that take at most this time.
    pub(super) fn new(request_time: Duration) -> Self {
        Self {
            expected: HashSet::new(),
            ended: HashMap::new(),
            unknown: VecDeque::new(),
            requests: 0,
            request_time,
            is_losing: false,
            is_incomplete: false,
        }
    }

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
        let found = self.unknown.iter().find(|(_, usage)| usage.cookie == cookie);
        if let Some((_, usage)) = found {
            self.ended.insert(cookie, *usage);
        }
    }

    /// The helper will report no start of this socket.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.expected.remove(&cookie);
        self.ended.remove(&cookie);
        self.forget_loss();
    }

    /// The kernel has destroyed a socket whose start the helper has not reported.
    pub(super) fn add(&mut self, usage: TcpUsage, now: Instant) {
        if self.expected.contains(&usage.cookie) {
            self.ended.insert(usage.cookie, usage);
        } else if self.requests > 0 {
            self.add_unknown(usage, now);
        }
    }

    fn add_unknown(&mut self, usage: TcpUsage, now: Instant) {
        // The request for a socket that has ended before this time has ended, too.
        let is_old = |at: Instant| now.saturating_duration_since(at) > self.request_time;
        while self.unknown.front().is_some_and(|(at, _)| is_old(*at)) {
            self.unknown.pop_front();
        }
        if self.unknown.len() >= UNKNOWN_MAX {
            self.unknown.pop_front();
            self.is_incomplete = true;
        }
        self.unknown.push_back((now, usage));
    }

    /// Whether no socket is or will soon be expected.
    pub(super) fn is_idle(&self) -> bool {
        self.requests == 0 && self.expected.is_empty()
    }

    /// The kernel drops reports of ends until all reports that it has stored are read.
    pub(super) fn begin_loss(&mut self) {
        self.is_losing = true;
        self.is_incomplete = true;
    }

    /// All reports are read. Returns whether the kernel has dropped some.
    pub(super) fn end_loss(&mut self) -> bool {
        let was_losing = std::mem::take(&mut self.is_losing);
        self.forget_loss();
        was_losing
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
        if !self.is_losing && self.is_idle() {
            self.is_incomplete = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST_TIME: Duration = Duration::from_secs(2);

    fn usage(cookie: u64) -> TcpUsage {
        TcpUsage { cookie, was_established: true, sent_bytes: cookie, received_bytes: 0 }
    }

    fn ends() -> (EarlyEnds, Instant) {
        (EarlyEnds::new(REQUEST_TIME), Instant::now())
    }

    #[test]
    fn a_socket_that_ends_before_its_answer_arrives_is_found() {
        let (mut ends, now) = ends();
        ends.begin_request();
        ends.add(usage(1), now);
        ends.add(usage(2), now);
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
        let (mut ends, now) = ends();
        ends.expect(1);
        ends.expect(2);
        ends.expect(3);
        ends.add(usage(1), now);
        ends.add(usage(2), now);
        ends.forget(2);
        assert_eq!(ends.take(1), EarlyEnd::Yes(usage(1)));
        assert_eq!(ends.take(2), EarlyEnd::No);
        assert_eq!(ends.take(3), EarlyEnd::No);
    }

    #[test]
    fn ends_of_other_sockets_are_not_stored_without_a_request() {
        let (mut ends, now) = ends();
        ends.add(usage(1), now);
        ends.expect(1);
        assert_eq!(ends.take(1), EarlyEnd::No);
    }

    #[test]
    fn an_end_is_unclear_after_a_loss_until_no_socket_is_expected() {
        let (mut ends, now) = ends();
        ends.begin_loss();
        ends.expect(1);
        ends.expect(2);
        assert_eq!(ends.take(1), EarlyEnd::Unclear);
        ends.add(usage(2), now);
        assert_eq!(ends.take(2), EarlyEnd::Yes(usage(2)));
        ends.expect(3);
        assert_eq!(ends.take(3), EarlyEnd::Unclear, "the kernel still drops reports");
        ends.expect(4);
        assert!(ends.end_loss() && !ends.end_loss());
        assert_eq!(ends.take(4), EarlyEnd::Unclear);
        ends.expect(5);
        assert_eq!(ends.take(5), EarlyEnd::No);
    }

    #[test]
    fn more_ends_than_are_stored_make_the_oldest_unclear() {
        let (mut ends, now) = ends();
        ends.begin_request();
        let last = UNKNOWN_MAX as u64 + 1;
        (1..=last).for_each(|cookie| ends.add(usage(cookie), now));
        ends.expect(1);
        ends.expect(last);
        ends.end_request();
        assert_eq!(ends.take(last), EarlyEnd::Yes(usage(last)));
        assert_eq!(ends.take(1), EarlyEnd::Unclear);
        ends.expect(9);
        assert_eq!(ends.take(9), EarlyEnd::No);
    }

    #[test]
    fn ends_that_are_older_than_each_request_make_room() {
        let (mut ends, now) = ends();
        ends.begin_request();
        (0..UNKNOWN_MAX as u64).for_each(|cookie| ends.add(usage(cookie), now));
        ends.add(usage(5000), now + REQUEST_TIME * 2);
        ends.expect(6000);
        assert_eq!(ends.take(6000), EarlyEnd::No);
        assert_eq!(ends.unknown.len(), 1);
    }
}
