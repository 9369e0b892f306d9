//! Counts the runs and sockets of one link.

use std::collections::{BTreeMap, HashMap};

use crate::clock::Rfc3339;
use crate::run::link::protocol::LinkedRun;

/// The runs of a link, and their sockets.
#[derive(Debug, Default)]
pub(super) struct LinkState {
    runs: BTreeMap<u64, RunState>,
    /// The number of the last session.
    last_session: u64,
    /// The open sockets, by their cookies, with the session that got each.
    open: HashMap<u64, u64>,
    /// The requests that may still become a socket.
    pending: usize,
}

/// A run that said hello.
#[derive(Debug)]
pub(super) struct RunState {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) pid: u32,
    pub(super) user: String,
    pub(super) since: Rfc3339,
    pub(super) opened: u64,
    pub(super) failed: u64,
    pub(super) refused: u64,
}

impl LinkState {
    /// Adds a run; returns the number of its session.
    pub(super) fn begin(&mut self, run: RunState) -> u64 {
        self.last_session += 1;
        self.runs.insert(self.last_session, run);
        self.last_session
    }

    /// Removes a run. Its sockets count until they are closed.
    pub(super) fn leave(&mut self, session: u64) {
        self.runs.remove(&session);
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

    /// Counts a request.
    pub(super) fn expect(&mut self) {
        self.pending += 1;
    }

    /// The request has ended.
    pub(super) fn settle(&mut self) {
        self.pending -= 1;
    }

    /// Counts a socket that is passed on.
    pub(super) fn add(&mut self, cookie: u64, session: u64) {
        self.open.insert(cookie, session);
    }

    /// The socket with this number was closed.
    pub(super) fn end(&mut self, cookie: u64) {
        self.open.remove(&cookie);
    }

    /// The kernel has not reported all sockets that were closed.
    pub(super) fn forget_all(&mut self) {
        self.open.clear();
    }

    /// The runs, for displays.
    pub(super) fn shown(&self) -> Vec<LinkedRun> {
        let mut sockets: HashMap<u64, usize> = HashMap::new();
        for session in self.open.values() {
            *sockets.entry(*session).or_default() += 1;
        }
        let show = |(session, run): (&u64, &RunState)| LinkedRun {
            session: *session,
            run: run.name.clone(),
            pid: run.pid,
            user: run.user.clone(),
            since: run.since,
            sockets: sockets.get(session).copied().unwrap_or_default(),
            opened: run.opened,
            failed: run.failed,
            refused: run.refused,
        };
        self.runs.iter().map(show).collect()
    }
}
