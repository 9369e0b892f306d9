//! Relays one message in clear (PostgreSQL's CancelRequest), and then closes both connections.
//!
//! ```text
//!   downstream ── the message ──> upstream
//!              <── end of file ──            then tacit closes both connections
//! ```
//!
//! tacit drops all bytes except this message. When the server has handled the message, the server
//! closes its connection. Then tacit closes the connection of the client. If the server does not
//! close its connection within [`END_WAIT_MAX`], tacit resets the connection of the client.

use std::io;
use std::time::Duration;

use tacit_core::meter::Component;
use tacit_core::starttls::{StarttlsError, StarttlsSide};

use crate::ledger::meter;
use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::{BrokenSocket, Connection, ConnectionEnd};
use crate::stream::relay_kind::ClearRelay;

/// How long the receiver of the message may take to read it and to close.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// The size of a read of bytes that are dropped.
const READ_BYTES: usize = 512;

/// Delivers the bytes that have arrived already, then ends both sockets.
pub(super) async fn run(relay: ClearRelay, connection: &Connection) -> ConnectionEnd {
    meter::switch(Component::Receive);
    let ClearRelay { downstream, upstream, initial } = relay;
    let delivery = async {
        if let Err(error) = Outgoing::new(initial.clone()).flush(&upstream).await {
            return ConnectionEnd::Broken { socket: BrokenSocket::Far, error };
        }
        connection.note_sent(&initial);
        tokio::select! {
            biased;
            end = server_end(&upstream) => end,
            end = client_end(&downstream) => end,
        }
    };
    let end = match tokio::time::timeout(END_WAIT_MAX, delivery).await {
        Ok(end) => end,
        Err(_) => {
            let error = io::ErrorKind::TimedOut.into();
            ConnectionEnd::Broken { socket: BrokenSocket::Far, error }
        }
    };
    // The message is complete, whatever the client sends after it.
    upstream.end_in_order();
    match &end {
        ConnectionEnd::Orderly => downstream.end_in_order(),
        _ => downstream.reset(),
    }
    end
}

/// Waits until the server closes. Bytes that it sends before are dropped.
async fn server_end(upstream: &StreamSocket) -> ConnectionEnd {
    let mut dropped = [0; READ_BYTES];
    loop {
        match upstream.read(&mut dropped).await {
            Ok(0) => return ConnectionEnd::Orderly,
            Ok(_) => {}
            Err(error) => return ConnectionEnd::Broken { socket: BrokenSocket::Far, error },
        }
    }
}

/// Waits until the client closes, or sends more than it may.
async fn client_end(downstream: &StreamSocket) -> ConnectionEnd {
    match downstream.read(&mut [0; READ_BYTES]).await {
        Ok(0) => ConnectionEnd::Orderly,
        Ok(_) => ConnectionEnd::Refused(Box::new(StarttlsError::ProtocolViolation(
            StarttlsSide::Peer,
            "the client sent data after the PostgreSQL cancel request",
        ))),
        Err(error) => ConnectionEnd::Broken { socket: BrokenSocket::Clear, error },
    }
}
