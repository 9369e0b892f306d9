//! Opens streams to the link server on another kernel, and sends requests to this server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::policy::LinkConnect;
use tacit_sys::socket::{self, SocketAddress, StreamOptions, UnixAddress};
use tacit_sys::vsock;
use tacit_tls::ClientSettings;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use super::reply::write;
use crate::link::mirror::Mirror;
use crate::link::wire::{LinkStream, handshake};
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;
use crate::run::link::protocol::{
    LinkAnswer, LinkHello, LinkRequest, LinkWelcome, ListenOrder, ListeningRequest, VERSION,
};

/// How long the other server may take to accept a stream. The client of a run waits longer.
const DIAL_WAIT_MAX: Duration = Duration::from_secs(4);

/// An order for a bound socket, and where the result goes.
pub(super) type PendingOrder = (ListenOrder, oneshot::Sender<LinkAnswer>);

/// The server that has the network.
#[derive(Debug)]
pub(super) struct Remote {
    connect: LinkConnect,
    /// The TLS settings, if it is on another host.
    tls: RefCell<Option<Arc<ClientSettings>>>,
    pub(super) mirror: Rc<Mirror>,
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
                LinkConnect::Vsock(at) => {
                    let socket = StreamSocket::new(vsock::dial(at.cid, at.port)?, Security::Tls)?;
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
    pub(super) async fn ask(&self, request: &LinkRequest) -> io::Result<(LinkStream, LinkAnswer)> {
        let mut stream = self.dial().await?;
        stream.send_message(request).await?;
        let answer = stream.receive_message().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok((stream, answer))
    }

    /// Begins a session; the reason if there is none.
    pub(super) async fn hello(
        &self,
        hello: &LinkHello,
    ) -> Result<(LinkStream, LinkWelcome), String> {
        let request = LinkRequest::Hello(hello.clone());
        let requested = tokio::time::timeout(DIAL_WAIT_MAX, self.ask(&request)).await;
        let requested = requested.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let (stream, answer) = requested.map_err(|error| {
            format!("{error}\n    fix: start `tacit link serve` on the side that has the network")
        })?;
        match answer {
            LinkAnswer::Welcome(welcome) if welcome.version == VERSION => Ok((stream, welcome)),
            LinkAnswer::Refused(reason) => Err(format!("{} refuses: {reason}", self.connect)),
            _ => Err(format!(
                "the link server at {} does not use the same version of the link protocol as \
                 this side\n    fix: use the same version of tacit on both sides",
                self.connect
            )),
        }
    }

    /// Adds a bound socket, of a session and with an address.
    pub(super) fn add_bound(&self, key: (u64, SocketAddr), orders: mpsc::Sender<PendingOrder>) {
        self.bound.borrow_mut().insert(key, orders);
    }

    /// Forgets a bound socket.
    pub(super) fn forget_bound(&self, key: (u64, SocketAddr)) {
        self.bound.borrow_mut().remove(&key);
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
        let none =
            || LinkAnswer::Refused(format!("no socket is bound to {address} through the link"));
        write(stream, &answer.unwrap_or_else(none), None).await
    }
}

fn clear(socket: OwnedFd) -> io::Result<LinkStream> {
    Ok(LinkStream::clear(StreamSocket::new(socket, Security::Tls)?, Vec::new()))
}
