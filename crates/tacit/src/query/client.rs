//! Serves one client of a run's query socket. Through this socket, programs ask about their own
//! connections. A client sends one query at a time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use tacit_core::query::{QueryError, QueryRequest, REQUEST_BYTES_MAX};
use tacit_sys::query;
use tacit_sys::watch::Watched;
use tokio::sync::{Semaphore, watch as signal};

use super::client_slots::ClientSlot;
use super::find::{IfUnknown, QueryResponder};
use super::{CLOSING_MAX, IDLE_MAX, receive, send};
use crate::session::tls_control::TlsRequestError;

/// Permits for the threads that close descriptors; see [`close`].
static CLOSING: Semaphore = Semaphore::const_new(CLOSING_MAX);

/// Serves a client until the client disconnects or is idle for too long. The service also ends if
/// another client needs the slot, or if `closed` reports that this agent no longer serves the
/// socket. A query that the agent has received is answered before the end.
pub(super) async fn serve(
    client: Watched,
    slot: ClientSlot,
    responder: Rc<QueryResponder>,
    mut closed: signal::Receiver<()>,
) {
    loop {
        slot.set_idle();
        let question = async {
            tokio::select! {
                biased;
                _ = closed.changed() => Next::Nothing,
                () = slot.asked_to_leave() => Next::Last(next_now(&client)),
                message = next(&client) => message.map_or(Next::Nothing, Next::Message),
            }
        };
        let next = tokio::time::timeout(IDLE_MAX, question).await.unwrap_or(Next::Nothing);
        let (message, is_last) = match next {
            Next::Message(message) => (message, false),
            Next::Last(Some(message)) => (message, true),
            Next::Last(None) | Next::Nothing => break,
        };
        slot.set_working();
        let line = answer(&responder, message, IfUnknown::Wait).await;
        slot.set_sending();
        let sent = tokio::select! {
            biased;
            sent = send_line(&client, &line) => sent.is_ok(),
            () = slot.asked_to_leave() => false,
        };
        if is_last || !sent {
            break;
        }
    }
    // Descriptors in messages that were not received are closed with the socket.
    close(client.into_inner()).await;
    drop(slot);
}

/// What a client does next.
enum Next {
    /// The client has sent a query.
    Message(Message),
    /// The agent must close the connection. The client may have sent a last query before.
    Last(Option<Message>),
    /// The agent answers no more queries of this client.
    Nothing,
}

/// Answers the successor's queries about connections that this agent still serves.
pub(super) async fn serve_successor(successor: Watched, responder: Rc<QueryResponder>) {
    while let Some(message) = next(&successor).await {
        let line = answer(&responder, message, IfUnknown::Refuse).await;
        if send_line(&successor, &line).await.is_err() {
            break;
        }
    }
    close(successor.into_inner()).await;
}

/// Waits for the next message. Returns `None` at the end of the connection.
async fn next(client: &Watched) -> Option<Message> {
    let mut buffer = [0; REQUEST_BYTES_MAX];
    let received = receive(client, &mut buffer).await.ok()?;
    read(received, &buffer)
}

/// Returns the next message if the message has already arrived. Otherwise returns `None`, as at
/// the end of the connection.
fn next_now(client: &Watched) -> Option<Message> {
    let mut buffer = [0; REQUEST_BYTES_MAX];
    let received = query::receive(client.get_ref().as_fd(), &mut buffer).ok()?;
    read(received, &buffer)
}

fn read(received: query::QueryMessage, buffer: &[u8]) -> Option<Message> {
    let query::QueryMessage { bytes, is_cut, descriptors } = received;
    if bytes == 0 && descriptors.is_empty() {
        return None;
    }
    let question = match is_cut {
        true => Err(QueryError::UnknownQuestion),
        false => QueryRequest::parse(buffer.get(..bytes).unwrap_or_default()),
    };
    Some(Message { question, descriptors })
}

/// A message that was received.
struct Message {
    question: Result<QueryRequest, QueryError>,
    descriptors: Vec<OwnedFd>,
}

/// The answer to a message.
async fn answer(responder: &QueryResponder, message: Message, if_unknown: IfUnknown) -> String {
    let Message { question, mut descriptors } = message;
    let single = match descriptors.len() {
        1 => descriptors.pop().map(Arc::new),
        _ => None,
    };
    let answered = match (question, &single) {
        (Err(fault), _) => Err(fault.into()),
        (Ok(_), None) => Err(QueryError::NoDescriptor.into()),
        (Ok(question), Some(descriptor)) => {
            responder.answer(question, descriptor, if_unknown).await
        }
    };
    // Closed before the answer is sent, so that a close by the program takes effect at once.
    close((descriptors, single)).await;
    let mut line = answered.unwrap_or_else(refusal).to_string();
    line.push('\n');
    line
}

async fn send_line(client: &Watched, line: &str) -> io::Result<()> {
    // A client that does not read its answers must not keep its slot.
    let sent = tokio::time::timeout(IDLE_MAX, send(client, line.as_bytes(), None)).await;
    sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn refusal(refusal: TlsRequestError) -> Value {
    let TlsRequestError { fault, reason } = refusal;
    let message = match reason {
        Some(reason) => format!("{fault}: {reason}"),
        None => fault.to_string(),
    };
    json!({ "error": fault, "message": message })
}

/// Closes passed descriptors on a separate thread, because `close` may block.
async fn close(passed: impl Send + 'static) {
    // The semaphore is never closed, so `acquire` succeeds.
    let place = CLOSING.acquire().await;
    let closed = tokio::task::spawn_blocking(move || {
        drop(passed);
        drop(place);
    });
    // A thread that panicked has printed it.
    let _ = closed.await;
}
