//! Serves runs on the side without network, if the server that has the network runs on another
//! kernel. The requests of the runs are sent on to this server.
//!
//! ```text
//!   run ── Hello ──> this server ── Hello ──> server with network      one stream for each run
//!   run ── Open ───> this server ── Open ───> server with network      one stream for each socket
//!       <── socket of a mirrored pair          Connected
//! ```
//!
//! The socket that a run gets is one end of a pair in a namespace of its own ([`Mirror`]). The
//! other end stays here, and its bytes pass over the stream. So everything that programs can do
//! with the socket works as with a socket of this kernel.
//!
//! If the stream of a run ends, or does not answer in three times [`ALIVE_INTERVAL`], the sockets
//! of the run are lost. This server reports that, and ends the session of the run, which then tries
//! again.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::link_frame::LinkFrame;
use tacit_core::policy::LinkConnect;
use tacit_sys::mirror::{DatagramPeer, MirrorPair};
use tacit_sys::socket::{self, SocketAddress, StreamOptions, UnixAddress};
use tacit_sys::{datagram, vsock};
use tacit_tls::ClientSettings;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::reply::{ended, write};
use super::session::{
    CountedSocket, PendingRequest, RunEnd, Session, admit, count, errno_of, log_refusal,
};
use super::state::OtherEnd;
use super::{ALIVE_INTERVAL, ServedLink, Server};
use crate::link::mirror::Mirror;
use crate::link::wire::datagrams::{self, MirrorEnd};
use crate::link::wire::transfer::{self, StreamFate};
use crate::link::wire::{LinkStream, handshake};
use crate::log::Event;
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;
use crate::run::link::protocol::{
    ArrivedClient, BoundEvent, LinkAnswer, LinkHello, LinkRequest, LinkWelcome, ListenOrder,
    ListeningRequest, OpenKind, OpenRequest, TakeRequest, VERSION,
};

/// How long the other server may take to accept a stream. The client of a run waits longer.
const DIAL_WAIT_MAX: Duration = Duration::from_secs(4);
/// The orders for one bound socket that wait.
const ORDERS_MAX: usize = 8;

/// The frames without an answer after which the other server counts as ended.
const UNANSWERED_MAX: u32 = 2;

/// An order for a bound socket, and where the result goes.
type PendingOrder = (ListenOrder, oneshot::Sender<LinkAnswer>);

/// The server that has the network.
#[derive(Debug)]
pub(super) struct Remote {
    connect: LinkConnect,
    /// The TLS settings, if it is on another host.
    tls: RefCell<Option<Arc<ClientSettings>>>,
    mirror: Rc<Mirror>,
    /// The bound sockets, by session and address.
    bound: RefCell<HashMap<(u64, SocketAddr), mpsc::Sender<PendingOrder>>>,
}

impl Remote {
    pub(super) fn new(
        connect: LinkConnect,
        tls: Option<Arc<ClientSettings>>,
        mirror: Rc<Mirror>,
    ) -> Self {
        Self { connect, tls: RefCell::new(tls), mirror, bound: RefCell::default() }
    }

    /// The address, for displays.
    pub(super) fn target(&self) -> String {
        self.connect.to_string()
    }

    /// Uses other certificates from now on.
    pub(super) fn replace_tls(&self, tls: Option<Arc<ClientSettings>>) {
        *self.tls.borrow_mut() = tls;
    }

    /// Opens a stream.
    async fn dial(&self) -> io::Result<LinkStream> {
        let dialled = async {
            match &self.connect {
                LinkConnect::Tcp { host, port, .. } => self.dial_tcp(host, *port).await,
                LinkConnect::Unix(path) => {
                    let address = SocketAddress::from(UnixAddress::new(path.as_path())?);
                    let dialled = socket::dial(&address, &StreamOptions::default())?;
                    clear(dialled.socket)
                }
                LinkConnect::Vsock { cid, port } => {
                    let socket = StreamSocket::new(vsock::dial(*cid, *port)?, Security::Tls)?;
                    socket.writable().await?;
                    socket::take_error(socket.fd())?;
                    Ok(LinkStream::clear(socket, Vec::new()))
                }
            }
        };
        tokio::time::timeout(DIAL_WAIT_MAX, dialled)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| {
                io::Error::new(error.kind(), format!("cannot reach {}: {error}", self.connect))
            })
    }

    async fn dial_tcp(&self, host: &str, port: u16) -> io::Result<LinkStream> {
        let tls = self.tls.borrow().clone().ok_or(io::ErrorKind::NotConnected)?;
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in tokio::net::lookup_host((host, port)).await? {
            let to = SocketAddress::from(address);
            let socket = match socket::dial(&to, &StreamOptions::default().for_address(&to)) {
                Ok(dialled) => StreamSocket::new(dialled.socket, Security::Tls)?,
                Err(error) => {
                    last = error;
                    continue;
                }
            };
            match socket.wait_connected().await {
                Ok(()) => return handshake::connect(socket, &tls, host).await,
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a request on a new stream, and returns the stream with the answer.
    async fn ask(&self, request: &LinkRequest) -> io::Result<(LinkStream, LinkAnswer)> {
        let mut stream = self.dial().await?;
        stream.send_message(request).await?;
        let answer = stream.receive_message().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((stream, answer))
    }

    /// Begins a session; the reason if there is none.
    async fn hello(&self, hello: &LinkHello) -> Result<(LinkStream, LinkWelcome), String> {
        let request = LinkRequest::Hello(hello.clone());
        let asked = tokio::time::timeout(DIAL_WAIT_MAX, self.ask(&request)).await;
        let asked = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let (stream, answer) = asked.map_err(|error| {
            format!("{error}\n    fix: start `tacit link serve` on the side that has the network")
        })?;
        match answer {
            LinkAnswer::Welcome(welcome) if welcome.version == VERSION => Ok((stream, welcome)),
            LinkAnswer::Refused(reason) => Err(format!("{} refuses: {reason}", self.connect)),
            _ => Err(format!("{} does not answer as tacit of this version", self.connect)),
        }
    }

    /// Lets the other server listen at a bound socket, or not any more.
    pub(super) async fn set_listening(
        &self,
        stream: &mut UnixStream,
        request: ListeningRequest,
    ) -> io::Result<()> {
        let ListeningRequest { session, address, order } = request;
        let orders = self.bound.borrow().get(&(session, address)).cloned();
        let (back, done) = oneshot::channel();
        let answer = match orders {
            Some(orders) if orders.send((order, back)).await.is_ok() => done.await.ok(),
            _ => None,
        };
        let none = || LinkAnswer::Refused(format!("{address} is not bound through the link"));
        write(stream, &answer.unwrap_or_else(none), None).await
    }
}

fn clear(socket: OwnedFd) -> io::Result<LinkStream> {
    Ok(LinkStream::clear(StreamSocket::new(socket, Security::Tls)?, Vec::new()))
}

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
    let offered = LinkWelcome { remote: true, instance, ..offered };
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
    if request.kind == OpenKind::DatagramsOfAll {
        let reason = "a link to another kernel has no datagrams of other addresses: remove \
                      `answers` from the rule";
        return write(&mut stream, &LinkAnswer::Refused(reason.to_owned()), None).await;
    }
    let far_session = pending.far_session.unwrap_or_default();
    let kind = match request.kind {
        OpenKind::BoundAgain => OpenKind::Bound,
        kind => kind,
    };
    let sent = LinkRequest::Open(OpenRequest { session: far_session, kind, ..request });
    let mut over = pending.over.clone();
    let asked = tokio::select! {
        asked = remote.ask(&sent) => asked,
        () = ended(&stream) => return Ok(()),
        () = over.wait() => return Ok(()),
    };
    let (far, answer) = match asked {
        Ok(asked) => asked,
        Err(error) => {
            count(link, request.session, |run| run.refused += 1);
            let reason = error.to_string();
            return write(&mut stream, &LinkAnswer::Refused(reason), None).await;
        }
    };
    match answer {
        LinkAnswer::Connected(local) => {
            let opened = Opened { link, remote, request, far, local, pending };
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
            OpenKind::Connected => self.pass_stream(stream).await,
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
        let Self { link, remote, request, far, local, pending } = self;
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
        let Self { link, remote, request, far, local, pending } = self;
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

    async fn pass_bound(self, stream: &mut UnixStream) -> io::Result<()> {
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
        let Self { link, remote, request, far, pending, .. } = self;
        let (orders, pending_orders) = mpsc::channel(ORDERS_MAX);
        let key = (request.session, request.address);
        remote.bound.borrow_mut().insert(key, orders);
        let bound = MirroredListener {
            link: Rc::clone(link),
            remote: Rc::clone(remote),
            key,
            far_session: pending.far_session.unwrap_or_default(),
            far,
            over: pending.over.clone(),
        };
        bound.serve(pending_orders)
    }
}

/// Moves the bytes of a connection, and counts it if its stream fails.
async fn moved(link: Rc<ServedLink>, session: u64, far: LinkStream, socket: StreamSocket) {
    if transfer::run(far, socket).await == StreamFate::Lost {
        count(&link, session, |run| run.lost += 1);
    }
}

/// The server's end of a mirrored connection.
fn adopted(socket: OwnedFd) -> io::Result<StreamSocket> {
    socket::adopt(socket.as_fd(), &StreamOptions::default())?;
    StreamSocket::new(socket, Security::Clear)
}

/// Runs a task until it or its run has ended. The socket counts until then.
fn spawn_until(mut over: RunEnd, counted: CountedSocket, work: impl Future<Output = ()> + 'static) {
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = work => {}
            // Its sockets are dropped, and reset.
            () = over.wait() => {}
        }
        drop(counted);
    });
}

/// A socket at which a run listens, and the stream to the socket at which its clients arrive.
struct MirroredListener {
    link: Rc<ServedLink>,
    remote: Rc<Remote>,
    key: (u64, SocketAddr),
    far_session: u64,
    far: LinkStream,
    over: RunEnd,
}

impl Drop for MirroredListener {
    fn drop(&mut self) {
        self.remote.bound.borrow_mut().remove(&self.key);
    }
}

impl MirroredListener {
    /// Sends orders on, and takes clients, until the stream ends.
    async fn serve(mut self, mut orders: mpsc::Receiver<PendingOrder>) {
        let mut sent: VecDeque<oneshot::Sender<LinkAnswer>> = VecDeque::new();
        loop {
            tokio::select! {
                order = orders.recv(), if sent.len() < ORDERS_MAX => {
                    let Some((order, back)) = order else { return };
                    if self.far.send_message(&order).await.is_err() {
                        return;
                    }
                    sent.push_back(back);
                }
                event = self.far.receive_message::<BoundEvent>() => {
                    let answer = match event {
                        Ok(Some(BoundEvent::Arrived(client))) => {
                            self.take(client);
                            continue;
                        }
                        Ok(Some(BoundEvent::Done)) => LinkAnswer::Done,
                        Ok(Some(BoundEvent::Failed(errno))) => LinkAnswer::Failed(errno),
                        Ok(None) | Err(_) => return,
                    };
                    if let Some(back) = sent.pop_front() {
                        // The agent may have stopped waiting.
                        let _ = back.send(answer);
                    }
                }
            }
        }
    }

    /// Connects a client to the run, in a task.
    fn take(&self, client: ArrivedClient) {
        let link = Rc::clone(&self.link);
        let remote = Rc::clone(&self.remote);
        let over = self.over.clone();
        let (session, _) = self.key;
        let request = TakeRequest { session: self.far_session, ticket: client.ticket };
        tokio::task::spawn_local(async move {
            let ArrivedClient { peer, local, .. } = client;
            // If this fails, the other server drops the client.
            let Ok(socket) = remote.mirror.client(peer, local).await else { return };
            let Ok(counted) = CountedSocket::new(&link, socket.as_fd(), session) else { return };
            let Ok(socket) = adopted(socket) else { return };
            if let Ok((far, LinkAnswer::Connected(_))) =
                remote.ask(&LinkRequest::Take(request)).await
            {
                spawn_until(over, counted, moved(link, session, far, socket));
            }
        });
    }
}
