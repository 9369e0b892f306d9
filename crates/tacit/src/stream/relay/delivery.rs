//! One message in clear, and nothing else: a CancelRequest of PostgreSQL.
//!
//! ```text
//!   accepted ── the message, read before ──> dialled
//!            <── both are closed when it ends ──
//! ```
//!
//! What either end sends besides does not pass. The client learns by the end of its connection that
//! the server has acted on the message, so it is not ended before. Limit: [`END_WAIT_MAX`].

use std::io;
use std::time::Duration;

use tacit_core::meter::Component;
use tacit_core::starttls::{StarttlsError, StarttlsSide};

use crate::ledger::meter;
use crate::net::leg::{Leg, Outgoing};
use crate::session::{BrokenSocket, Connection, End};
use crate::stream::path::ClearPath;

/// How long the end that gets the message may take to read it and to end.
const END_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes read at once, to be dropped.
const READ_BYTES: usize = 512;

/// Delivers what came early, then ends both legs.
pub(super) async fn run(path: ClearPath, connection: &Connection) -> End {
    meter::switch(Component::Receive);
    let ClearPath { accepted, dialled, initial } = path;
    let count = initial.len();
    let delivery = async {
        if let Err(error) = Outgoing::new(initial).flush(&dialled).await {
            return End::Broken { socket: BrokenSocket::Far, error };
        }
        connection.count_sent(count);
        tokio::select! {
            biased;
            end = server_end(&dialled) => end,
            end = client_end(&accepted) => end,
        }
    };
    let end = match tokio::time::timeout(END_WAIT_MAX, delivery).await {
        Ok(end) => end,
        Err(_) => {
            let error = io::ErrorKind::TimedOut.into();
            End::Broken { socket: BrokenSocket::Far, error }
        }
    };
    // The message is whole, whatever the client does behind it.
    dialled.end_in_order();
    match &end {
        End::Orderly => accepted.end_in_order(),
        _ => accepted.reset(),
    }
    end
}

/// Waits for the end of the server, whatever it says before.
async fn server_end(dialled: &Leg) -> End {
    let mut dropped = [0; READ_BYTES];
    loop {
        match dialled.read(&mut dropped).await {
            Ok(0) => return End::Orderly,
            Ok(_) => {}
            Err(error) => return End::Broken { socket: BrokenSocket::Far, error },
        }
    }
}

/// Waits until the client gives up, or sends more than it may.
async fn client_end(accepted: &Leg) -> End {
    match accepted.read(&mut [0; READ_BYTES]).await {
        Ok(0) => End::Orderly,
        Ok(_) => End::Refused(Box::new(StarttlsError::Garbled(
            StarttlsSide::Peer,
            "it sends more than its cancel request",
        ))),
        Err(error) => End::Broken { socket: BrokenSocket::Clear, error },
    }
}
