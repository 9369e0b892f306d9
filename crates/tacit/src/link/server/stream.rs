//! Serves one connection to the UNIX socket of a link.
//!
//! A process on the same kernel sends a request, and this module sends the answer. The link server
//! of another kernel sends frames instead. `framed.rs` serves connections with frames.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use tacit_core::link_frame::begins_frames;
use tacit_sys::netlink::usage::UsageSockets;
use tacit_sys::socket::PeerCredentials;
use tacit_sys::{process, socket};
use tokio::net::UnixStream;

use super::open::{PortedRequest, Reached};
use super::opened::{write_failed, write_opened};
use super::pass::serve_pass;
use super::reply::{ended, write, write_with};
use super::sandbox::{self, ServerSandbox};
use super::session::{RequestPlace, Session, admit, run_end, runs_max, shares, sockets_max};
use super::state::OtherEnd;
use super::{
    REQUEST_WAIT_MAX, STREAMS_MAX, ServedLink, Server, control, framed, host_name, open, remote,
};
use crate::link::wire::LinkStream;
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;
use crate::run::channel::read_first;
use crate::run::link::protocol::{
    LinkAnswer, LinkControl, LinkHello, LinkRequest, LinkStatus, LinkWelcome, OpenRequest,
    REQUEST_BYTES_MAX,
};
use crate::run::protocol::Frame;

/// Serves a stream to its end. `place` is its place among the streams that wait for an answer.
pub(super) async fn serve(
    server: Rc<Server>,
    link: Rc<ServedLink>,
    stream: UnixStream,
    place: RequestPlace,
) {
    // An error concerns this stream only, and its other side sees the end of the stream.
    let _ = answer(&server, &link, stream, place).await;
}

async fn answer(
    server: &Rc<Server>,
    link: &Rc<ServedLink>,
    mut stream: UnixStream,
    place: RequestPlace,
) -> io::Result<()> {
    let PeerCredentials { pid, uid } = socket::peer_credentials(stream.as_fd())?;
    let end = OtherEnd::Process { uid, pid: pid.unwrap_or_default() };
    if uid != process::effective_user() && uid != 0 {
        let reason = "the link belongs to another user\n    fix: run `tacit link serve` and \
                      `tacit run` as the same user, in the same user namespace";
        return write(&mut stream, &LinkAnswer::Refused(reason.to_owned()), None).await;
    }
    let request = async {
        let first = read_first(&stream).await?;
        if first.bytes.first().copied().is_some_and(begins_frames) {
            return Ok(StreamStart::OfOtherKernel(first.bytes));
        }
        first.frame(&mut stream, REQUEST_BYTES_MAX).await.map(StreamStart::OfThisKernel)
    };
    let request = tokio::time::timeout(REQUEST_WAIT_MAX, request).await;
    let Frame { message, descriptors } = match request.map_err(|_| io::ErrorKind::TimedOut)?? {
        StreamStart::OfThisKernel(Some(frame)) => frame,
        StreamStart::OfThisKernel(None) => return Ok(()),
        StreamStart::OfOtherKernel(received) => {
            let socket = OwnedFd::from(stream.into_std()?);
            let stream = LinkStream::clear(StreamSocket::new(socket, Security::Tls)?, received);
            framed::serve(server, link, stream, end, place).await;
            return Ok(());
        }
    };
    match (message, &link.remote) {
        (LinkRequest::Hello(hello), None) => {
            drop(place);
            serve_run(server, link, &mut stream, end, hello).await
        }
        (LinkRequest::Hello(hello), Some(remote)) => {
            drop(place);
            remote::serve_run(server, link, remote, &mut stream, end, hello).await
        }
        (message @ (LinkRequest::Open(_) | LinkRequest::Pass(_)), None) => {
            let first = Frame { message, descriptors };
            serve_sockets(server, link, &mut stream, &end, first, place).await
        }
        (LinkRequest::Open(request), Some(remote)) => {
            remote::serve_socket(server, link, remote, stream, &end, request).await
        }
        (LinkRequest::Usage(session), None) => serve_usage(link, &mut stream, &end, session).await,
        (LinkRequest::Listening(request), Some(remote)) => {
            remote.set_listening(&mut stream, request).await
        }
        (
            LinkRequest::Pass(_)
            | LinkRequest::Usage(_)
            | LinkRequest::Listening(_)
            | LinkRequest::Take(_)
            | LinkRequest::RunEnded,
            _,
        ) => {
            let reason = "the link server does not support this request".to_owned();
            write(&mut stream, &LinkAnswer::Refused(reason), None).await
        }
        (LinkRequest::Status, _) => {
            write(&mut stream, &LinkAnswer::Status(Box::new(status(server, link))), None).await
        }
        (LinkRequest::Control(request), _) => {
            serve_operator(server, link, &mut stream, request).await
        }
    }
}

/// What a stream begins with.
enum StreamStart {
    /// A request; `None` if the stream has ended.
    OfThisKernel(Option<Frame<LinkRequest>>),
    /// Frames of another kernel, of which these bytes were read.
    OfOtherKernel(Vec<u8>),
}

/// Carries out a request of an operator.
async fn serve_operator(
    server: &Server,
    link: &ServedLink,
    stream: &mut UnixStream,
    request: LinkControl,
) -> io::Result<()> {
    control::obey(link, request);
    let answer = match request {
        LinkControl::Sockets => LinkAnswer::Sockets(link.state.borrow().shown_sockets()),
        _ => LinkAnswer::Status(Box::new(status(server, link))),
    };
    write(stream, &answer, None).await?;
    control::conclude(server, link, request);
    Ok(())
}

/// Serves a run: its session lasts as long as the stream.
async fn serve_run(
    server: &Server,
    link: &Rc<ServedLink>,
    stream: &mut UnixStream,
    end: OtherEnd,
    hello: LinkHello,
) -> io::Result<()> {
    let session = match Session::begin(server, link, end, &hello, None) {
        Ok(session) => session,
        Err(reason) => return write(stream, &LinkAnswer::Refused(reason), None).await,
    };
    let hands = server.hands;
    let welcome = LinkWelcome { hands, passes: hands, ..session.welcome(server) };
    write(stream, &LinkAnswer::Welcome(welcome), None).await?;
    session.last(stream).await;
    Ok(())
}

/// Passes the sockets on with which an agent reads the usage of sockets.
async fn serve_usage(
    link: &Rc<ServedLink>,
    stream: &mut UnixStream,
    end: &OtherEnd,
    session: u64,
) -> io::Result<()> {
    if run_end(link, end, session).is_none() {
        let reason = "the link server does not know this run".to_owned();
        return write(stream, &LinkAnswer::Refused(reason), None).await;
    }
    let UsageSockets { destroyed, diagnosis } = UsageSockets::open()?;
    write_with(stream, &LinkAnswer::Usage, &[destroyed.as_fd(), diagnosis.as_fd()]).await
}

/// Serves requests for sockets, one after the other, until the other side closes the stream or has
/// no request for [`REQUEST_WAIT_MAX`].
async fn serve_sockets(
    server: &Server,
    link: &Rc<ServedLink>,
    stream: &mut UnixStream,
    end: &OtherEnd,
    first: Frame<LinkRequest>,
    mut place: RequestPlace,
) -> io::Result<()> {
    let mut frame = first;
    loop {
        match (frame.message, frame.descriptors.pop()) {
            (LinkRequest::Open(request), _) => {
                serve_socket(server, link, stream, end, request).await?;
            }
            (LinkRequest::Pass(request), Some(channel)) => {
                serve_pass(server, link, stream, end, request, channel).await?;
            }
            _ => return Ok(()),
        }
        // Without a place for another idle stream, the other side connects again.
        let Ok(idle) = Arc::clone(&link.idle_streams).try_acquire_owned() else { return Ok(()) };
        let places = place.give_back();
        let received = tokio::time::timeout(REQUEST_WAIT_MAX, read_first(stream)).await;
        let received = received.map_err(|_| io::ErrorKind::TimedOut)??;
        drop(idle);
        place = places.again().await?;
        let next = received.frame::<LinkRequest>(stream, REQUEST_BYTES_MAX);
        let next = tokio::time::timeout(REQUEST_WAIT_MAX, next).await;
        let next = next.map_err(|_| io::ErrorKind::TimedOut)??;
        let Some(next) = next else { return Ok(()) };
        frame = next;
    }
}

/// Opens a socket, and passes it on.
async fn serve_socket(
    server: &Server,
    link: &Rc<ServedLink>,
    stream: &mut UnixStream,
    end: &OtherEnd,
    request: OpenRequest,
) -> io::Result<()> {
    let PortedRequest { request, socket } = match server.with_port(&link.name, request) {
        Ok(ported) => ported,
        Err(error) => return write_failed(server, link, stream, &request, &error).await,
    };
    let denied = framed::denied_by_reload(server, link, request);
    let pending = match admit(server, link, end, &request) {
        Ok(pending) => pending,
        Err(reason) => return write(stream, &LinkAnswer::Refused(reason), None).await,
    };
    let opening = async {
        match socket {
            Some(socket) => Ok(Arc::new(socket)),
            None => open::open(&request, server.local_for(&link.name, request.address)).await,
        }
    };
    let opened = tokio::select! {
        biased;
        reason = denied => return write(stream, &LinkAnswer::Refused(reason), None).await,
        opened = opening => opened,
        // The other side has given up, and does not need the socket.
        () = ended(stream) => return Err(io::ErrorKind::ConnectionAborted.into()),
    };
    match opened {
        Ok(socket) => write_opened(server, link, stream, &request, pending, &socket).await,
        Err(error) => write_failed(server, link, stream, &request, &error).await,
    }
}

fn status(server: &Server, link: &ServedLink) -> LinkStatus {
    let Reached { ipv4, ipv6 } = server.reached(&link.name);
    let state = link.state.borrow();
    LinkStatus {
        name: link.name.clone(),
        path: link.path.clone(),
        pid: std::process::id(),
        policy: server.file.clone(),
        since: server.since,
        sockets_max: sockets_max(server, link),
        resolvers: server.offered_resolvers(&link.name),
        ipv4,
        ipv6,
        sockets: state.sockets(),
        host: host_name(),
        addresses: server.source_addresses(&link.name),
        runs_max: runs_max(server, link),
        requests: state.pending(),
        requests_max: STREAMS_MAX,
        opened: state.totals().opened,
        failed: state.totals().failed,
        refused: state.totals().refused,
        trace: link.switches.is_traced(),
        share: shares(server, link),
        files_max: server.files_max,
        sandbox: server.sandbox.as_ref().map_or_else(sandbox::shown_off, ServerSandbox::shown),
        runs: state.shown(),
        tcp: link.tcp,
        vsock: link.vsock.map(|at| at.to_string()),
        connect: link.remote.as_ref().map(|remote| remote.target()),
    }
}
