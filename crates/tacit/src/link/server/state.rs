//! Counts the runs and sockets of one link.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::SystemTime;

use tokio::sync::watch;

use crate::address;
use crate::clock::Rfc3339;
use crate::link::wire::handshake::PeerCertificate;
use crate::random;
use crate::run::link::protocol::{LinkSocket, LinkedRun, OpenKind, OpenRequest, SOCKETS_SHOWN_MAX};

/// The other end of a stream.
#[derive(Clone, Debug)]
pub(super) enum OtherEnd {
    /// A process of this host, as the kernel reports it.
    Process { uid: u32, pid: u32 },
    /// A virtual machine, by its context of vsock as the kernel reports it.
    Machine { cid: u32 },
    /// A server of links on another host, with its certificate.
    Host {
        certificate: PeerCertificate,
        /// The number of the TLS settings that have accepted the certificate.
        generation: u64,
    },
}

impl OtherEnd {
    /// Whether both may use the same session.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Process { uid, .. }, Self::Process { uid: other, .. }) => uid == other,
            (Self::Machine { cid }, Self::Machine { cid: other }) => cid == other,
            (Self::Host { certificate, .. }, Self::Host { certificate: other, .. }) => {
                certificate.sha256 == other.sha256
            }
            _ => false,
        }
    }

    /// The process, for displays; 0 if it is on another kernel.
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Process { pid, .. } => *pid,
            Self::Machine { .. } | Self::Host { .. } => 0,
        }
    }

    /// The user or the name in the certificate, for displays.
    pub(super) fn user(&self) -> String {
        match self {
            Self::Process { uid, .. } => address::user_name(*uid),
            Self::Machine { cid } => format!("vsock:{cid}"),
            Self::Host { certificate, .. } => certificate.name.clone(),
        }
    }
}

/// The runs of a link, and their sockets.
#[derive(Debug, Default)]
pub(super) struct LinkState {
    /// The runs by session. Sessions are random: the processes of a guest, which have one user
    /// here, must not guess the sessions of each other.
    runs: HashMap<u64, RunState>,
    /// The number of the last session, for displays.
    last_number: u64,
    /// The open sockets, by their cookies, with the session that got each.
    open: HashMap<u64, u64>,
    /// The cookies of those that this server holds itself.
    held: HashSet<u64>,
    /// The requests of the open sockets, for displays, with their sessions.
    requests: HashMap<u64, (u64, LinkSocket)>,
    /// The requests that may still become a socket.
    pending: usize,
    /// The counts of runs that have ended.
    ended: LinkTotals,
}

/// Counts of all runs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkTotals {
    pub(super) opened: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
}

impl LinkTotals {
    fn plus(self, run: &RunState) -> Self {
        Self {
            opened: self.opened + run.opened,
            failed: self.failed + run.failed,
            refused: self.refused + run.refused,
        }
    }
}

/// A run that has sent its hello.
#[derive(Debug)]
pub(super) struct RunState {
    /// The number of its session for displays, which `begin` sets.
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) end: OtherEnd,
    /// The number of its session at the server that has the network, if that is another server.
    pub(super) far_session: Option<u64>,
    /// Dropped with the run, so that its tasks end.
    pub(super) alive: watch::Sender<()>,
    pub(super) since: Rfc3339,
    /// When it ended, if its connections have outlived it.
    pub(super) ended: Option<Rfc3339>,
    pub(super) opened: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
    /// The sockets that were reset because their stream to another kernel has failed.
    pub(super) lost: u64,
    /// Its open sockets.
    pub(super) sockets: usize,
    /// Its requests that may still become a socket.
    pub(super) pending: usize,
}

impl LinkState {
    /// Adds a run; returns its session.
    pub(super) fn begin(&mut self, run: RunState) -> io::Result<u64> {
        let session = unused(|number| self.runs.contains_key(&number))?;
        self.last_number += 1;
        self.runs.insert(session, RunState { number: self.last_number, ..run });
        Ok(session)
    }

    /// The number of a session for displays; 0 if it has ended.
    pub(super) fn number(&self, session: u64) -> u64 {
        self.runs.get(&session).map_or(0, |run| run.number)
    }

    /// The sessions of runs that are no longer accepted, with the names of these runs.
    pub(super) fn rejected(&self, is_rejected: impl Fn(&OtherEnd) -> bool) -> Vec<(u64, String)> {
        let rejected = self.runs.iter().filter(|(_, run)| is_rejected(&run.end));
        rejected.map(|(session, run)| (*session, run.name.clone())).collect()
    }

    /// Removes a run. Its sockets count until they are closed.
    pub(super) fn leave(&mut self, session: u64) {
        if let Some(run) = self.runs.remove(&session) {
            self.ended = self.ended.plus(&run);
        }
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// A run for changes.
    pub(super) fn run(&mut self, session: u64) -> Option<&mut RunState> {
        self.runs.get_mut(&session)
    }

    /// The sockets, with those that are being opened.
    pub(super) fn sockets(&self) -> usize {
        self.open.len() + self.pending
    }

    /// The runs of the other end of a stream.
    fn runs_of<'a>(&'a self, end: &'a OtherEnd) -> impl Iterator<Item = &'a RunState> {
        self.runs.values().filter(move |run| run.end.is_same(end))
    }

    /// The number of runs of the other end of a stream.
    pub(super) fn count_runs_of(&self, end: &OtherEnd) -> usize {
        self.runs_of(end).count()
    }

    /// The sockets of all runs of the host of a session, with those that are being opened; `None`
    /// if the run is not on another host with a certificate.
    pub(super) fn sockets_of_host(&self, session: u64) -> Option<usize> {
        let end = &self.runs.get(&session)?.end;
        let is_host = matches!(end, OtherEnd::Host { .. });
        is_host.then(|| self.runs_of(end).map(|run| run.sockets + run.pending).sum())
    }

    /// The sockets of a run that are lost if its server on another kernel is lost.
    pub(super) fn lost_with(&self, session: u64) -> u64 {
        let open = self.open.values().filter(|of| **of == session).count() as u64;
        open + self.runs.get(&session).map_or(0, |run| run.lost)
    }

    /// Counts a request.
    pub(super) fn expect(&mut self, session: u64) {
        self.pending += 1;
        if let Some(run) = self.runs.get_mut(&session) {
            run.pending += 1;
        }
    }

    /// The request has ended.
    pub(super) fn settle(&mut self, session: u64) {
        self.pending -= 1;
        if let Some(run) = self.runs.get_mut(&session) {
            run.pending -= 1;
        }
    }

    /// The requests that may still become a socket.
    pub(super) fn pending(&self) -> usize {
        self.pending
    }

    /// The counts of all runs since the server started.
    pub(super) fn totals(&self) -> LinkTotals {
        self.runs.values().fold(self.ended, LinkTotals::plus)
    }

    /// Counts a socket that is passed on.
    pub(super) fn add(&mut self, cookie: u64, session: u64) {
        if self.open.insert(cookie, session).is_none()
            && let Some(run) = self.runs.get_mut(&session)
        {
            run.sockets += 1;
        }
    }

    /// Counts a socket that this server holds until it calls [`Self::end`].
    pub(super) fn hold(&mut self, cookie: u64, session: u64) {
        self.add(cookie, session);
        self.held.insert(cookie);
    }

    /// Stores the request of an open socket, for displays.
    pub(super) fn describe(&mut self, cookie: u64, request: &OpenRequest) {
        let OpenRequest { session, kind, address } = *request;
        let since = Rfc3339(SystemTime::now());
        let outlived_run = false;
        let number = self.number(session);
        let socket = LinkSocket { session: number, kind, address, since, outlived_run };
        self.requests.insert(cookie, (session, socket));
    }

    /// The open sockets of runs, the oldest first.
    pub(super) fn shown_sockets(&self) -> Vec<LinkSocket> {
        let has_ended =
            |session: u64| self.runs.get(&session).is_some_and(|run| run.ended.is_some());
        let show = |(session, socket): &(u64, LinkSocket)| LinkSocket {
            outlived_run: has_ended(*session),
            ..socket.clone()
        };
        let mut all: Vec<_> = self.requests.values().map(show).collect();
        all.sort_by_key(|socket| (socket.session, socket.since.0));
        all.truncate(SOCKETS_SHOWN_MAX);
        all
    }

    /// The socket with this number was closed, and had no connection. If the run was to connect it,
    /// it counts as failed.
    pub(super) fn end_unconnected(&mut self, cookie: u64) {
        let is_handed = |(_, socket): &(u64, LinkSocket)| socket.kind == OpenKind::Handed;
        if self.requests.get(&cookie).is_some_and(is_handed)
            && let Some(run) = self.open.get(&cookie).and_then(|of| self.runs.get_mut(of))
        {
            run.opened -= 1;
            run.failed += 1;
        }
        self.end(cookie);
    }

    /// The socket with this number was closed.
    pub(super) fn end(&mut self, cookie: u64) {
        let session = self.open.remove(&cookie);
        if let Some(run) = session.and_then(|session| self.runs.get_mut(&session)) {
            run.sockets -= 1;
        }
        self.held.remove(&cookie);
        self.requests.remove(&cookie);
    }

    /// The kernel has not reported all sockets that were closed. Those that this server holds are
    /// open.
    pub(super) fn forget_unknown(&mut self) {
        let unknown: Vec<_> =
            self.open.keys().copied().filter(|cookie| !self.held.contains(cookie)).collect();
        unknown.into_iter().for_each(|cookie| self.end(cookie));
    }

    /// The runs, for displays.
    pub(super) fn shown(&self) -> Vec<LinkedRun> {
        let show = |run: &RunState| LinkedRun {
            session: run.number,
            run: run.name.clone(),
            pid: run.end.pid(),
            user: run.end.user(),
            since: run.since,
            sockets: run.sockets,
            opened: run.opened,
            failed: run.failed,
            refused: run.refused,
            ended: run.ended,
        };
        let mut all: Vec<_> = self.runs.values().map(show).collect();
        all.sort_by_key(|run| run.session);
        all
    }
}

/// A random number that is not used, and that other processes cannot guess.
pub(super) fn unused(is_used: impl Fn(u64) -> bool) -> io::Result<u64> {
    loop {
        let mut bytes = [0; 8];
        random::fill(&mut bytes)?;
        let number = u64::from_ne_bytes(bytes);
        if number != 0 && !is_used(number) {
            return Ok(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(end: &OtherEnd) -> RunState {
        RunState {
            number: 0,
            name: "run".to_owned(),
            end: end.clone(),
            far_session: None,
            alive: watch::Sender::new(()),
            since: Rfc3339(SystemTime::UNIX_EPOCH),
            ended: None,
            opened: 0,
            failed: 0,
            refused: 0,
            lost: 0,
            sockets: 0,
            pending: 0,
        }
    }

    fn host(sha256: &str) -> OtherEnd {
        let certificate =
            PeerCertificate { name: "guest".to_owned(), sha256: sha256.to_owned(), trusted: None };
        OtherEnd::Host { certificate, generation: 0 }
    }

    #[test]
    fn sockets_count_for_the_certificate_of_their_host() {
        let mut state = LinkState::default();
        let one = host("aa");
        let other = host("bb");
        let first = state.begin(run_of(&one)).unwrap();
        let second = state.begin(run_of(&one)).unwrap();
        let third = state.begin(run_of(&other)).unwrap();
        state.add(1, first);
        state.hold(2, second);
        state.expect(second);
        state.add(3, third);
        let of_host =
            |state: &LinkState| [first, second, third].map(|it| state.sockets_of_host(it));
        assert_eq!(of_host(&state), [Some(3), Some(3), Some(1)]);
        assert_eq!((state.count_runs_of(&one), state.count_runs_of(&other)), (2, 1));
        state.settle(second);
        state.end(1);
        assert_eq!(of_host(&state), [Some(1), Some(1), Some(1)]);
        state.forget_unknown();
        assert_eq!((of_host(&state), state.sockets()), ([Some(1), Some(1), Some(0)], 1));
        state.leave(second);
        assert_eq!(of_host(&state), [Some(0), None, Some(0)]);
        let local = OtherEnd::Process { uid: 0, pid: 1 };
        let session = state.begin(run_of(&local)).unwrap();
        assert_eq!(state.sockets_of_host(session), None);
    }

    #[test]
    fn a_socket_that_its_run_did_not_connect_counts_as_failed() {
        let mut state = LinkState::default();
        let session = state.begin(run_of(&host("aa"))).unwrap();
        let address = "192.0.2.1:80".parse().unwrap();
        let kinds = [OpenKind::Handed, OpenKind::Handed, OpenKind::Connected];
        for (cookie, kind) in (1..).zip(kinds) {
            state.add(cookie, session);
            state.describe(cookie, &OpenRequest { session, kind, address });
            state.run(session).unwrap().opened += 1;
        }
        state.end(1);
        (2..=4).for_each(|cookie| state.end_unconnected(cookie));
        let LinkTotals { opened, failed, refused } = state.totals();
        assert_eq!((opened, failed, refused, state.sockets()), (2, 1, 0, 0));
    }

    #[test]
    fn sockets_that_the_server_holds_count_also_if_reports_are_lost() {
        let mut state = LinkState::default();
        state.add(1, 4711);
        state.hold(2, 4711);
        state.forget_unknown();
        assert_eq!(state.sockets(), 1);
        state.end(2);
        assert_eq!(state.sockets(), 0);
    }
}
