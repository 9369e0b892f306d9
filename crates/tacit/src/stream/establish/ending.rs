//! Closes both sockets of a connection that could not be established. Waits before the close, so
//! that the TLS peer can read the alert.

use std::time::Duration;

use crate::net::stream_socket::StreamSocket;
use tacit_tls::INCOMING_BYTES_MAX;

/// How long a peer may take to read why it is rejected.
pub(super) const DRAIN_WAIT_MAX: Duration = Duration::from_secs(1);

/// Lets a refused peer read its alert: closing at once would reset what is still on its way.
pub async fn drain_after_alert(socket: StreamSocket) {
    if socket.shutdown_write().is_err() {
        return;
    }
    let drained = async {
        let mut sink = [0; 2048];
        let mut left = INCOMING_BYTES_MAX;
        while let Ok(count) = socket.read(&mut sink).await
            && count > 0
            && left > 0
        {
            left = left.saturating_sub(count);
        }
    };
    let _ = tokio::time::timeout(DRAIN_WAIT_MAX, drained).await;
}

/// Ends both sockets in order, so that both ends receive the bytes that explain the end.
pub(super) async fn close_both(peer: StreamSocket, program: StreamSocket) {
    program.end_in_order();
    tokio::join!(drain_after_alert(peer), drain_after_alert(program));
}
