//! The doors of a control connection: opened when it agrees on a data connection.

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
use crate::run::Scope;
use crate::session::Record;
use crate::stream::data::{DATA_CONNECTIONS_MAX, Door, Job, Listening, ftp_of};
use crate::stream::establish::remote_ip;
use crate::stream::lane::StreamLane;

/// A door that is open, with the data connection that will come through it.
struct Opened {
    /// Where its end finds it.
    at: SocketAddr,
    job: Job,
}

/// The doors of a control connection.
pub(super) struct Doors<'a> {
    lane: &'a StreamLane,
    record: &'a Arc<Record>,
    family: Option<Arc<LiveTls>>,
    uploads: UploadFlag,
    places: Arc<Semaphore>,
    /// The door that is open last; it closes when this is dropped.
    last: Option<oneshot::Sender<Infallible>>,
}

impl<'a> Doors<'a> {
    /// Those of a connection that has none open.
    pub(super) fn new(
        lane: &'a StreamLane,
        record: &'a Arc<Record>,
        family: Option<Arc<LiveTls>>,
        uploads: UploadFlag,
    ) -> Self {
        let places = Arc::new(Semaphore::new(DATA_CONNECTIONS_MAX));
        Self { lane, record, family, uploads, places, last: None }
    }

    /// Opens a door for an end, whose socket of the control connection is given; the address is where
    /// that end finds it.
    pub(super) async fn open(
        &mut self,
        request: DataRequest,
        socket: &StreamSocket,
    ) -> Option<SocketAddr> {
        self.last = None;
        match self.try_open(request, socket).await {
            Ok(Opened { at, job }) => match self.lane.jobs.try_send(Box::new(job)) {
                Ok(()) => Some(at),
                Err(refused) => {
                    refused.into_inner().door.close().await;
                    self.report("too many data connections of this worker begin at once");
                    None
                }
            },
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
            format!("{DATA_CONNECTIONS_MAX} of this control connection are open: end one of them")
        };
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| full())?;
        let (at, door) = match (&self.record.scope, request.connects) {
            // The program connects to where it would without tacit, and is led here.
            (Some(facts), StarttlsSide::Program) => {
                let Scope::Run(run) = &facts.scope;
                // A program that knows the server by an alias finds it there for data, too.
                let is_server = self.record.remote.ip() == Some(request.dial.ip());
                let alias = facts.alias.filter(|_| is_server);
                let ip = alias.unwrap_or_else(|| request.dial.ip());
                let at = SocketAddr::new(ip, request.dial.port());
                (at, Door::inside(run, at).await?)
            }
            (_, connects) => {
                let nowhere = || "its end of the control connection has no IP address".to_owned();
                let (from, local) = remote_ip(socket).zip(local_ip(socket)).ok_or_else(nowhere)?;
                let ftp = ftp_of(self.record).filter(|_| connects == StarttlsSide::Peer);
                let ports = ftp.map(|ftp| ftp.data_ports.as_slice()).unwrap_or_default();
                let options = socket::StreamOptions {
                    congestion_control: self.lane.shared.congestion_control.clone(),
                    reset_on_exit: connects == StarttlsSide::Program || !request.secure,
                };
                let Listening { port, door } = Door::outside(local, ports, from, &options)?;
                let told = ftp.and_then(|ftp| ftp.data_address).unwrap_or(local);
                (SocketAddr::new(told, port), door)
            }
        };
        let (last, closed) = oneshot::channel();
        self.last = Some(last);
        let family = self.family.clone().filter(|_| request.secure);
        if request.secure && family.is_none() {
            return Err("there is no TLS on the control connection".into());
        }
        let job = Job {
            parent: Arc::clone(self.record),
            request,
            family,
            uploads: self.uploads.clone(),
            permit: Some(permit),
            door,
            closed,
            places: Arc::clone(&self.lane.shared.places),
        };
        Ok(Opened { at, job })
    }
}

/// The address that an end of a connection uses.
fn local_ip(socket: &StreamSocket) -> Option<IpAddr> {
    address::from_socket(&socket::local_address(socket.fd()).ok()?).ip()
}
