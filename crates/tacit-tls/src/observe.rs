//! What a check found within one step of a handshake.
//!
//! A check is shared by all connections of a rule and rustls tells it nothing of the connection it
//! is called for. It can still leave its outcome with the right one: rustls calls it synchronously,
//! within one step of one handshake on one thread, so the outcome goes into a cell of the thread,
//! and [`observe`] carries it out of the step.

use std::cell::RefCell;

use crate::check::Checked;

thread_local! {
    static OUTCOME: RefCell<Option<Checked>> = const { RefCell::new(None) };
}

/// Runs one step of a handshake and says what a check found within it; `None`: no check was called
/// (it is not its turn yet, no certificate was sent, or the session is resumed).
///
/// The step must not wait: an outcome belongs to what ran on this thread since it began.
pub(crate) fn observe<R>(step: impl FnOnce() -> R) -> (R, Option<Checked>) {
    OUTCOME.set(None);
    let result = step();
    (result, OUTCOME.take())
}

/// Leaves what a check found.
pub(crate) fn note(outcome: impl Into<Checked>) {
    OUTCOME.set(Some(outcome.into()));
}
