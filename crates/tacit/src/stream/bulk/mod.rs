//! Turns of the connections of one thread that have much to move, so that the others need not wait
//! for all of them.
//!
//! A connection whose polls fill their batches is *bulk*, any other *brief*. While there are brief
//! ones on the thread, a bulk connection moves [`TURN_RECORDS`] at a time, and one of them has a
//! turn each time the runtime has asked the kernel for what has come. So a message of a brief
//! connection waits for one turn at most, however many bulk streams there are. A thread that has
//! only connections of one kind carries them as fast as it can.
//!
//! Turns are given in the order in which they were asked for.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use tacit_core::record::PAYLOAD_BYTES_MAX;

/// Records of one turn beside brief connections.
const TURN_RECORDS: usize = 6;
/// Polls that filled a batch by half, more than such that did not by an eighth, of a connection
/// that is bulk.
const FILLED_LEAST: u8 = 4;
/// What more of them are forgotten.
const FILLED_MAX: u8 = 16;
/// Turns for which a thread remembers that it has brief connections.
const REMEMBERED_TURNS: u32 = 1024;

/// The turns of one thread.
#[derive(Debug, Default)]
pub(super) struct BulkTurns {
    waiting: RefCell<VecDeque<Waker>>,
    /// The task that gives turns, while there is nothing to give.
    giver: RefCell<Option<Waker>>,
    /// How many turns have been asked for, and given; both begin again after the last number.
    asked: Cell<u32>,
    given: Cell<u32>,
    /// For how many more turns the thread counts as one with brief connections.
    remembered: Cell<u32>,
}

impl BulkTurns {
    /// Records of a batch, of as many as a connection may move alone.
    pub(super) fn records(&self, records_max: usize) -> usize {
        if self.is_shared() { records_max.min(TURN_RECORDS) } else { records_max }
    }

    /// Gives turns for as long as the thread works.
    pub(super) async fn give(&self) {
        loop {
            let next = poll_fn(|cx| self.poll_next(cx)).await;
            self.given.set(self.given.get().wrapping_add(1));
            next.wake();
            // The runtime comes back when it has asked the kernel for what has come.
            tokio::task::yield_now().await;
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
        self.asked.set(self.asked.get().wrapping_add(1));
        self.asked.get()
    }

    fn is_given(&self, number: u32) -> bool {
        // As sequence numbers are compared: fewer than half of all numbers wait.
        self.given.get().wrapping_sub(number) < u32::MAX / 2
    }
}

/// What one connection knows of its turns.
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

    /// The connection has moved so many bytes in one poll, of a batch of `records`.
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
        }
    }

    fn is_bulk(&self) -> bool {
        self.filled >= FILLED_LEAST
    }
}

#[cfg(test)]
mod tests;
