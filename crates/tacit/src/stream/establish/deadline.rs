//! Limits the time to establish a connection: to connect to the server, and to do the TLS
//! handshake.

use std::time::Instant;

use crate::session::Failure;

/// Does the work, or fails with `too_late` at the deadline.
pub(super) async fn within<T>(
    deadline: Instant,
    too_late: impl FnOnce() -> Failure,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout_at(deadline.into(), work).await {
        Ok(result) => result,
        Err(_) => Err(too_late()),
    }
}
