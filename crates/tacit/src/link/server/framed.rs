//! Serves one stream from the link server of another kernel (the *remote server*). The runs of the
//! remote kernel have no network, so this link server opens sockets in its own network for them.
//!
//! A *session* belongs to one run on the remote kernel. A *ticket* is the number of a client that
//! has connected to a bound socket of the run. The remote server opens a stream for this client,
//! and sends the ticket. Each stream begins with one request:
//!
//! ```text
//!   Hello ──> new session, until the stream ends or is silent for ALIVE_WAIT_MAX
//!   Open  ──> policy rules ──> socket, connect ──> bytes of the socket
//!   Open  ──> policy rules ──> socket, bind ──> events, a ticket for each client
//!   Take  ──> ticket ──> bytes of the client
//! ```
//!
//! When a session ends, this server closes all sockets of the session. When a new policy denies a
//! socket, this server closes the socket, even if the socket is still connecting.
//!
//! The limits are in `mod.rs` and `tickets.rs`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use tacit_sys::socket::{self, AcceptedSocket};
use tacit_sys::watch::{Watched, watch};
use tokio::io::Interest;

use super::open::PortedRequest;
use super::session::{
    CountedSocket, PendingRequest, RequestPlace, Session, admit, check_room, count, errno_of,
    log_closed, run_end,
};
use super::state::OtherEnd;
use super::tickets::{TICKET_WAIT_MAX, Ticket, WaitingClient};
use super::{ALIVE_WAIT_MAX, REQUEST_WAIT_MAX, ServedLink, Server, control, open};
use crate::link::wire::datagrams::{self, NetworkEnd};
use crate::link::wire::{LinkStream, transfer};
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;
use crate::run::link::protocol::{
    ArrivedClient, BoundEvent, LinkAnswer, LinkHello, LinkRequest, ListenOrder, OpenKind,
    OpenRequest, TakeRequest,
};

/// Serves a stream to its end. `place` is its place among the streams that wait for an answer.
pub(super) async fn serve(
    server: &Rc<Server>,
    link: &Rc<ServedLink>,
    stream: LinkStream,
    end: OtherEnd,
    place: RequestPlace,
) {
    // An error concerns this stream only, and its other side sees the end of the stream.
    let _ = answer(server, link, stream, end, place).await;
}

async fn answer(
    server: &Rc<Server>,
    link: &Rc<ServedLink>,
    mut stream: LinkStream,
    end: OtherEnd,
    place: RequestPlace,
) -> io::Result<()> {
    let request = stream.receive_message::<LinkRequest>();
    let request = tokio::time::timeout(REQUEST_WAIT_MAX, request).await;
    let Some(request) = request.map_err(|_| io::ErrorKind::TimedOut)?? else { return Ok(()) };
    match (request, &link.remote) {
        (LinkRequest::Hello(hello), None) => {
            drop(place);
            serve_run(server, link, stream, end, hello).await
        }
        (LinkRequest::Open(request), None) => {
            serve_socket(server, link, stream, &end, request, place).await
        }
        (LinkRequest::Take(request), None) => {
            drop(place);
            serve_client(server, link, stream, &end, request).await
        }
        _ => refuse(&mut stream, "the link server does not support this request".to_owned()).await,
    }
}

async fn refuse(stream: &mut LinkStream, reason: String) -> io::Result<()> {
    stream.send_message(&LinkAnswer::Refused(reason)).await?;
    stream.close().await;
    Ok(())
}

/// Serves a run: its session lasts as long as the stream.
async fn serve_run(
    server: &Server,
    link: &Rc<ServedLink>,
    mut stream: LinkStream,
    end: OtherEnd,
    hello: LinkHello,
) -> io::Result<()> {
    let session = match Session::begin(server, link, end, &hello, None) {
        Ok(session) => session,
        Err(reason) => return refuse(&mut stream, reason).await,
    };
    let Some(mut over) = session.over() else { return Ok(()) };
    let alive = async {
        stream.send_message(&LinkAnswer::Welcome(session.welcome(server))).await?;
        while let Ok(alive) = tokio::time::timeout(ALIVE_WAIT_MAX, stream.answer_alive()).await {
            alive?;
        }
        Ok(())
    };
    tokio::select! {
        alive = alive => alive,
        () = over.wait() => Ok(()),
    }
}

/// Opens a socket, and moves its bytes until it ends or its run has ended.
async fn serve_socket(
    server: &Server,
    link: &Rc<ServedLink>,
    mut stream: LinkStream,
    end: &OtherEnd,
    request: OpenRequest,
    place: RequestPlace,
) -> io::Result<()> {
    let Some(kind) = kind_between_kernels(request.kind) else {
        let reason = "a link between two kernels cannot open this kind of socket";
        return refuse(&mut stream, reason.to_owned()).await;
    };
    let request = OpenRequest { kind, ..request };
    let PortedRequest { request, socket } = match server.with_port(&link.name, request) {
        Ok(ported) => ported,
        Err(error) => return fail(server, link, &mut stream, &request, &error).await,
    };
    let denied = denied_by_reload(server, link, request);
    let pending = match admit(server, link, end, &request) {
        Ok(pending) => pending,
        Err(reason) => return refuse(&mut stream, reason).await,
    };
    let mut over = pending.over.clone();
    let opening = Opening { server, link, stream, end, request, socket, pending, place };
    tokio::select! {
        served = opening.serve() => served,
        // The sockets are dropped, and reset.
        () = over.wait() => Ok(()),
        _ = denied => Ok(()),
    }
}

/// A permitted request of another kernel for a socket.
struct Opening<'a> {
    server: &'a Server,
    link: &'a Rc<ServedLink>,
    stream: LinkStream,
    end: &'a OtherEnd,
    request: OpenRequest,
    /// The socket, if it was opened already.
    socket: Option<OwnedFd>,
    pending: PendingRequest,
    place: RequestPlace,
}

/// Reports an error of the kernel.
async fn fail(
    server: &Server,
    link: &ServedLink,
    stream: &mut LinkStream,
    request: &OpenRequest,
    error: &io::Error,
) -> io::Result<()> {
    control::trace(server, link, request, Err(error));
    count(link, request.session, |run| run.failed += 1);
    stream.send_message(&LinkAnswer::Failed(errno_of(error))).await?;
    stream.close().await;
    Ok(())
}

impl Opening<'_> {
    /// Opens the socket, and moves its bytes to its end.
    async fn serve(self) -> io::Result<()> {
        let Self { server, link, mut stream, end, request, socket, pending, place } = self;
        let opening = async {
            match socket {
                Some(socket) => Ok(Arc::new(socket)),
                None => open::open(&request, server.local_for(&link.name, request.address)).await,
            }
        };
        let opened = tokio::select! {
            opened = opening => opened,
            // The other side has given up: it sends nothing before the answer.
            _ = stream.receive_message::<()>() => return Ok(()),
        };
        let socket = match opened {
            Ok(socket) => socket,
            Err(error) => return fail(server, link, &mut stream, &request, &error).await,
        };
        control::trace(server, link, &request, Ok(()));
        let counted = CountedSocket::new(link, socket.as_fd(), request.session)?;
        let _counted = counted.described(&request);
        count(link, request.session, |run| run.opened += 1);
        drop::<(PendingRequest, RequestPlace)>((pending, place));
        let local = SocketAddr::try_from(socket::local_address(socket.as_fd())?)?;
        stream.send_message(&LinkAnswer::Connected(local)).await?;
        match request.kind {
            OpenKind::Connected | OpenKind::Handed => {
                let socket = Arc::into_inner(socket).ok_or(io::ErrorKind::Other)?;
                // The server of the run reports that a stream was lost.
                let _ = transfer::run(stream, StreamSocket::new(socket, Security::Clear)?).await;
            }
            OpenKind::Bound | OpenKind::BoundAgain => {
                let bound = BoundSocket { server, link, request, end, stream };
                bound.serve(socket).await?;
            }
            OpenKind::Datagrams | OpenKind::DatagramsOfHost | OpenKind::DatagramsOfAll => {
                datagrams::run(stream, NetworkEnd::new(socket)?).await;
            }
        }
        Ok(())
    }
}

/// Waits until a policy that was installed after this call denies a socket, also one that is still
/// being opened; returns the reason.
pub(super) fn denied_by_reload(
    server: &Server,
    link: &ServedLink,
    request: OpenRequest,
) -> impl Future<Output = String> {
    // Before the first poll, because a reload wakes only those that wait already.
    let mut reloaded = server.reloaded.notified();
    async move {
        loop {
            reloaded.await;
            if let Err(reason) = server.judge(&link.name, &request) {
                let name = link.state.borrow_mut().run(request.session).map(|run| run.name.clone());
                log_closed(server, link, &name.unwrap_or_default(), &reason);
                return reason;
            }
            reloaded = server.reloaded.notified();
        }
    }
}

/// The kind of the socket that is opened for another kernel, if it may have this kind. Datagrams
/// come only from the address and port to which they were sent.
fn kind_between_kernels(kind: OpenKind) -> Option<OpenKind> {
    match kind {
        OpenKind::Connected | OpenKind::Bound => Some(kind),
        OpenKind::Datagrams | OpenKind::DatagramsOfHost => Some(OpenKind::Datagrams),
        // Only the server without network needs these kinds.
        OpenKind::Handed | OpenKind::BoundAgain | OpenKind::DatagramsOfAll => None,
    }
}

/// A bound socket of another kernel.
struct BoundSocket<'a> {
    server: &'a Server,
    link: &'a Rc<ServedLink>,
    request: OpenRequest,
    end: &'a OtherEnd,
    stream: LinkStream,
}

impl BoundSocket<'_> {
    /// Obeys orders and reports clients until the stream ends.
    async fn serve(mut self, socket: Arc<OwnedFd>) -> io::Result<()> {
        let mut is_listening = false;
        let mut watched: Option<Watched> = None;
        loop {
            tokio::select! {
                order = self.stream.receive_message::<ListenOrder>() => {
                    let Some(order) = order? else { return Ok(()) };
                    let done = match order {
                        ListenOrder::Listen => socket::resume_listening(socket.as_fd()),
                        ListenOrder::Suspend => socket::suspend_listening(socket.as_fd()),
                    };
                    is_listening = done.is_ok() && order == ListenOrder::Listen;
                    // A socket that did not listen was ready in another sense.
                    watched = None;
                    if is_listening {
                        watched = Some(watch(Arc::clone(&socket), Interest::READABLE)?);
                    }
                    let event = match done {
                        Ok(()) => BoundEvent::Done,
                        Err(error) => BoundEvent::Failed(errno_of(&error)),
                    };
                    self.stream.send_message(&event).await?;
                }
                accepted = accept(watched.as_ref()), if is_listening => {
                    let accepted = accepted?;
                    self.report(accepted).await?;
                }
            }
        }
    }

    /// Reports a client. A client for which there is no room is dropped.
    async fn report(&mut self, client: AcceptedSocket) -> io::Result<()> {
        let AcceptedSocket { socket, peer } = client;
        let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else {
            return Ok(());
        };
        let local = SocketAddr::try_from(socket::local_address(socket.as_fd())?)?;
        let session = self.request.session;
        if check_room(self.server, self.link, session).is_err() {
            return Ok(());
        }
        let counted = CountedSocket::new(self.link, socket.as_fd(), session)?;
        let client = WaitingClient { socket, request: self.request, local, counted };
        let ticket = Ticket { session, end: self.end.clone(), client };
        let Some(number) = add_ticket(self.link, ticket)? else { return Ok(()) };
        let arrived = ArrivedClient { ticket: number, peer, local };
        self.stream.send_message(&BoundEvent::Arrived(arrived)).await
    }
}

/// Lets a client wait for a stream; returns its number, or `None` if too many wait.
fn add_ticket(link: &Rc<ServedLink>, ticket: Ticket<WaitingClient>) -> io::Result<Option<u64>> {
    let Some(number) = link.tickets.borrow_mut().add(ticket)? else { return Ok(None) };
    let link = Rc::downgrade(link);
    tokio::task::spawn_local(async move {
        tokio::time::sleep(TICKET_WAIT_MAX).await;
        if let Some(link) = link.upgrade() {
            let expired = link.tickets.borrow_mut().expire(number);
            drop(expired);
        }
    });
    Ok(Some(number))
}

async fn accept(listener: Option<&Watched>) -> io::Result<AcceptedSocket> {
    let Some(listener) = listener else { return std::future::pending().await };
    loop {
        let mut ready = listener.readable().await?;
        match socket::accept(listener.get_ref().as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) if socket::is_shortage(&error) => {
                tokio::time::sleep(super::ACCEPT_PAUSE).await;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            // The error concerns only this connection.
            Err(_) => {}
            Ok(accepted) => return Ok(accepted),
        }
    }
}

/// Moves the bytes of a client that has arrived.
async fn serve_client(
    server: &Server,
    link: &Rc<ServedLink>,
    mut stream: LinkStream,
    end: &OtherEnd,
    request: TakeRequest,
) -> io::Result<()> {
    let over = run_end(link, end, request.session);
    let client = over.and_then(|over| {
        let client = link.tickets.borrow_mut().take(request.session, request.ticket)?;
        Some((over, client))
    });
    let Some((mut over, client)) = client else {
        return refuse(
            &mut stream,
            "the client's connection to the bound socket is already closed".to_owned(),
        )
        .await;
    };
    let WaitingClient { socket, request: bound, local, counted: _counted } = client;
    let denied = denied_by_reload(server, link, bound);
    // A new policy may deny the bound socket while the client waits.
    if let Err(reason) = server.judge(&link.name, &bound) {
        return refuse(&mut stream, reason).await;
    }
    let moved = async {
        stream.send_message(&LinkAnswer::Connected(local)).await?;
        let socket = StreamSocket::new(socket, Security::Clear)?;
        let _ = transfer::run(stream, socket).await;
        Ok(())
    };
    tokio::select! {
        moved = moved => moved,
        () = over.wait() => Ok(()),
        _ = denied => Ok(()),
    }
}
