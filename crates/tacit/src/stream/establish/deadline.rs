//! Limits the time in which a connection must be established: dialled, and secured by its
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
