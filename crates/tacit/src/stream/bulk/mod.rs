//! Schedules large transfers of a thread, so that they delay short messages of other connections
//! only briefly.
//!
//! A connection moves its TLS records in *batches* of limited size. A connection is *bulk* if its
//! batches are often at least half full. Any other connection is *brief*.
//!
//! If a thread has connections of both kinds, the bulk connections take turns. In a turn, one bulk
//! connection moves at most [`TURN_RECORDS`]. After each turn, the thread polls the kernel, and
//! relays the messages of brief connections. While polls return these messages, the thread polls
//! again, up to [`KERNEL_POLLS_MAX`] polls in total. So a short message waits for at most one turn.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use tacit_core::record::PAYLOAD_BYTES_MAX;

/// The number of records in a turn while the thread also has brief connections.
const TURN_RECORDS: usize = 6;
/// The value of a connection's counter from which on it is bulk. A poll that fills at least half of
/// a batch adds one; a poll that fills less than an eighth subtracts one.
const FILLED_LEAST: u8 = 4;
/// The maximum value of the counter.
const FILLED_MAX: u8 = 16;
/// A thread counts as one with brief connections for this number of turns after a short message.
const REMEMBERED_TURNS: u32 = 1024;
/// The number of polls of the kernel between two turns while each of them brings short messages.
/// More polls give short messages a larger share of the CPU; the limit leaves a share for bulk
/// connections.
const KERNEL_POLLS_MAX: u32 = 5;

/// The turns of one thread.
#[derive(Debug, Default)]
pub(super) struct BulkTurns {
    waiting: RefCell<VecDeque<Waker>>,
    /// The task that gives turns, while no connection waits for one.
    giver: RefCell<Option<Waker>>,
    /// The numbers of requested and of given turns; both wrap around.
    requested: Cell<u32>,
    given: Cell<u32>,
    /// For how many more turns the thread counts as one with brief connections.
    remembered: Cell<u32>,
    /// Whether a short message has been moved since the last poll of the kernel.
    has_short_message: Cell<bool>,
}

impl BulkTurns {
    /// The number of records in a batch: those of one turn if the thread has brief connections,
    /// otherwise `records_max`.
    pub(super) fn records(&self, records_max: usize) -> usize {
        if self.is_shared() { records_max.min(TURN_RECORDS) } else { records_max }
    }

    /// Gives turns as long as the thread works.
    pub(super) async fn give(&self) {
        loop {
            let next = poll_fn(|cx| self.poll_next(cx)).await;
            self.given.set(self.given.get().wrapping_add(1));
            next.wake();
            self.poll_kernel().await;
        }
    }

    /// Lets the runtime poll the kernel until that brings no short message, or until the limit.
    async fn poll_kernel(&self) {
        for _ in 0..KERNEL_POLLS_MAX {
            self.has_short_message.set(false);
            // The runtime continues here after it has polled the kernel and run the tasks that this
            // has woken.
            tokio::task::yield_now().await;
            if !self.has_short_message.get() {
                break;
            }
        }
    }

    fn poll_next(&self, cx: &Context<'_>) -> Poll<Waker> {
        match self.waiting.borrow_mut().pop_front() {
            Some(next) => Poll::Ready(next),
            None => {
                self.giver.replace(Some(cx.waker().clone()));
                Poll::Pending
            }
        }
    }

    fn is_shared(&self) -> bool {
        self.remembered.get() > 0
    }

    /// Queues a connection; returns the number of its turn.
    fn ask(&self, cx: &Context<'_>) -> u32 {
        self.waiting.borrow_mut().push_back(cx.waker().clone());
        if let Some(giver) = self.giver.take() {
            giver.wake();
        }
        self.requested.set(self.requested.get().wrapping_add(1));
        self.requested.get()
    }

    fn is_given(&self, number: u32) -> bool {
        // Compared as sequence numbers: fewer than half of all numbers are waiting.
        self.given.get().wrapping_sub(number) < u32::MAX / 2
    }
}

/// The state of one connection for its turns.
#[derive(Debug, Default)]
pub(super) struct BulkTurn {
    /// The number of the turn that it waits for, if it waits.
    number: u32,
    waits: bool,
    filled: u8,
}

impl BulkTurn {
    /// Ready when the connection may move bytes.
    pub(super) fn poll(&mut self, turns: &BulkTurns, cx: &Context<'_>) -> Poll<()> {
        if !self.waits {
            if !self.is_bulk() || !turns.is_shared() {
                return Poll::Ready(());
            }
            self.number = turns.ask(cx);
        }
        self.waits = !turns.is_given(self.number);
        if self.waits { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Records that the connection has moved this number of bytes in one poll, with a batch of
    /// `records`.
    pub(super) fn moved(&mut self, turns: &BulkTurns, bytes: u64, records: usize) {
        let batch = (records * PAYLOAD_BYTES_MAX) as u64;
        let fills = bytes >= batch / 2;
        if fills {
            self.filled = (self.filled + 1).min(FILLED_MAX);
        } else if bytes > 0 && bytes < batch / 8 {
            self.filled = self.filled.saturating_sub(1);
        }
        if self.is_bulk() {
            turns.remembered.set(turns.remembered.get().saturating_sub(1));
        } else if bytes > 0 && !fills {
            turns.remembered.set(REMEMBERED_TURNS);
            turns.has_short_message.set(true);
        }
    }

    fn is_bulk(&self) -> bool {
        self.filled >= FILLED_LEAST
    }
}

#[cfg(test)]
mod tests;
