//! Limits the number of clients of a run's query socket. Through this socket, programs ask about
//! their own connections. If all slots are taken, a new client replaces another client.
//!
//! ```text
//!   idle ── a query ──> working ── the answer ──> sending ── answer sent ──> idle
//! ```
//!
//! To free a slot, the agent closes the connection that has been idle for the longest time. If no
//! connection is idle, the agent closes the connection that has been in the state `sending` for the
//! longest time. In this state, the client has not read its answer yet. The agent does not close a
//! connection in the state `working`. A client keeps its slot until its connection is closed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long the agent waits for a connection to close before it also closes another connection.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The slots of one run.
#[derive(Debug)]
pub(super) struct ClientSlots {
    max: usize,
    taken: RefCell<Vec<Rc<Slot>>>,
    /// The number of the newest activity. The activities of all clients are numbered in order.
    turns: Cell<u64>,
    /// Wakes the task that waits for a slot: a slot is free, or the agent may close the connection
    /// of a client.
    changed: Notify,
}

/// The activity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    /// No query of the client is in progress, since the activity with this number.
    Idle(u64),
    /// The agent works on a query of the client.
    Working,
    /// The agent is sending an answer to the client, since the activity with this number.
    Sending(u64),
    /// The agent is closing the connection of the client.
    Leaving,
}

#[derive(Debug)]
struct Slot {
    activity: Cell<Activity>,
    leave: Notify,
}

/// A taken slot. Dropping this value frees the slot.
#[derive(Debug)]
pub(super) struct ClientSlot {
    slot: Rc<Slot>,
    slots: Rc<ClientSlots>,
}

impl ClientSlots {
    pub(super) fn new(max: usize) -> Rc<Self> {
        let taken = RefCell::default();
        Rc::new(Self { max, taken, turns: Cell::default(), changed: Notify::new() })
    }

    /// Takes a slot for a new client. If all slots are taken, closes the connection of another
    /// client.
    pub(super) async fn take(self: &Rc<Self>) -> ClientSlot {
        let mut leaves_until = None;
        loop {
            if let Some(taken) = self.try_take() {
                return taken;
            }
            if leaves_until.is_none() && self.ask_one_to_leave() {
                leaves_until = Some(Instant::now() + LEAVE_WAIT_MAX);
            }
            let changed = self.changed.notified();
            match leaves_until {
                None => changed.await,
                Some(until) => {
                    if tokio::time::timeout_at(until, changed).await.is_err() {
                        leaves_until = None;
                    }
                }
            }
        }
    }

    fn try_take(self: &Rc<Self>) -> Option<ClientSlot> {
        let mut taken = self.taken.borrow_mut();
        if taken.len() >= self.max {
            return None;
        }
        let activity = Cell::new(Activity::Idle(self.turn()));
        let slot = Rc::new(Slot { activity, leave: Notify::new() });
        taken.push(Rc::clone(&slot));
        Some(ClientSlot { slot, slots: Rc::clone(self) })
    }

    /// Chooses a client whose connection must be closed. Returns `false` if there is none, because
    /// the agent works on the queries of all clients.
    fn ask_one_to_leave(&self) -> bool {
        let taken = self.taken.borrow();
        let rank = |slot: &&Rc<Slot>| match slot.activity.get() {
            Activity::Idle(since) => Some((0, since)),
            Activity::Sending(since) => Some((1, since)),
            Activity::Working | Activity::Leaving => None,
        };
        let ranked = taken.iter().filter_map(|slot| Some((rank(&slot)?, slot)));
        let Some((_, slot)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
        slot.activity.set(Activity::Leaving);
        slot.leave.notify_one();
        true
    }

    fn turn(&self) -> u64 {
        let turn = self.turns.get() + 1;
        self.turns.set(turn);
        turn
    }
}

impl ClientSlot {
    /// Records that no query of the client is in progress.
    pub(super) fn set_idle(&self) {
        self.set(Activity::Idle(self.slots.turn()));
        self.slots.changed.notify_one();
    }

    /// Records that the agent works on a query of the client.
    pub(super) fn set_working(&self) {
        self.set(Activity::Working);
    }

    /// Records that the agent is sending an answer to the client.
    pub(super) fn set_sending(&self) {
        self.set(Activity::Sending(self.slots.turn()));
        self.slots.changed.notify_one();
    }

    /// Waits until the connection of the client must be closed. Resolves only once.
    pub(super) async fn asked_to_leave(&self) {
        self.slot.leave.notified().await;
    }

    fn set(&self, activity: Activity) {
        if self.slot.activity.get() != Activity::Leaving {
            self.slot.activity.set(activity);
        }
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.slots.taken.borrow_mut().retain(|slot| !Rc::ptr_eq(slot, &self.slot));
        self.slots.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn polled<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn leaves(taken: &ClientSlot) -> bool {
        polled(pin!(taken.asked_to_leave())).is_some()
    }

    /// Three slots, taken in this order.
    async fn full() -> (Rc<ClientSlots>, [ClientSlot; 3]) {
        let slots = ClientSlots::new(3);
        let taken = [slots.take().await, slots.take().await, slots.take().await];
        (slots, taken)
    }

    #[tokio::test]
    async fn the_client_that_was_idle_for_the_longest_leaves() {
        let (slots, [first, second, third]) = full().await;
        first.set_working();
        first.set_sending();
        first.set_idle();
        let mut another = pin!(slots.take());
        assert!(polled(another.as_mut()).is_none());
        assert!(leaves(&second) && !leaves(&first) && !leaves(&third));
        // In the meantime, activities of other clients do not make a second client leave.
        third.set_working();
        third.set_idle();
        assert!(polled(another.as_mut()).is_none());
        assert!(!leaves(&first) && !leaves(&third));
        drop(second);
        let fourth = polled(another.as_mut()).unwrap();
        assert!(!leaves(&first) && !leaves(&third) && !leaves(&fourth));
    }

    #[tokio::test]
    async fn a_client_that_waits_for_an_answer_stays() {
        let (slots, [first, second, third]) = full().await;
        first.set_working();
        second.set_working();
        second.set_sending();
        let mut another = pin!(slots.take());
        assert!(polled(another.as_mut()).is_none());
        assert!(leaves(&third) && !leaves(&first) && !leaves(&second));
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_leaves_if_none_is_idle() {
        let (slots, [first, second, third]) = full().await;
        for taken in [&first, &second, &third] {
            taken.set_working();
        }
        let mut another = pin!(slots.take());
        assert!(polled(another.as_mut()).is_none());
        assert!(!leaves(&first) && !leaves(&second) && !leaves(&third));
        second.set_sending();
        assert!(polled(another.as_mut()).is_none());
        assert!(leaves(&second) && !leaves(&first) && !leaves(&third));
    }
}
