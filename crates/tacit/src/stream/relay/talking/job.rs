//! Data connections, from the request to the socket that came.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::policy::{Action, Ftp, StarttlsProtocol};
use tacit_core::starttls::Side;
use tacit_core::starttls::ftp::{DataRequest, Uploads};
use tacit_sys::socket;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::log::Event;
use crate::stream::connection::Record;
use crate::stream::leg::Leg;
use crate::stream::relay::Host;
use crate::stream::secure::{Family, remote_ip};

use super::door::{Came, Door, local_ip};

/// Data connections of one control connection, those that are awaited included: one is all that a
/// client has at a time as a rule, and the last ones may still be ending.
pub const DATA_CONNECTIONS_MAX: usize = 8;
/// How long a data connection may take to come.
pub const ARRIVAL_WAIT_MAX: Duration = Duration::from_secs(60);

/// A data connection that has been agreed.
#[derive(Debug)]
pub struct Job {
    /// The control connection.
    pub parent: Arc<Record>,
    /// What it agreed on.
    pub request: DataRequest,
    /// How it shakes hands; `None`: it is carried in clear.
    pub family: Option<Family>,
    /// Which way the data goes.
    pub uploads: Uploads,
    /// Its place among the data connections of its control connection; given back when it ends.
    pub place: OwnedSemaphorePermit,
    door: Door,
    /// Ends when the door is to close.
    closed: oneshot::Receiver<Infallible>,
    places: Arc<Semaphore>,
}

impl Job {
    /// Waits for the connection at the door. `None`: it was closed, or nobody came in time; why is
    /// nobody's business but the client's, which has other plans.
    pub async fn arrive(&mut self) -> Option<Came> {
        let came = tokio::select! {
            came = self.door.wait(&self.places) => came.ok(),
            _ = &mut self.closed => None,
            () = tokio::time::sleep(ARRIVAL_WAIT_MAX) => None,
        };
        self.door.close().await;
        came
    }
}

/// The doors of a control connection.
pub(super) struct Doors<'a> {
    host: &'a Host,
    record: &'a Arc<Record>,
    family: Option<Family>,
    uploads: Uploads,
    places: Arc<Semaphore>,
    /// The door that is open last; it closes when this is dropped.
    last: Option<oneshot::Sender<Infallible>>,
}

impl<'a> Doors<'a> {
    /// Those of a connection that has none open.
    pub(super) fn new(
        host: &'a Host,
        record: &'a Arc<Record>,
        family: Option<Family>,
        uploads: Uploads,
    ) -> Self {
        let places = Arc::new(Semaphore::new(DATA_CONNECTIONS_MAX));
        Self { host, record, family, uploads, places, last: None }
    }

    /// Opens a door for an end, whose leg of the control connection is given; the address is where
    /// that end finds it.
    pub(super) async fn open(&mut self, request: DataRequest, leg: &Leg) -> Option<SocketAddr> {
        self.last = None;
        match self.try_open(request, leg).await {
            Ok((at, job)) => {
                (self.host.start)(job);
                Some(at)
            }
            Err(reason) => {
                let event = Event::new("data-connection-failed").connection(self.record.id);
                let event = event.field("rule", &self.record.rule.name());
                self.host.log.warn(event.field("reason", &reason));
                None
            }
        }
    }

    async fn try_open(
        &mut self,
        request: DataRequest,
        leg: &Leg,
    ) -> Result<(SocketAddr, Job), String> {
        let full = || {
            format!("{DATA_CONNECTIONS_MAX} of this control connection are open: end one of them")
        };
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| full())?;
        let (at, door) = match (&self.record.run, request.connects) {
            // The program connects to where it would without tacit, and is led here.
            (Some(of_run), Side::Program) => {
                (request.dial, Door::inside(&of_run.run, request.dial).await?)
            }
            (_, connects) => {
                let nowhere = || "its end of the control connection has no IP address".to_owned();
                let (from, local) = remote_ip(leg).zip(local_ip(leg)).ok_or_else(nowhere)?;
                let ftp = ftp_of(self.record).filter(|_| connects == Side::Peer);
                let ports = ftp.map(|ftp| ftp.data_ports.as_slice()).unwrap_or_default();
                let options = socket::StreamOptions {
                    congestion_control: self.host.congestion_control.clone(),
                    reset_on_exit: connects == Side::Program || !request.secure,
                };
                let (port, door) = Door::outside(local, ports, from, &options)?;
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
        let (parent, places) = (Arc::clone(self.record), Arc::clone(&self.host.places));
        let uploads = self.uploads.clone();
        Ok((at, Job { parent, request, family, uploads, place, door, closed, places }))
    }
}

/// What a connection's rule says of FTP.
#[must_use]
pub fn ftp_of(record: &Record) -> Option<&Ftp> {
    let Action::Tls(tls) = &record.rule.rule.action else { return None };
    match &tls.common().start.starttls()?.protocol {
        StarttlsProtocol::Ftp(ftp) => Some(ftp),
        StarttlsProtocol::Telnet | StarttlsProtocol::Smtp | StarttlsProtocol::Postgres => None,
    }
}
