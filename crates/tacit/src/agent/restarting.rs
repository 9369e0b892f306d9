//! Answers restart requests when their outcome is known: when the successor of this agent serves,
//! or when it has failed.
//!
//! ```text
//!   no restart ── request ──> under way ─┬─ the successor serves ──────────────> answer: success
//!                                        └─ the supervisor reports a failure ──> answer: reason
//! ```
//!
//! The agent refuses reloads while a restart is under way, because the successor may have read the
//! policy file already.
//!
//! Limit: at most [`WAITING_MAX`] requests wait for the outcome.

use tokio::sync::{mpsc, oneshot};

use super::supervised::SupervisorReport;
use crate::control::outcome::Draining;
use crate::control::server::Reply;

/// The maximum number of requests that wait for the outcome of a restart.
const WAITING_MAX: usize = 64;
/// The maximum number of queued reports of the supervisor.
pub(super) const REPORTS_MAX: usize = 4;

/// The restart that is under way, if any.
#[derive(Debug)]
pub(super) struct Restarting {
    is_under_way: bool,
    has_succeeded: bool,
    waiting: Vec<oneshot::Sender<Reply>>,
    /// Where reports of the supervisor go.
    pub(super) reports: mpsc::Sender<SupervisorReport>,
}

impl Restarting {
    pub(super) fn new(reports: mpsc::Sender<SupervisorReport>) -> Self {
        Self { is_under_way: false, has_succeeded: false, waiting: Vec::new(), reports }
    }

    /// Whether a successor is starting.
    pub(super) fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    /// Whether a successor serves in place of this agent.
    pub(super) fn has_succeeded(&self) -> bool {
        self.has_succeeded
    }

    /// Records that a successor is starting.
    pub(super) fn begin(&mut self) {
        self.is_under_way = true;
    }

    /// Lets a request wait for the outcome.
    pub(super) fn wait(&mut self, back: oneshot::Sender<Reply>) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(back);
            return;
        }
        let reason = "too many requests wait for the current restart\n    fix: try again later";
        // The client may have closed its connection.
        let _ = back.send(Reply::error(reason));
    }

    /// The successor serves, and `open` connections stay with this agent.
    pub(super) fn succeed(&mut self, open: usize) {
        self.has_succeeded = true;
        self.end(|| Reply::written(&Draining { open }));
    }

    /// There is no successor, for this reason. Returns whether requests were waiting.
    pub(super) fn fail(&mut self, reason: &str) -> bool {
        let had_waiting = !self.waiting.is_empty();
        self.end(|| Reply::error(reason));
        had_waiting
    }

    fn end(&mut self, reply: impl Fn() -> Reply) {
        self.is_under_way = false;
        for back in self.waiting.drain(..) {
            // The client may have closed its connection.
            let _ = back.send(reply());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarting() -> Restarting {
        Restarting::new(mpsc::channel(REPORTS_MAX).0)
    }

    fn answer(back: &mut oneshot::Receiver<Reply>) -> String {
        let reply = back.try_recv().expect("an answer");
        format!("{:?}", reply.typed::<serde_json::Value>())
    }

    #[test]
    fn requests_are_answered_when_the_outcome_is_known() {
        let mut restarting = restarting();
        for succeeds in [true, false] {
            restarting.begin();
            let (first, mut first_back) = oneshot::channel();
            let (second, mut second_back) = oneshot::channel();
            restarting.wait(first);
            restarting.wait(second);
            assert!(restarting.is_under_way() && first_back.try_recv().is_err());
            if succeeds {
                restarting.succeed(3);
            } else {
                assert!(restarting.fail("no such file"));
            }
            assert!(!restarting.is_under_way());
            for back in [&mut first_back, &mut second_back] {
                let answer = answer(back);
                assert_eq!(answer.contains("no such file"), !succeeds, "{answer}");
            }
        }
        assert!(!restarting.fail("again"), "no request waits");
    }

    #[test]
    fn the_number_of_waiting_requests_is_limited() {
        let mut restarting = restarting();
        restarting.begin();
        let mut backs: Vec<_> = (0..=WAITING_MAX)
            .map(|_| {
                let (back, received) = oneshot::channel();
                restarting.wait(back);
                received
            })
            .collect();
        let last = answer(backs.last_mut().expect("several requests"));
        assert!(last.contains("too many requests"), "{last}");
        assert!(backs[0].try_recv().is_err(), "the others wait");
    }
}
