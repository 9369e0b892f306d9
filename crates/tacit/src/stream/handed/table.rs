//! Stores the connections whose sockets the agent has given to programs. A connection stays in the
//! table until the kernel reports that its socket was closed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_sys::handed::SocketIdentity;
use tacit_sys::netlink::Netlink;
use tacit_sys::netlink::usage::{self, Destroyed, TcpUsage, UsageSockets};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::early::{EarlyEnd, EarlyEnds};
use super::reports::{self, DestroyedSockets, Reports};
use crate::clock;
use crate::log::{Event, Log};
use crate::run::Run;
use crate::run::protocol::ConnectProgress;
use crate::session::{Connection, ConnectionEnd, ConnectionSockets, Failure, Unreached, account};

/// How often the agent looks whether connections are established.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How often it does so for connections that are not established soon.
const LATE_LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a link may take for a socket. The helper waits half as long for the answer: it does not
/// use a socket that it gets after the agent has stopped waiting.
pub(super) const LINK_WAIT_MAX: Duration = Duration::from_secs(2);

/// All connections of handed sockets. Belongs to the control thread.
#[derive(Debug)]
pub struct HandedConnections {
    log: Log,
    state: RefCell<State>,
    /// Wakes the task when it must look at connections.
    must_look: Notify,
}

#[derive(Debug)]
struct State {
    open: HashMap<u64, HandedConnection>,
    /// Sockets that were destroyed before the helper reported the start of their connections.
    early: EarlyEnds,
    /// Whether the end of an open connection may be lost.
    must_find_missing: bool,
    diagnosis: Option<Netlink>,
    reports: Option<Reports>,
}

/// A connection that a program has started.
#[derive(Debug)]
pub(super) struct StartedConnection {
    pub(super) connection: Connection,
    pub(super) identity: SocketIdentity,
    pub(super) local: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) requested: Instant,
}

#[derive(Debug)]
struct HandedConnection {
    started: StartedConnection,
    run: std::sync::Weak<Run>,
    number: u64,
    is_established: bool,
    /// Ends with the connection.
    closing: Option<AbortHandle>,
}

impl Drop for HandedConnection {
    fn drop(&mut self) {
        if let Some(closing) = &self.closing {
            closing.abort();
        }
    }
}

impl HandedConnections {
    /// An empty table.
    #[must_use]
    pub fn new(log: Log) -> Rc<Self> {
        let state = State {
            open: HashMap::new(),
            early: EarlyEnds::new(LINK_WAIT_MAX),
            must_find_missing: false,
            diagnosis: None,
            reports: None,
        };
        Rc::new(Self { log, state: RefCell::new(state), must_look: Notify::new() })
    }

    /// Receives the ends of connections of one network namespace.
    ///
    /// # Errors
    /// The runtime does not watch the socket.
    pub fn watch(self: &Rc<Self>, sockets: UsageSockets) -> io::Result<()> {
        let UsageSockets { destroyed, diagnosis } = sockets;
        let destroyed = Arc::new(destroyed);
        let reports = Reports::new(Arc::clone(&destroyed));
        let destroyed = DestroyedSockets::new(destroyed)?;
        let mut state = self.state.borrow_mut();
        state.diagnosis = Some(diagnosis);
        state.reports = Some(reports);
        drop(state);
        tokio::task::spawn_local(receive(Rc::downgrade(self), destroyed));
        Ok(())
    }

    /// A socket is on its way to a program, until the result is dropped.
    ///
    /// # Errors
    /// The kernel would not report the end of the socket.
    pub(super) fn expect(self: &Rc<Self>, identity: SocketIdentity) -> io::Result<ExpectedSocket> {
        self.state.borrow_mut().resume_reports()?;
        Ok(self.expect_reported(identity))
    }

    /// The same while the kernel already sends reports.
    fn expect_reported(self: &Rc<Self>, identity: SocketIdentity) -> ExpectedSocket {
        self.state.borrow_mut().early.expect(identity.cookie);
        ExpectedSocket { table: Rc::clone(self), identity }
    }

    /// A link may pass a socket to a helper, until the result is dropped.
    ///
    /// # Errors
    /// The kernel would not report the end of the socket.
    pub(super) fn begin_request(self: &Rc<Self>) -> io::Result<RequestToLink> {
        let mut state = self.state.borrow_mut();
        state.resume_reports()?;
        state.early.begin_request();
        Ok(RequestToLink { table: Rc::clone(self) })
    }
}

impl State {
    fn resume_reports(&mut self) -> io::Result<()> {
        self.reports.as_mut().map_or(Ok(()), Reports::resume)
    }

    /// A report of a socket that belongs to no open connection.
    fn take_other(&mut self, usage: TcpUsage, now: Instant) {
        self.early.add(usage, now);
        if self.open.is_empty() && self.early.is_idle() {
            self.reports.iter_mut().for_each(|reports| reports.note_unneeded(now));
        }
    }
}

/// A request after which a link may pass a socket to a helper.
#[derive(Debug)]
pub(super) struct RequestToLink {
    table: Rc<HandedConnections>,
}

impl RequestToLink {
    /// The link has passed this socket.
    pub(super) fn expect(&self, identity: SocketIdentity) -> ExpectedSocket {
        // The request has needed the reports from its beginning.
        self.table.expect_reported(identity)
    }
}

impl Drop for RequestToLink {
    fn drop(&mut self) {
        self.table.state.borrow_mut().early.end_request();
    }
}

/// A socket whose start the helper may report.
#[derive(Debug)]
pub(super) struct ExpectedSocket {
    table: Rc<HandedConnections>,
    pub(super) identity: SocketIdentity,
}

impl Drop for ExpectedSocket {
    fn drop(&mut self) {
        self.table.state.borrow_mut().early.forget(self.identity.cookie);
    }
}

/// Connections begin and end.
impl HandedConnections {
    /// Adds a connection that a program has started.
    pub(super) fn start(
        self: &Rc<Self>,
        started: StartedConnection,
        number: u64,
        progress: ConnectProgress,
        run: &Arc<Run>,
    ) {
        let is_established = progress == ConnectProgress::Established;
        let cookie = started.identity.cookie;
        let record = started.connection.record();
        // The record is new, so it has no sockets yet.
        let _ = record.sockets.set(ConnectionSockets {
            downstream: std::sync::Weak::new(),
            upstream: std::sync::Weak::new(),
            target: started.to.into(),
        });
        let mut handed = HandedConnection {
            started,
            run: Arc::downgrade(run),
            number,
            is_established: false,
            closing: None,
        };
        let early = self.state.borrow_mut().early.take(cookie);
        if is_established {
            handed.establish(&self.log);
        }
        if let EarlyEnd::Yes(usage) = early {
            return handed.end(&self.log, usage);
        }
        let is_unclear = early == EarlyEnd::Unclear;
        let closing = tokio::task::spawn_local(close_on_request(Rc::downgrade(self), cookie));
        handed.closing = Some(closing.abort_handle());
        let mut state = self.state.borrow_mut();
        state.open.insert(cookie, handed);
        state.must_find_missing |= is_unclear;
        if is_unclear || !is_established {
            self.must_look.notify_one();
        }
    }

    /// The connection of a blocking `connect` has failed.
    pub(super) fn fail(&self, run: &Arc<Run>, number: u64, error: &io::Error) {
        let failed = {
            let mut state = self.state.borrow_mut();
            let is_it = |handed: &HandedConnection| {
                handed.number == number && handed.run.as_ptr() == Arc::as_ptr(run)
            };
            let found = state.open.iter().find(|(_, handed)| is_it(handed));
            let cookie = found.map(|(cookie, _)| *cookie);
            cookie.and_then(|cookie| state.open.remove(&cookie))
        };
        if let Some(handed) = failed {
            let failure = Failure::Dial(Unreached::new(&handed.started.to, error));
            handed.fail(&self.log, &failure);
        }
    }

    /// Reads the counters of all connections, for displays.
    pub fn refresh(&self) {
        let mut state = self.state.borrow_mut();
        let State { open, diagnosis, .. } = &mut *state;
        let Some(diagnosis) = diagnosis else { return };
        for handed in open.values_mut() {
            let StartedConnection { local, to, identity, .. } = handed.started;
            match usage::of_socket(diagnosis, local, to) {
                Ok(Some(usage)) if usage.cookie == identity.cookie => {
                    handed.note(&self.log, usage);
                }
                // The kernel reports its end.
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    /// Takes the ends that the kernel has reported.
    ///
    /// # Errors
    /// The socket of the reports has failed.
    fn read_destroyed(&self, destroyed: &mut DestroyedSockets) -> io::Result<()> {
        destroyed.read(|report| self.take_report(report))
    }

    /// Takes the ends that the kernel has reported until now: they count for no limit any more.
    pub(super) fn read_ends(&self) {
        let reports = self.state.borrow().reports.as_ref().map(|all| Arc::clone(all.socket()));
        if let Some(socket) = reports {
            // The task that receives the reports finds an error, too.
            let _ = reports::read(socket.as_fd(), |report| self.take_report(report));
        }
    }

    fn take_report(&self, report: Option<Destroyed>) {
        match report {
            Some(Destroyed::Socket(usage)) => self.take_destroyed(usage),
            Some(Destroyed::Lost) => self.begin_loss(),
            None => self.end_loss(),
        }
    }

    fn take_destroyed(&self, usage: TcpUsage) {
        let ended = {
            let mut state = self.state.borrow_mut();
            let ended = state.open.remove(&usage.cookie);
            if ended.is_none() {
                state.take_other(usage, Instant::now());
            }
            ended
        };
        if let Some(ended) = ended {
            ended.end(&self.log, usage);
        }
    }

    /// No more reports can be received, so programs get no more sockets.
    fn end_reports(&self) {
        self.state.borrow_mut().reports.iter_mut().for_each(Reports::end);
    }

    /// The kernel drops reports until all that it has stored are read.
    fn begin_loss(&self) {
        self.state.borrow_mut().early.begin_loss();
    }

    /// All reports are read.
    fn end_loss(&self) {
        let mut state = self.state.borrow_mut();
        if state.early.end_loss() {
            state.must_find_missing = true;
            self.must_look.notify_one();
        }
    }

    /// Ends the connections whose end the kernel could not report.
    fn end_missing(&self) {
        let missing: Vec<_> = {
            let mut state = self.state.borrow_mut();
            let State { open, must_find_missing, diagnosis, .. } = &mut *state;
            if !std::mem::take(must_find_missing) {
                return;
            }
            let missing = open.iter().filter(|(_, one)| is_missing(diagnosis.as_mut(), one));
            let cookies: Vec<_> = missing.map(|(cookie, _)| *cookie).collect();
            cookies.iter().filter_map(|cookie| open.remove(cookie)).collect()
        };
        for handed in missing {
            handed.conclude(&self.log);
        }
    }

    /// Looks whether connections are established or missing; returns whether some are not
    /// established.
    fn look(&self) -> bool {
        self.end_missing();
        self.refresh();
        self.state.borrow().open.values().any(|handed| !handed.is_established)
    }
}

impl HandedConnection {
    /// Takes over the counters of the kernel.
    fn note(&mut self, log: &Log, usage: TcpUsage) {
        let TcpUsage { was_established, sent_bytes, received_bytes, .. } = usage;
        if was_established {
            self.establish(log);
        }
        self.started.connection.set_totals(sent_bytes, received_bytes);
    }

    fn establish(&mut self, log: &Log) {
        if std::mem::replace(&mut self.is_established, true) {
            return;
        }
        let connection = &self.started.connection;
        connection.record().rule.counters.connects.add(self.started.requested.elapsed());
        connection.mark_open();
        account::opened(log, connection);
    }

    fn end(mut self, log: &Log, usage: TcpUsage) {
        self.note(log, usage);
        self.conclude(log);
    }

    fn conclude(self, log: &Log) {
        if !self.is_established {
            let reason = "the destination did not accept the connection, or the program closed its \
                          socket before the connection was established";
            return self.fail(log, &Failure::Dial(Unreached::from(reason)));
        }
        let record = self.started.connection.record();
        account::settle(log, record, &ConnectionEnd::Orderly);
        record.settle();
    }

    fn fail(self, log: &Log, failure: &Failure) {
        let connection = &self.started.connection;
        account::failed(log, connection, failure);
        connection.record().settle();
    }
}

/// Whether the kernel has no socket for a connection any more; false if the kernel does not answer.
fn is_missing(diagnosis: Option<&mut Netlink>, handed: &HandedConnection) -> bool {
    let StartedConnection { local, to, identity, .. } = handed.started;
    let Some(diagnosis) = diagnosis else { return false };
    let found = usage::of_socket(diagnosis, local, to);
    found.is_ok_and(|found| found.is_none_or(|one| one.cookie != identity.cookie))
}

/// Receives the ends of connections, and looks whether new connections are established.
async fn receive(table: std::rc::Weak<HandedConnections>, mut destroyed: DestroyedSockets) {
    let mut interval = LOOK_INTERVAL;
    // The time of the next look, while there are new connections.
    let mut look_at = None;
    loop {
        let Some(all) = table.upgrade() else { return };
        tokio::select! {
            ready = destroyed.ready() => {
                if ready.and_then(|()| all.read_destroyed(&mut destroyed)).is_err() {
                    return all.end_reports();
                }
            }
            () = all.must_look.notified() => {
                interval = LOOK_INTERVAL;
                let soon = tokio::time::Instant::now() + interval;
                look_at = Some(look_at.map_or(soon, |at: tokio::time::Instant| at.min(soon)));
            }
            () = clock::sleep_until(look_at) => {
                interval = (interval * 2).min(LATE_LOOK_INTERVAL);
                look_at = all.look().then(|| tokio::time::Instant::now() + interval);
            }
        }
        drop(all);
        tokio::task::yield_now().await;
    }
}

/// Resets a connection when an operator closes it.
async fn close_on_request(table: std::rc::Weak<HandedConnections>, cookie: u64) {
    let record = {
        let Some(table) = table.upgrade() else { return };
        let state = table.state.borrow();
        state.open.get(&cookie).map(|handed| Arc::clone(handed.started.connection.record()))
    };
    let Some(record) = record else { return };
    record.closed().await;
    let found = {
        let Some(table) = table.upgrade() else { return };
        table.refresh();
        let state = table.state.borrow();
        let handed = state.open.get(&cookie);
        handed.and_then(|handed| Some((handed.run.upgrade()?, handed.started.identity.inode)))
    };
    let reset = match found {
        Some((run, inode)) => run.helper.reset(inode).await,
        None => Err(io::Error::other("the run has ended")),
    };
    let Some(table) = table.upgrade() else { return };
    if let Err(error) = reset {
        let event = Event::new("close-failed").connection(record.id).field("error", &error);
        let next = "the connection stays open, because the program holds its socket: end the \
                    program. To let the agent close such connections in future, set path = \
                    \"relay\" in the rule";
        table.log.warn(event.field("next", next));
        return;
    }
    let ended = {
        let mut state = table.state.borrow_mut();
        let mut ended = state.open.remove(&cookie);
        // This task must not end itself before it has logged the end.
        if let Some(ended) = &mut ended {
            ended.closing = None;
        }
        ended
    };
    if let Some(ended) = ended {
        account::closed_on_request(&table.log, &record);
        record.settle();
        drop(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_continue_while_a_socket_is_expected() {
        let table = HandedConnections::new(Log::without_lines());
        let UsageSockets { destroyed, .. } = UsageSockets::open().unwrap();
        table.state.borrow_mut().reports = Some(Reports::new(Arc::new(destroyed)));
        let identity = SocketIdentity { cookie: 7, inode: 8 };
        let request = table.begin_request().unwrap();
        assert!(!are_paused(&table), "a link may pass a socket");
        let expected = request.expect(identity);
        drop(request);
        assert!(!are_paused(&table), "the helper may report the start of the socket");
        drop(expected);
        assert!(are_paused(&table));
        let _expected = table.expect(identity).unwrap();
        assert!(!are_paused(&table));
    }

    /// Whether reports pause after unneeded ones for a long time.
    fn are_paused(table: &HandedConnections) -> bool {
        let mut state = table.state.borrow_mut();
        let other = TcpUsage { cookie: 9, was_established: true, sent_bytes: 0, received_bytes: 0 };
        let now = Instant::now();
        state.take_other(other, now);
        state.take_other(other, now + Duration::from_mins(1));
        state.reports.as_ref().unwrap().are_paused()
    }
}
