//! Data connections, from the request to the socket that came.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tacit_core::policy::{FtpOptions, StarttlsProtocol};
use tacit_core::starttls::StarttlsSide;
use tacit_core::starttls::ftp::{DataRequest, UploadFlag};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::live::LiveTls;
use crate::net::stream_socket::StreamSocket;
use crate::net::{Accepted, Security};
use crate::session::Record;

use super::door::Door;

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
    pub family: Option<Arc<LiveTls>>,
    /// Which way the data goes.
    pub uploads: UploadFlag,
    /// Counts it among the data connections of its control connection, until it ends.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Where it comes in.
    pub door: Door,
    /// Ends when the door is to close.
    pub closed: oneshot::Receiver<Infallible>,
    /// Permits for connections of the agent.
    pub places: Arc<Semaphore>,
}

impl Job {
    /// What protects the socket of the side that connects.
    #[must_use]
    pub fn downstream_security(&self) -> Security {
        if self.request.connects == StarttlsSide::Peer && self.family.is_some() {
            Security::Tls
        } else {
            Security::Clear
        }
    }

    /// Waits for the connection at the door. `None`: it was closed, or nobody came in time; why is
    /// nobody's business but the client's, which has other plans.
    pub async fn arrive(&mut self) -> Option<Accepted<StreamSocket>> {
        let came = tokio::select! {
            came = self.door.wait(&self.places) => came.ok(),
            _ = &mut self.closed => None,
            () = tokio::time::sleep(ARRIVAL_WAIT_MAX) => None,
        };
        self.door.close().await;
        came
    }
}

/// What a connection's rule says of FTP.
#[must_use]
pub fn ftp_of(record: &Record) -> Option<&FtpOptions> {
    match &record.rule.starttls()?.protocol {
        StarttlsProtocol::Ftp(ftp) => Some(ftp),
        StarttlsProtocol::Telnet | StarttlsProtocol::Smtp | StarttlsProtocol::Postgres(_) => None,
    }
}
