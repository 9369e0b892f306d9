//! Defines pending FTP data connections: the control connection has announced them, and tacit has
//! not accepted them yet.

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
use crate::session::ConnectionRecord;

use super::listener::DataListener;

/// Data connections of one control connection, pending ones included. A client usually has one at a
/// time, and earlier ones may still be closing.
pub const DATA_CONNECTIONS_MAX: usize = 8;
/// How long the listener of a data connection stays open.
pub const ARRIVAL_WAIT_MAX: Duration = Duration::from_secs(60);

/// A data connection that its control connection has announced.
#[derive(Debug)]
pub struct PendingDataConnection {
    /// The control connection.
    pub parent: Arc<ConnectionRecord>,
    /// The request that the control connection announced.
    pub request: DataRequest,
    /// The TLS settings of this control connection; `None`: the data is relayed in clear.
    pub tls: Option<Arc<LiveTls>>,
    /// The direction of the data.
    pub uploads: UploadFlag,
    /// Counts it among the data connections of its control connection, until it ends.
    pub permit: Option<OwnedSemaphorePermit>,
    /// Accepts it.
    pub listener: DataListener,
    /// Resolves when the listener must close.
    pub closed: oneshot::Receiver<Infallible>,
    /// Permits for connections of the agent.
    pub places: Arc<Semaphore>,
}

impl PendingDataConnection {
    /// Returns the protection of the socket of the side that connects.
    #[must_use]
    pub fn downstream_security(&self) -> Security {
        if self.request.connects == StarttlsSide::Peer && self.tls.is_some() {
            Security::Tls
        } else {
            Security::Clear
        }
    }

    /// Waits for the connection. `None`: the listener was closed, or no connection arrived in time.
    /// This is not an error, so it is not logged.
    pub async fn accept(&mut self) -> Option<Accepted<StreamSocket>> {
        let accepted = tokio::select! {
            accepted = self.listener.wait(&self.places) => accepted.ok(),
            _ = &mut self.closed => None,
            () = tokio::time::sleep(ARRIVAL_WAIT_MAX) => None,
        };
        self.listener.close().await;
        accepted
    }
}

/// The FTP settings of a connection's rule.
#[must_use]
pub fn ftp_of(record: &ConnectionRecord) -> Option<&FtpOptions> {
    match &record.rule.starttls()?.protocol {
        StarttlsProtocol::Ftp(ftp) => Some(ftp),
        StarttlsProtocol::Telnet | StarttlsProtocol::Smtp | StarttlsProtocol::Postgres(_) => None,
    }
}
