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

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::supervised::SupervisorReport;
use crate::control::outcome::Draining;
use crate::control::server::Reply;

/// The maximum number of requests that wait for the outcome of a restart. The successor and other
/// commands need control connections, too.
const WAITING_MAX: usize = 16;
/// How long after its release an agent waits for the report that its successor serves.
const REPORT_WAIT_MAX: Duration = Duration::from_secs(10);
/// The maximum number of queued reports of the supervisor.
pub(super) const REPORTS_MAX: usize = 4;

/// The restart that is under way, if any.
#[derive(Debug)]
pub(super) struct Restarting {
    state: RestartState,
    waiting: Vec<oneshot::Sender<Reply>>,
    /// Where reports of the supervisor go.
    pub(super) reports: mpsc::Sender<SupervisorReport>,
}

/// Whether a successor of this agent starts or serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestartState {
    /// There is none.
    None,
    /// It is starting.
    UnderWay,
    /// It has released this agent at this time.
    Replaced(Instant),
    /// The supervisor has ended, so a successor that is still starting is refused.
    Refused,
}

impl Restarting {
    pub(super) fn new(reports: mpsc::Sender<SupervisorReport>) -> Self {
        Self { state: RestartState::None, waiting: Vec::new(), reports }
    }

    /// Whether a successor is starting.
    pub(super) fn is_under_way(&self) -> bool {
        self.state == RestartState::UnderWay
    }

    /// Whether a successor has taken the place of this agent.
    pub(super) fn is_replaced(&self) -> bool {
        matches!(self.state, RestartState::Replaced(_))
    }

    /// Whether a successor that requests the sockets of this agent is refused.
    pub(super) fn refuses_successors(&self) -> bool {
        self.state == RestartState::Refused
    }

    /// Records that a successor is starting.
    pub(super) fn begin(&mut self) {
        if self.state == RestartState::None {
            self.state = RestartState::UnderWay;
        }
    }

    /// Records that the successor has released this agent.
    pub(super) fn note_replaced(&mut self) {
        self.state = RestartState::Replaced(Instant::now());
    }

    /// Lets a request wait for the outcome.
    pub(super) fn wait(&mut self, back: oneshot::Sender<Reply>) {
        self.waiting.retain(|waiting| !waiting.is_closed());
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
        self.answer(|| Reply::written(&Draining { open }));
    }

    /// Answers requests that still wait some seconds after the release. Older supervisors do
    /// not report that the successor serves.
    pub(super) fn answer_late(&mut self, open: usize) {
        if let RestartState::Replaced(at) = self.state
            && at.elapsed() > REPORT_WAIT_MAX
        {
            self.succeed(open);
        }
    }

    /// There is no successor, for this reason.
    pub(super) fn fail(&mut self, reason: &str) {
        if self.is_under_way() {
            self.state = RestartState::None;
        }
        self.answer(|| Reply::error(reason));
    }

    /// The supervisor has ended while a successor was starting.
    pub(super) fn refuse(&mut self, reason: &str) {
        self.state = RestartState::Refused;
        self.answer(|| Reply::error(reason));
    }

    fn answer(&mut self, reply: impl Fn() -> Reply) {
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
        for succeeds in [true, false] {
            let mut restarting = restarting();
            restarting.begin();
            let (first, mut first_back) = oneshot::channel();
            let (second, mut second_back) = oneshot::channel();
            restarting.wait(first);
            restarting.wait(second);
            assert!(restarting.is_under_way() && first_back.try_recv().is_err());
            if succeeds {
                restarting.note_replaced();
                restarting.succeed(3);
            } else {
                restarting.fail("no such file");
            }
            assert!(!restarting.is_under_way());
            for back in [&mut first_back, &mut second_back] {
                let answer = answer(back);
                assert_eq!(answer.contains("no such file"), !succeeds, "{answer}");
            }
        }
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
