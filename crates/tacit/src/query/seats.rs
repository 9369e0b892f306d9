//! Seats of askers at a run's query socket, and who leaves when there is none for another.
//!
//! ```text
//!   idle ── a question ──> working ── the answer ──> sending ── it is sent ──> idle
//!     └────── asked to leave ──────> leaving <────── asked to leave ─┘
//! ```
//!
//! The asker that has been idle for the longest leaves; where none is idle, the one that has not
//! read its answer for the longest. No asker leaves while its question is worked at. An asker keeps
//! its seat until its connection is closed, so that there are never more connections than seats.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long who was asked to leave may take before another one is asked as well.
const LEAVE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The seats of one run.
#[derive(Debug)]
pub(super) struct Seats {
    max: usize,
    taken: RefCell<Vec<Rc<Seat>>>,
    /// Counts what askers do: who did something last has the highest number.
    turns: Cell<u64>,
    /// A seat has become free, or who has it may be asked to leave. One task waits for it.
    changed: Notify,
}

/// What an asker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It has no question, since that turn.
    Idle(u64),
    /// Its question is worked at.
    Working,
    /// It is sent an answer, since that turn.
    Sending(u64),
    /// It was asked to leave.
    Leaving,
}

#[derive(Debug)]
struct Seat {
    doing: Cell<Doing>,
    leave: Notify,
}

/// A seat that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    seat: Rc<Seat>,
    seats: Rc<Seats>,
}

impl Seats {
    pub(super) fn new(max: usize) -> Rc<Self> {
        let taken = RefCell::default();
        Rc::new(Self { max, taken, turns: Cell::default(), changed: Notify::new() })
    }

    /// Takes a seat for who has come, and has another one leave where there is none.
    pub(super) async fn take(self: &Rc<Self>) -> Taken {
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

    fn try_take(self: &Rc<Self>) -> Option<Taken> {
        let mut taken = self.taken.borrow_mut();
        if taken.len() >= self.max {
            return None;
        }
        let doing = Cell::new(Doing::Idle(self.turn()));
        let seat = Rc::new(Seat { doing, leave: Notify::new() });
        taken.push(Rc::clone(&seat));
        Some(Taken { seat, seats: Rc::clone(self) })
    }

    /// `false`: all questions are being worked at.
    fn ask_one_to_leave(&self) -> bool {
        let taken = self.taken.borrow();
        let rank = |seat: &&Rc<Seat>| match seat.doing.get() {
            Doing::Idle(since) => Some((0, since)),
            Doing::Sending(since) => Some((1, since)),
            Doing::Working | Doing::Leaving => None,
        };
        let ranked = taken.iter().filter_map(|seat| Some((rank(&seat)?, seat)));
        let Some((_, seat)) = ranked.min_by_key(|(rank, _)| *rank) else { return false };
        seat.doing.set(Doing::Leaving);
        seat.leave.notify_one();
        true
    }

    fn turn(&self) -> u64 {
        let turn = self.turns.get() + 1;
        self.turns.set(turn);
        turn
    }
}

impl Taken {
    /// It waits for a question.
    pub(super) fn set_idle(&self) {
        self.set(Doing::Idle(self.seats.turn()));
        self.seats.changed.notify_one();
    }

    /// Its question is worked at.
    pub(super) fn set_working(&self) {
        self.set(Doing::Working);
    }

    /// It is sent an answer.
    pub(super) fn set_sending(&self) {
        self.set(Doing::Sending(self.seats.turn()));
        self.seats.changed.notify_one();
    }

    /// Waits until it is asked to leave. Once it has been, it gets no other chance to.
    pub(super) async fn asked_to_leave(&self) {
        self.seat.leave.notified().await;
    }

    fn set(&self, doing: Doing) {
        if self.seat.doing.get() != Doing::Leaving {
            self.seat.doing.set(doing);
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.seats.taken.borrow_mut().retain(|seat| !Rc::ptr_eq(seat, &self.seat));
        self.seats.changed.notify_one();
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

    fn leaves(taken: &Taken) -> bool {
        polled(pin!(taken.asked_to_leave())).is_some()
    }

    /// Three seats, taken in this order.
    async fn full() -> (Rc<Seats>, [Taken; 3]) {
        let seats = Seats::new(3);
        let taken = [seats.take().await, seats.take().await, seats.take().await];
        (seats, taken)
    }

    #[tokio::test]
    async fn who_has_been_idle_for_the_longest_leaves_and_no_other() {
        let (seats, [first, second, third]) = full().await;
        first.set_working();
        first.set_sending();
        first.set_idle();
        let mut another = pin!(seats.take());
        assert!(polled(another.as_mut()).is_none());
        assert!(leaves(&second) && !leaves(&first) && !leaves(&third));
        // What others do meanwhile makes no second one leave.
        third.set_working();
        third.set_idle();
        assert!(polled(another.as_mut()).is_none());
        assert!(!leaves(&first) && !leaves(&third));
        drop(second);
        let fourth = polled(another.as_mut()).unwrap();
        assert!(!leaves(&first) && !leaves(&third) && !leaves(&fourth));
    }

    #[tokio::test]
    async fn who_waits_for_an_answer_stays_while_another_one_is_idle() {
        let (seats, [first, second, third]) = full().await;
        first.set_working();
        second.set_working();
        second.set_sending();
        let mut another = pin!(seats.take());
        assert!(polled(another.as_mut()).is_none());
        assert!(leaves(&third) && !leaves(&first) && !leaves(&second));
    }

    #[tokio::test]
    async fn who_does_not_read_its_answer_leaves_where_nobody_is_idle() {
        let (seats, [first, second, third]) = full().await;
        for taken in [&first, &second, &third] {
            taken.set_working();
        }
        let mut another = pin!(seats.take());
        assert!(polled(another.as_mut()).is_none());
        assert!(!leaves(&first) && !leaves(&second) && !leaves(&third));
        second.set_sending();
        assert!(polled(another.as_mut()).is_none());
        assert!(leaves(&second) && !leaves(&first) && !leaves(&third));
    }
}
