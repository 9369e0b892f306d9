//! Passes the TLS requests of a program (`start`, `stop` and `rekey`) to the relay of the program's
//! connection.
//!
//! The relay of a connection handles one request at a time, between two transfers of data. If the
//! relay ends without an answer, the request fails with the error `ended`.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as BlockingMutex, PoisonError};

use tacit_core::query::QueryError;
use tokio::sync::{Mutex, mpsc, oneshot};

/// A request that is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRequest {
    /// Begin TLS.
    Start,
    /// End TLS.
    Stop,
    /// Replace the keys of both directions.
    Rekey,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsRequestError {
    /// The kind of the error.
    pub fault: QueryError,
    /// Details of the error.
    pub reason: Option<String>,
}

impl From<QueryError> for TlsRequestError {
    fn from(fault: QueryError) -> Self {
        Self { fault, reason: None }
    }
}

/// A request on its way to the relay.
#[derive(Debug)]
pub struct PendingTlsRequest {
    /// The request.
    pub request: TlsRequest,
    /// The program's own socket. The requester keeps it until the answer: the relay must not
    /// close it, because it has no time to wait for that.
    pub program: Arc<OwnedFd>,
    /// The channel for the answer. It is declared after the socket, so that it is dropped after the
    /// socket.
    pub back: oneshot::Sender<Result<(), TlsRequestError>>,
}

/// The requests of one connection.
pub type TlsRequests = mpsc::Receiver<PendingTlsRequest>;

/// The channel for requests to a connection whose program controls TLS.
#[derive(Debug)]
pub struct TlsControl {
    requests: Mutex<mpsc::Sender<PendingTlsRequest>>,
    receiver: BlockingMutex<Option<TlsRequests>>,
    is_handshaking: AtomicBool,
}

impl Default for TlsControl {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(1);
        let receiver = BlockingMutex::new(Some(receiver));
        Self { requests: Mutex::new(sender), receiver, is_handshaking: AtomicBool::new(false) }
    }
}

impl TlsControl {
    /// Sends a request, and waits for the answer.
    ///
    /// # Errors
    /// See [`QueryError`]; [`QueryError::Ended`] if the connection ends first.
    pub async fn ask(
        &self,
        request: TlsRequest,
        program: &Arc<OwnedFd>,
    ) -> Result<(), TlsRequestError> {
        let Ok(requests) = self.requests.try_lock() else { return Err(QueryError::Busy.into()) };
        let (back, answer) = oneshot::channel();
        let pending = PendingTlsRequest { request, program: Arc::clone(program), back };
        if requests.send(pending).await.is_err() {
            return Err(QueryError::Ended.into());
        }
        answer.await.unwrap_or_else(|_| Err(QueryError::Ended.into()))
    }

    /// Takes the relay's end of the channel; `None` if the relay has it already.
    #[must_use]
    pub fn take_requests(&self) -> Option<TlsRequests> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a handshake is in progress.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.is_handshaking.load(Ordering::Relaxed)
    }

    /// Records that a handshake begins.
    pub fn begin_handshake(&self) {
        self.is_handshaking.store(true, Ordering::Relaxed);
    }

    /// Records that the handshake has ended.
    pub fn end_handshake(&self) {
        self.is_handshaking.store(false, Ordering::Relaxed);
    }
}
