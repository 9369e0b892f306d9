//! Forwards the requests of runs (programs under `tacit run`) to a link server on another kernel.
//! Neither the runs nor this link server have a network. The other link server has a network.
//!
//! ```text
//!   run ── Hello ──> this server ── Hello ──> server with network      one stream for each run
//!   run ── Open ───> this server ── Open ───> server with network      one stream for each socket
//!       <── socket of a mirrored pair          Connected
//! ```
//!
//! A *mirrored pair* is two connected sockets in a namespace of the link
//! ([`Mirror`](crate::link::mirror::Mirror)). The run gets one of these sockets. This server keeps
//! the second socket, and moves bytes between the second socket and the server with network. So for
//! programs, the socket of the run works like any other socket of this kernel.
//!
//! If the stream of a run ends, the sockets of the run are lost. The sockets are also lost if the
//! server with network does not answer on this stream within three times [`ALIVE_INTERVAL`]. This
//! server then logs the loss, and ends the session (the run's use of the link). The run tries to
//! begin a new session.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;

use tacit_core::link_frame::LinkFrame;
use tacit_sys::datagram;
use tacit_sys::mirror::{DatagramPeer, MirrorPair};
use tacit_sys::socket;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::dial::Remote;
use super::mirrored_listener::{
    MirroredListener, ORDERS_MAX, adopted, is_bound_as_requested, moved,
};
use super::reply::{ended, write};
use super::session::{
    CountedSocket, PendingRequest, Session, admit, count, errno_of, log_refusal, spawn_until,
};
use super::state::OtherEnd;
use super::{ALIVE_INTERVAL, ServedLink, Server};
use crate::link::wire::LinkStream;
use crate::link::wire::datagrams::{self, MirrorEnd};
use crate::log::Event;
use crate::run::link::protocol::{
    LinkAnswer, LinkHello, LinkRequest, LinkWelcome, OpenKind, OpenRequest,
};

/// The frames without an answer after which the other server counts as ended.
const UNANSWERED_MAX: u32 = 2;

/// Serves a run: its session lasts as long as its stream and the stream to the other server.
pub(super) async fn serve_run(
    server: &Server,
    link: &Rc<ServedLink>,
    remote: &Remote,
    stream: &mut UnixStream,
    end: OtherEnd,
    hello: LinkHello,
) -> io::Result<()> {
    let begun = match remote.hello(&hello).await {
        Ok((far, welcome)) => {
            let session = Session::begin(server, link, end, &hello, Some(welcome.session));
            session.map(|session| (far, welcome, session))
        }
        Err(reason) => {
            log_refusal(server, link, &hello.run, &reason);
            Err(reason)
        }
    };
    let (mut far, welcome, session) = match begun {
        Ok(begun) => begun,
        Err(reason) => return write(stream, &LinkAnswer::Refused(reason), None).await,
    };
    let own = session.welcome(server);
    let sockets_max = own.sockets_max.min(welcome.sockets_max);
    let LinkWelcome { session: number, link: name, share, instance, .. } = own;
    let offered = LinkWelcome { session: number, link: name, sockets_max, share, ..welcome };
    let offered = LinkWelcome { remote: true, hands: false, passes: false, instance, ..offered };
    write(stream, &LinkAnswer::Welcome(offered), None).await?;
    tokio::select! {
        () = session.last(stream) => far.close().await,
        error = stay_alive(&mut far) => {
            let sockets = link.state.borrow().lost_with(session.number());
            let event = Event::new("link-sockets-lost").field("link", &link.name);
            let event = event.field("run", &hello.run).value("sockets", sockets);
            server.log.error(event.field("error", &error));
        }
    }
    Ok(())
}

/// Shows the other server that this one exists; returns when the other does not exist any more.
async fn stay_alive(far: &mut LinkStream) -> io::Error {
    let mut unanswered = 0;
    loop {
        match tokio::time::timeout(ALIVE_INTERVAL, far.receive_alive()).await {
            Ok(Ok(())) => unanswered = 0,
            Ok(Err(error)) => return error,
            Err(_) if unanswered >= UNANSWERED_MAX => return io::ErrorKind::TimedOut.into(),
            Err(_) => {
                unanswered += 1;
                if let Err(error) = far.send(LinkFrame::Alive).await {
                    return error;
                }
            }
        }
    }
}

/// Opens a socket through the other server, and passes one end of its mirrored pair on.
pub(super) async fn serve_socket(
    server: &Rc<Server>,
    link: &Rc<ServedLink>,
    remote: &Rc<Remote>,
    mut stream: UnixStream,
    end: &OtherEnd,
    request: OpenRequest,
) -> io::Result<()> {
    let pending = match admit(server, link, end, &request) {
        Ok(pending) => pending,
        Err(reason) => return write(&mut stream, &LinkAnswer::Refused(reason), None).await,
    };
    let reason = match request.kind {
        OpenKind::DatagramsOfAll => Some(
            "the rule has `answers = \"any\"`, which a link to another kernel does not support. \
             This link delivers datagrams only from addresses to which the program has sent \
             datagrams: remove `answers` from the rule",
        ),
        OpenKind::Handed => Some(
            "the two sides of the link have different kernels, and a socket cannot be \
             passed between kernels",
        ),
        _ => None,
    };
    if let Some(reason) = reason {
        return write(&mut stream, &LinkAnswer::Refused(reason.to_owned()), None).await;
    }
    let far_session = pending.far_session.unwrap_or_default();
    let kind = match request.kind {
        OpenKind::BoundAgain => OpenKind::Bound,
        kind => kind,
    };
    let sent = LinkRequest::Open(OpenRequest { session: far_session, kind, ..request });
    let mut over = pending.over.clone();
    let requested = tokio::select! {
        requested = remote.ask(&sent) => requested,
        () = ended(&stream) => return Ok(()),
        () = over.wait() => return Ok(()),
    };
    let (far, answer) = match requested {
        Ok(requested) => requested,
        Err(error) => {
            count(link, request.session, |run| run.refused += 1);
            let reason = error.to_string();
            return write(&mut stream, &LinkAnswer::Refused(reason), None).await;
        }
    };
    match answer {
        LinkAnswer::Connected(local)
            if kind == OpenKind::Bound && !is_bound_as_requested(local, request.address) =>
        {
            count(link, request.session, |run| run.refused += 1);
            let address = request.address;
            let reason = format!(
                "the link server on the other kernel was asked to bind {address}, but has bound \
                 {local} instead"
            );
            write(&mut stream, &LinkAnswer::Refused(reason), None).await
        }
        LinkAnswer::Connected(local) => {
            let opened = Opened { server, link, remote, request, far, local, pending };
            opened.pass(&mut stream).await
        }
        LinkAnswer::Failed(_) => {
            count(link, request.session, |run| run.failed += 1);
            write(&mut stream, &answer, None).await
        }
        LinkAnswer::Refused(_) => {
            count(link, request.session, |run| run.refused += 1);
            write(&mut stream, &answer, None).await
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A socket that the other server has opened.
struct Opened<'a> {
    server: &'a Rc<Server>,
    link: &'a Rc<ServedLink>,
    remote: &'a Rc<Remote>,
    request: OpenRequest,
    far: LinkStream,
    /// The address of the socket.
    local: SocketAddr,
    pending: PendingRequest,
}

impl Opened<'_> {
    /// Passes the socket of the run on, and moves its bytes in a task.
    async fn pass(self, stream: &mut UnixStream) -> io::Result<()> {
        let link = self.link;
        let request = self.request;
        let passed = match request.kind {
            // `serve_socket` has refused the second kind.
            OpenKind::Connected | OpenKind::Handed => self.pass_stream(stream).await,
            OpenKind::Bound => self.pass_bound(stream).await,
            OpenKind::BoundAgain => self.keep_bound(stream).await,
            OpenKind::Datagrams | OpenKind::DatagramsOfHost | OpenKind::DatagramsOfAll => {
                self.pass_datagrams(stream).await
            }
        };
        match passed {
            Ok(()) => {
                count(link, request.session, |run| run.opened += 1);
                Ok(())
            }
            Err(error) => {
                count(link, request.session, |run| run.failed += 1);
                write(stream, &LinkAnswer::Failed(errno_of(&error)), None).await
            }
        }
    }

    async fn pass_stream(self, stream: &mut UnixStream) -> io::Result<()> {
        let Self { link, remote, request, far, local, pending, .. } = self;
        let pair = remote.mirror.streams(local, request.address).await?;
        let MirrorPair { program, server } = pair;
        let counted =
            CountedSocket::new(link, program.as_fd(), request.session)?.described(&request);
        let socket = adopted(server)?;
        write(stream, &LinkAnswer::Socket, Some(program.as_fd())).await?;
        let over = pending.over.clone();
        spawn_until(over, counted, moved(Rc::clone(link), request.session, far, socket));
        Ok(())
    }

    async fn pass_datagrams(self, stream: &mut UnixStream) -> io::Result<()> {
        let Self { link, remote, request, far, local, pending, .. } = self;
        let peer = match request.kind {
            OpenKind::Datagrams => DatagramPeer::Connected,
            _ => DatagramPeer::Named,
        };
        let pair = remote.mirror.datagrams(local, request.address, peer).await?;
        let MirrorPair { program, server } = pair;
        let counted =
            CountedSocket::new(link, program.as_fd(), request.session)?.described(&request);
        let mut closing = remote.mirror.closing(program.as_fd())?;
        let own = SocketAddr::try_from(socket::local_address(program.as_fd())?)?;
        let mirror = Rc::clone(&remote.mirror);
        let send_error = move |packet: &[u8]| {
            if let Some(raw) = mirror.error_sender(own.ip()) {
                // As any ICMP message, it may be lost.
                let _ = datagram::send_packet(raw, packet, own.ip());
            }
        };
        let end = MirrorEnd::new(server, own, request.address, send_error)?;
        write(stream, &LinkAnswer::Socket, Some(program.as_fd())).await?;
        let over = pending.over.clone();
        spawn_until(over, counted, async move {
            tokio::select! {
                () = datagrams::run(far, end) => {}
                () = closing.wait() => {}
            }
        });
        Ok(())
    }

    async fn pass_bound(mut self, stream: &mut UnixStream) -> io::Result<()> {
        // The other side chooses the port of a request for any port.
        self.request.address.set_port(self.local.port());
        let socket = self.remote.mirror.bound(self.local).await?;
        let counted = CountedSocket::new(self.link, socket.as_fd(), self.request.session)?;
        let counted = counted.described(&self.request);
        let mut closing = self.remote.mirror.closing(socket.as_fd())?;
        let over = self.pending.over.clone();
        let serving = self.serve_bound();
        write(stream, &LinkAnswer::Socket, Some(socket.as_fd())).await?;
        spawn_until(over, counted, async move {
            tokio::select! {
                () = serving => {}
                () = closing.wait() => {}
            }
        });
        Ok(())
    }

    /// The run has its socket from an earlier server.
    async fn keep_bound(self, stream: &mut UnixStream) -> io::Result<()> {
        let counted = CountedSocket::new(self.link, self.far.fd(), self.request.session)?;
        let counted = counted.described(&self.request);
        let over = self.pending.over.clone();
        let serving = self.serve_bound();
        write(stream, &LinkAnswer::Done, None).await?;
        spawn_until(over, counted, serving);
        Ok(())
    }

    /// Serves a bound socket until its stream ends.
    fn serve_bound(self) -> impl Future<Output = ()> + use<> {
        let Self { server, link, remote, request, far, local, pending } = self;
        let (orders, pending_orders) = mpsc::channel(ORDERS_MAX);
        let key = (request.session, request.address);
        remote.add_bound(key, orders);
        let bound = MirroredListener {
            server: Rc::clone(server),
            link: Rc::clone(link),
            remote: Rc::clone(remote),
            key,
            local,
            far_session: pending.far_session.unwrap_or_default(),
            far,
            over: pending.over.clone(),
        };
        bound.serve(pending_orders)
    }
}
