//! Counts the sessions and sockets of each run on a link server, and decides which requests of a
//! run the server serves. A *session* begins when a run begins to use the link.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use tacit_core::policy::LinkSharing;
use tacit_sys::handed;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::open::Reached;
use super::state::{OtherEnd, RunState};
use super::{ServedLink, Server, host_name};
use crate::clock::Rfc3339;
use crate::log::Event;
use crate::run::channel::read_frame;
use crate::run::link::protocol::{
    LinkHello, LinkRequest, LinkWelcome, OpenRequest, REQUEST_BYTES_MAX, RUN_BYTES_MAX, VERSION,
};

/// A run that uses a link, until this is dropped.
pub(super) struct Session<'a> {
    server: &'a Server,
    link: Rc<ServedLink>,
    session: u64,
    /// What is logged at the end.
    ended: Event,
}

impl<'a> Session<'a> {
    /// Begins the session of a run; the reason if the link refuses it. `far_session` is the number
    /// of the session at the server that has the network, if that is another server.
    pub(super) fn begin(
        server: &'a Server,
        link: &Rc<ServedLink>,
        end: OtherEnd,
        hello: &LinkHello,
        far_session: Option<u64>,
    ) -> Result<Self, String> {
        link.tls.check(&end).inspect_err(|reason| log_refusal(server, link, &hello.run, reason))?;
        check_hello(server, link, &end, hello)?;
        let pid = end.pid();
        let run = RunState {
            number: 0,
            name: hello.run.clone(),
            end,
            far_session,
            alive: watch::Sender::new(()),
            since: Rfc3339(SystemTime::now()),
            ended: None,
            opened: 0,
            failed: 0,
            refused: 0,
            lost: 0,
            sockets: 0,
            pending: 0,
        };
        let session = link.state.borrow_mut().begin(run).map_err(|error| error.to_string())?;
        let number = link.state.borrow().number(session);
        let about = |event: Event| {
            let event = event.field("link", &link.name).field("run", &hello.run);
            event.value("pid", pid).value("session", number)
        };
        server.log.info(about(Event::new("link-run-began")));
        let ended = about(Event::new("link-run-ended"));
        Ok(Self { server, link: Rc::clone(link), session, ended })
    }

    /// The number of the session.
    pub(super) fn number(&self) -> u64 {
        self.session
    }

    /// Wakes when the session has ended, also if the other side is no longer accepted.
    pub(super) fn over(&self) -> Option<RunEnd> {
        let mut state = self.link.state.borrow_mut();
        state.run(self.session).map(|run| RunEnd(run.alive.subscribe()))
    }

    /// What a server that has the network offers.
    pub(super) fn welcome(&self, server: &Server) -> LinkWelcome {
        let Reached { ipv4, ipv6 } = server.reached(&self.link.name);
        LinkWelcome {
            version: VERSION,
            link: self.link.name.clone(),
            session: self.session,
            ipv4,
            ipv6,
            sockets_max: sockets_max(server, &self.link),
            resolvers: server.offered_resolvers(&self.link.name),
            remote: false,
            hands: false,
            passes: false,
            share: shares(server, &self.link),
            instance: server.instance,
            host: host_name(),
            addresses: server.source_addresses(&self.link.name),
        }
    }

    /// Waits until the agent of the run closes its stream. Before that, it may report that the run
    /// has ended.
    pub(super) async fn last(&self, stream: &mut UnixStream) {
        while let Ok(Some(frame)) = read_frame::<LinkRequest>(stream, REQUEST_BYTES_MAX).await {
            let mut state = self.link.state.borrow_mut();
            match (frame.message, state.run(self.session)) {
                (LinkRequest::RunEnded, Some(run)) if shares(self.server, &self.link) => {
                    run.ended = Some(Rfc3339(SystemTime::now()));
                }
                _ => return,
            }
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        leave(&self.link, self.session);
        self.server.spares.close();
        self.server.log.info(self.ended.clone());
    }
}

/// Ends a session, also for clients that wait for a stream.
pub(super) fn leave(link: &ServedLink, session: u64) {
    link.state.borrow_mut().leave(session);
    let waiting = link.tickets.borrow_mut().remove_all_of(session);
    // They end here, which changes the counts.
    drop(waiting);
}

/// A request that may still become a socket, until this is dropped.
pub(super) struct PendingRequest {
    link: Rc<ServedLink>,
    session: u64,
    /// The session of the other server, if that has the network.
    pub(super) far_session: Option<u64>,
    /// Wakes when the run has ended.
    pub(super) over: RunEnd,
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        self.link.state.borrow_mut().settle(self.session);
    }
}

/// The place of a stream among those that wait for an answer, until this is dropped.
#[derive(Debug)]
pub(super) struct RequestPlace {
    of_link: OwnedSemaphorePermit,
    /// Its place among those of its host, if that has a certificate.
    _of_host: Option<OwnedSemaphorePermit>,
}

impl RequestPlace {
    pub(super) fn new(
        of_link: OwnedSemaphorePermit,
        of_host: Option<OwnedSemaphorePermit>,
    ) -> Self {
        Self { of_link, _of_host: of_host }
    }

    /// Gives the place back until [`StreamPlaces::again`].
    pub(super) fn give_back(self) -> StreamPlaces {
        StreamPlaces(Arc::clone(self.of_link.semaphore()))
    }
}

/// The places of a link, for a stream from this kernel that waits for its next request.
#[derive(Debug)]
pub(super) struct StreamPlaces(Arc<Semaphore>);

impl StreamPlaces {
    /// Waits for a place.
    pub(super) async fn again(self) -> io::Result<RequestPlace> {
        let place = self.0.acquire_owned().await.map_err(|_| io::ErrorKind::NotConnected)?;
        Ok(RequestPlace::new(place, None))
    }
}

/// Waits for the end of a run.
#[derive(Clone, Debug)]
pub(super) struct RunEnd(watch::Receiver<()>);

impl RunEnd {
    /// Waits until the run has ended.
    pub(super) async fn wait(&mut self) {
        while self.0.changed().await.is_ok() {}
    }
}

/// A socket that counts for its run, until this is dropped.
pub(super) struct CountedSocket {
    link: Rc<ServedLink>,
    cookie: u64,
}

impl CountedSocket {
    pub(super) fn new(
        link: &Rc<ServedLink>,
        socket: BorrowedFd<'_>,
        session: u64,
    ) -> io::Result<Self> {
        let cookie = handed::cookie(socket)?;
        link.state.borrow_mut().hold(cookie, session);
        Ok(Self { link: Rc::clone(link), cookie })
    }

    /// Stores its request, for displays.
    pub(super) fn described(self, request: &OpenRequest) -> Self {
        self.link.state.borrow_mut().describe(self.cookie, request);
        self
    }
}

impl Drop for CountedSocket {
    fn drop(&mut self) {
        self.link.state.borrow_mut().end(self.cookie);
    }
}

/// Runs a task until it or its run has ended. The socket counts until then.
pub(super) fn spawn_until(
    mut over: RunEnd,
    counted: CountedSocket,
    work: impl Future<Output = ()> + 'static,
) {
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = work => {}
            // Its sockets are dropped, and reset.
            () = over.wait() => {}
        }
        drop(counted);
    });
}

/// Changes a counter of a run, if the run still exists.
pub(super) fn count(link: &ServedLink, session: u64, add: fn(&mut RunState)) {
    if let Some(run) = link.state.borrow_mut().run(session) {
        add(run);
    }
}

/// The error number for the other side.
pub(super) fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error())
}

/// Whether the other side may have the socket; otherwise the reason.
pub(super) fn admit(
    server: &Server,
    link: &Rc<ServedLink>,
    end: &OtherEnd,
    request: &OpenRequest,
) -> Result<PendingRequest, String> {
    let room = check_room(server, link, request.session);
    let mut state = link.state.borrow_mut();
    let Some(run) = state.run(request.session).filter(|run| run.end.is_same(end)) else {
        return Err("the link server does not know this run: start the run again".to_owned());
    };
    let trusted = link.tls.check(end);
    let judged = match link.remote {
        // The server that has the network decides.
        Some(_) => Ok(()),
        None => server.judge(&link.name, request),
    };
    if let Err(reason) = trusted.and(judged).and(room) {
        run.refused += 1;
        log_refusal(server, link, &run.name, &reason);
        return Err(reason);
    }
    let far_session = run.far_session;
    let over = RunEnd(run.alive.subscribe());
    state.expect(request.session);
    Ok(PendingRequest { link: Rc::clone(link), session: request.session, far_session, over })
}

/// Whether the run of a session may have another socket; otherwise the reason.
pub(super) fn check_room(server: &Server, link: &ServedLink, session: u64) -> Result<(), String> {
    let state = link.state.borrow();
    let sockets = state.sockets();
    let name = &link.name;
    if sockets >= sockets_max(server, link) {
        return Err(format!(
            "the link already has {sockets} open sockets, and this is the limit: raise `sockets` \
             in [link.{name}]"
        ));
    }
    let policy = server.policy.borrow();
    let per_host = policy.links.get(name).and_then(|link| link.sockets_per_host);
    match per_host.zip(state.sockets_of_host(session)) {
        Some((max, sockets)) if sockets >= max => Err(format!(
            "the host on the other side of the link already has {sockets} open sockets, and this \
             is the limit for one host: raise `sockets-per-host` in [link.{name}]"
        )),
        _ => Ok(()),
    }
}

/// Counts a client that has arrived at a bound socket of a run as a request; `None` if the run has
/// ended, or the link has no more sockets.
pub(super) fn admit_client(
    server: &Server,
    link: &Rc<ServedLink>,
    session: u64,
) -> Option<PendingRequest> {
    check_room(server, link, session).ok()?;
    let mut state = link.state.borrow_mut();
    let run = state.run(session)?;
    let far_session = run.far_session;
    let over = RunEnd(run.alive.subscribe());
    state.expect(session);
    Some(PendingRequest { link: Rc::clone(link), session, far_session, over })
}

/// The end of the run of a session, if the other side may use the session.
pub(super) fn run_end(link: &ServedLink, end: &OtherEnd, session: u64) -> Option<RunEnd> {
    link.tls.check(end).ok()?;
    let mut state = link.state.borrow_mut();
    let run = state.run(session).filter(|run| run.end.is_same(end))?;
    Some(RunEnd(run.alive.subscribe()))
}

/// Logs that a run did not get a socket.
pub(super) fn log_refusal(server: &Server, link: &ServedLink, run: &str, reason: &str) {
    let event = Event::new("link-refused").field("link", &link.name).field("run", run);
    let key = format!("link-refused {}", link.name);
    server.log.warn(event.field("reason", &reason).limited(key));
}

/// Logs that a socket or session of a run was closed, because the policy or certificates have
/// changed.
pub(super) fn log_closed(server: &Server, link: &ServedLink, run: &str, reason: &str) {
    let event = Event::new("link-closed").field("link", &link.name).field("run", run);
    let key = format!("link-closed {}", link.name);
    server.log.warn(event.field("reason", &reason).limited(key));
}

/// Whether connections outlive their runs.
pub(super) fn shares(server: &Server, link: &ServedLink) -> bool {
    let policy = server.policy.borrow();
    policy.links.get(&link.name).is_some_and(|link| link.sharing == LinkSharing::Shared)
}

pub(super) fn sockets_max(server: &Server, link: &ServedLink) -> usize {
    server.policy.borrow().links.get(&link.name).map_or(0, |link| link.sockets_max)
}

/// The maximum number of runs of a link.
pub(super) fn runs_max(server: &Server, link: &ServedLink) -> usize {
    server.policy.borrow().links.get(&link.name).map_or(0, |link| link.runs_max)
}

/// The maximum number of those of one host with a certificate. The rest is for other hosts.
fn runs_of_host_max(runs_max: usize) -> usize {
    (runs_max / 4 * 3).max(1)
}

fn check_hello(
    server: &Server,
    link: &ServedLink,
    end: &OtherEnd,
    hello: &LinkHello,
) -> Result<(), String> {
    if hello.version != VERSION {
        return Err(format!(
            "the run uses protocol version {}, but the server uses version {VERSION}\n    fix: \
             use the same version of tacit on both sides",
            hello.version
        ));
    }
    let name = &hello.run;
    if name.is_empty() || name.len() > RUN_BYTES_MAX || name.contains(char::is_control) {
        return Err(format!("the name of the run must have 1 to {RUN_BYTES_MAX} bytes"));
    }
    let max = runs_max(server, link);
    if link.state.borrow().runs() >= max {
        return Err(format!(
            "the limit of {max} runs of the link is reached: end a run, or raise `runs` in \
             [link.{name}]",
            name = link.name
        ));
    }
    let is_host = matches!(end, OtherEnd::Host { .. });
    let of_host = runs_of_host_max(max);
    if is_host && link.state.borrow().count_runs_of(end) >= of_host {
        return Err(format!(
            "the host on the other side of the link already has {of_host} runs. The limit for one \
             host is three quarters of `runs`: end a run of this host, or raise `runs` in \
             [link.{name}] (now {max})",
            name = link.name
        ));
    }
    Ok(())
}
