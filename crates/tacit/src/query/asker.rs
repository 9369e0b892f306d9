//! One asker: a question, an answer, and so on until it has no more.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};
use tacit_core::query::{Fault, QUESTION_BYTES_MAX, Question};
use tacit_sys::query::Message;
use tacit_sys::watch::Watched;
use tokio::sync::{Semaphore, watch as signal};

use super::find::{Desk, IfUnknown};
use super::{CLOSING_MAX, IDLE_MAX, receive, send};
use crate::session::controls::Refusal;

/// Places for closing; see [`close`].
static CLOSING: Semaphore = Semaphore::const_new(CLOSING_MAX);

/// Serves an asker until it ends, is idle for too long, or `closed` says that nobody serves here
/// any more. A question that has been taken is answered.
pub(super) async fn serve(asker: Watched, desk: Rc<Desk>, mut closed: signal::Receiver<()>) {
    loop {
        let question = async {
            tokio::select! {
                biased;
                _ = closed.changed() => None,
                message = next(&asker) => message,
            }
        };
        let Ok(Some(message)) = tokio::time::timeout(IDLE_MAX, question).await else { break };
        if answer(&asker, &desk, message, IfUnknown::Wait).await.is_err() {
            break;
        }
    }
    // What it sent and nobody took is closed with it.
    close(asker.into_inner()).await;
}

/// Serves the agent after this one, about connections that stayed here.
pub(super) async fn serve_successor(successor: Watched, desk: Rc<Desk>) {
    while let Some(message) = next(&successor).await {
        if answer(&successor, &desk, message, IfUnknown::Refuse).await.is_err() {
            break;
        }
    }
    close(successor.into_inner()).await;
}

/// The next message; `None`: there is none any more.
async fn next(asker: &Watched) -> Option<Taken> {
    let mut buffer = [0; QUESTION_BYTES_MAX];
    let Message { bytes, is_cut, descriptors } = receive(asker, &mut buffer).await.ok()?;
    if bytes == 0 && descriptors.is_empty() {
        return None;
    }
    let question = match is_cut {
        true => Err(Fault::UnknownQuestion),
        false => Question::parse(buffer.get(..bytes).unwrap_or_default()),
    };
    Some(Taken { question, descriptors })
}

/// A message that was taken.
struct Taken {
    question: Result<Question, Fault>,
    descriptors: Vec<OwnedFd>,
}

/// Answers.
async fn answer(
    asker: &Watched,
    desk: &Desk,
    taken: Taken,
    if_unknown: IfUnknown,
) -> io::Result<()> {
    let Taken { question, mut descriptors } = taken;
    let single = match descriptors.len() {
        1 => descriptors.pop().map(Arc::new),
        _ => None,
    };
    let answered = match (question, &single) {
        (Err(fault), _) => Err(fault.into()),
        (Ok(_), None) => Err(Fault::NoDescriptor.into()),
        (Ok(question), Some(descriptor)) => desk.answer(question, descriptor, if_unknown).await,
    };
    // Before the answer: what the program then closes is closed.
    close((descriptors, single)).await;
    let mut line = answered.unwrap_or_else(refusal).to_string();
    line.push('\n');
    // Who asks and does not read keeps no place for ever.
    let sent = tokio::time::timeout(IDLE_MAX, send(asker, line.as_bytes(), None)).await;
    sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

fn refusal(refusal: Refusal) -> Value {
    let Refusal { fault, reason } = refusal;
    let message = match reason {
        Some(reason) => format!("{fault}: {reason}"),
        None => fault.to_string(),
    };
    json!({ "error": fault, "message": message })
}

/// Closes what somebody passed, on a thread where it may take as long as it likes.
async fn close(passed: impl Send + 'static) {
    // It is never closed: `acquire` succeeds.
    let place = CLOSING.acquire().await;
    let closed = tokio::task::spawn_blocking(move || {
        drop(passed);
        drop(place);
    });
    // A thread that panicked has said so.
    let _ = closed.await;
}
