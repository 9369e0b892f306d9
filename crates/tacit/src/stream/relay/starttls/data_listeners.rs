//! Opens the listeners for the data connections of an FTP control connection.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tacit_core::starttls::StarttlsSide;
use tacit_core::starttls::ftp::{DataRequest, UploadFlag};
use tacit_sys::socket;
use tokio::sync::{Semaphore, oneshot};

use crate::address;
use crate::live::LiveTls;
use crate::log::Event;
use crate::net::stream_socket::StreamSocket;
use crate::run::Outside;
use crate::session::ConnectionRecord;
use crate::stream::data::{
    DATA_CONNECTIONS_MAX, DataListener, OpenListener, PendingDataConnection, ftp_of,
};
use crate::stream::establish::remote_ip;
use crate::stream::lane::StreamLane;

/// An open listener with its pending data connection.
struct Opened {
    /// The address to announce.
    at: SocketAddr,
    pending: PendingDataConnection,
}

/// Opens the data listeners of a control connection.
pub(super) struct DataListeners<'a> {
    lane: &'a StreamLane,
    record: &'a Arc<ConnectionRecord>,
    data_tls: Option<Arc<LiveTls>>,
    uploads: UploadFlag,
    places: Arc<Semaphore>,
    /// Closes the newest listener when dropped.
    last: Option<oneshot::Sender<Infallible>>,
}

impl<'a> DataListeners<'a> {
    /// For a connection without open listeners.
    pub(super) fn new(
        lane: &'a StreamLane,
        record: &'a Arc<ConnectionRecord>,
        data_tls: Option<Arc<LiveTls>>,
        uploads: UploadFlag,
    ) -> Self {
        let places = Arc::new(Semaphore::new(DATA_CONNECTIONS_MAX));
        Self { lane, record, data_tls, uploads, places, last: None }
    }

    /// Opens a listener for one end, given its socket of the control connection; returns the
    /// address to announce.
    pub(super) async fn open(
        &mut self,
        request: DataRequest,
        socket: &StreamSocket,
    ) -> Option<SocketAddr> {
        self.last = None;
        match self.try_open(request, socket).await {
            Ok(Opened { at, pending }) => {
                match self.lane.pending_data.try_send(Box::new(pending)) {
                    Ok(()) => Some(at),
                    Err(refused) => {
                        refused.into_inner().listener.close().await;
                        self.report(
                            "too many FTP data connections are starting on this worker thread: try \
                             again",
                        );
                        None
                    }
                }
            }
            Err(reason) => {
                self.report(&reason);
                None
            }
        }
    }

    fn report(&self, reason: &str) {
        self.lane.shared.log.warn(
            Event::new("data-connection-failed")
                .connection(self.record.id)
                .field("rule", &self.record.rule.name())
                .field("reason", reason),
        );
    }

    async fn try_open(
        &mut self,
        request: DataRequest,
        socket: &StreamSocket,
    ) -> Result<Opened, String> {
        let full = || {
            format!(
                "this FTP control connection already has {DATA_CONNECTIONS_MAX} data connections, \
                 the maximum: close a data connection first"
            )
        };
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| full())?;
        let (at, listener) = match (&self.record.scope, request.connects) {
            // The program connects to the server's address, and tacit captures that.
            (Some(facts), StarttlsSide::Program) => {
                let run = facts.scope.run();
                // A program that uses an alias for the server uses it for data, too.
                let is_server = self.record.remote.ip() == Some(request.dial.ip());
                let alias = facts.alias.filter(|_| is_server);
                let ip = alias.unwrap_or_else(|| request.dial.ip());
                let at = SocketAddr::new(ip, request.dial.port());
                (at, DataListener::inside(run, at).await?)
            }
            (_, connects) => {
                let nowhere = || "the FTP control connection has no IP address".to_owned();
                let (from, local) = remote_ip(socket).zip(local_ip(socket)).ok_or_else(nowhere)?;
                let ftp = ftp_of(self.record).filter(|_| connects == StarttlsSide::Peer);
                let ports = ftp.map(|ftp| ftp.data_ports.as_slice()).unwrap_or_default();
                let options = socket::StreamOptions {
                    congestion_control: self.lane.shared.congestion_control.clone(),
                    reset_on_exit: connects == StarttlsSide::Program || !request.secure,
                };
                let network = match &self.record.scope {
                    Some(facts) => facts.scope.run().outside.clone(),
                    None => Outside::Host,
                };
                let OpenListener { port, listener } =
                    DataListener::outside(&network, local, ports, from, &options).await?;
                let announced = ftp.and_then(|ftp| ftp.data_address).unwrap_or(local);
                (SocketAddr::new(announced, port), listener)
            }
        };
        let (last, closed) = oneshot::channel();
        self.last = Some(last);
        let data_tls = self.data_tls.clone().filter(|_| request.secure);
        if request.secure && data_tls.is_none() {
            return Err("the client requested TLS for the data connection, but the control \
                        connection does not use TLS"
                .into());
        }
        let pending = PendingDataConnection {
            parent: Arc::clone(self.record),
            request,
            tls: data_tls,
            uploads: self.uploads.clone(),
            permit: Some(permit),
            listener,
            closed,
            places: Arc::clone(&self.lane.shared.places),
        };
        Ok(Opened { at, pending })
    }
}

/// The local IP address of a socket.
fn local_ip(socket: &StreamSocket) -> Option<IpAddr> {
    address::from_socket(&socket::local_address(socket.fd()).ok()?).ip()
}
