//! Installs the previous policy again if the operator does not confirm a new policy in time. For
//! example, a new policy may block the operator's SSH connection.
//!
//! ```text
//!   none ── install with --confirm ──> waiting ── tacit confirm ──> none
//!                                       │   ^
//!                               timeout │   │ the previous policy cannot be installed
//!                                       v   │
//!                                     returning ── the previous policy is installed ──> taken back
//! ```
//!
//! In the state `none`, no confirmation is pending. In the state `returning`, the agent installs
//! the previous policy. In the state `taken back`, which lasts until the next reload, the agent
//! rejects a late confirmation.
//!
//! While a policy waits for its confirmation, the operator may install another policy with
//! `--confirm`. If the operator confirms neither of these two policies, the agent installs the
//! policy that was in use before both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::policy::Policy;

/// The longest time to wait for a confirmation.
pub(super) const CONFIRM_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long to wait after a failure to return to the old policy.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// What to return to without a confirmation.
#[derive(Clone, Debug)]
pub(super) enum Previous {
    /// The state before the agent captured the host.
    NoCapture,
    /// An installed policy.
    Policy(Arc<Policy>),
}

/// Whether the installed policy waits for a confirmation.
#[derive(Debug, Default)]
pub(super) enum Confirmation {
    /// It does not.
    #[default]
    None,
    /// It does, until a time.
    Waiting { previous: Previous, until: Instant },
    /// It does not: it was in use before a policy that was not confirmed in time.
    TakenBack,
}

impl Confirmation {
    /// Records that a policy was installed in place of another one, and waits this long for its
    /// confirmation.
    pub(super) fn begin(&mut self, replaced: Previous, time: Duration, now: Instant) {
        let previous = match std::mem::take(self) {
            Self::None | Self::TakenBack => replaced,
            Self::Waiting { previous, .. } => previous,
        };
        *self = Self::Waiting { previous, until: now + time.min(CONFIRM_MAX) };
    }

    /// Ends the wait for a confirmation; returns whether a policy was waiting.
    pub(super) fn end(&mut self) -> bool {
        let was_waiting = self.is_waiting();
        *self = Self::None;
        was_waiting
    }

    /// Records that the previous policy is installed again.
    pub(super) fn take_back(&mut self) {
        *self = Self::TakenBack;
    }

    /// Whether the previous policy was installed again, and no other one since.
    pub(super) fn was_taken_back(&self) -> bool {
        matches!(self, Self::TakenBack)
    }

    /// Whether a policy waits.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    /// Returns the state to restore if the time for the confirmation is over. After an interval,
    /// returns it again, unless the wait has ended.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Previous> {
        let Self::Waiting { previous, until } = self else { return None };
        if now < *until {
            return None;
        }
        *until = now + RETRY_INTERVAL;
        Some(previous.clone())
    }

    /// Waits until the time for the confirmation is over. Never returns if no policy waits.
    pub(super) async fn due(&self) {
        match self {
            Self::None | Self::TakenBack => std::future::pending().await,
            Self::Waiting { until, .. } => tokio::time::sleep_until((*until).into()).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn is_to_no_capture(due: Option<Previous>) -> bool {
        matches!(due, Some(Previous::NoCapture))
    }

    fn a_policy() -> Previous {
        let parsed = tacit_core::policy::parse("version = 1\n");
        Previous::Policy(Arc::new(parsed.policy.expect("a policy")))
    }

    #[test]
    fn a_policy_that_is_not_confirmed_in_time_is_taken_back() {
        let now = Instant::now();
        let mut confirmation = Confirmation::default();
        assert!(confirmation.take_due(now).is_none(), "none waits");
        confirmation.begin(a_policy(), MINUTE, now);
        assert!(confirmation.take_due(now + MINUTE - Duration::from_millis(1)).is_none());
        assert!(matches!(confirmation.take_due(now + MINUTE), Some(Previous::Policy(_))));
        assert!(confirmation.is_waiting(), "it may fail");
        assert!(confirmation.take_due(now + MINUTE).is_none());
        assert!(confirmation.take_due(now + MINUTE + RETRY_INTERVAL).is_some());
        confirmation.take_back();
        assert!(confirmation.was_taken_back() && !confirmation.is_waiting());
        assert!(confirmation.take_due(now + 9 * MINUTE).is_none());
        confirmation.begin(Previous::NoCapture, MINUTE, now + 9 * MINUTE);
        assert!(confirmation.is_waiting() && confirmation.end(), "the next policy waits");
    }

    #[test]
    fn a_confirmed_policy_stays() {
        let now = Instant::now();
        let mut confirmation = Confirmation::default();
        assert!(!confirmation.end(), "there is nothing to confirm");
        confirmation.begin(Previous::NoCapture, MINUTE, now);
        assert!(confirmation.end());
        assert!(confirmation.take_due(now + 2 * MINUTE).is_none());
    }

    #[test]
    fn of_several_policies_none_of_which_is_confirmed_the_first_replaced_one_returns() {
        let now = Instant::now();
        let mut confirmation = Confirmation::default();
        confirmation.begin(Previous::NoCapture, MINUTE, now);
        confirmation.begin(a_policy(), MINUTE, now + MINUTE / 2);
        assert!(confirmation.take_due(now + MINUTE).is_none(), "the time begins again");
        assert!(is_to_no_capture(confirmation.take_due(now + 2 * MINUTE)));
    }

    #[test]
    fn the_time_has_a_limit() {
        let now = Instant::now();
        let mut confirmation = Confirmation::default();
        confirmation.begin(Previous::NoCapture, Duration::from_secs(u64::from(u32::MAX)), now);
        assert!(is_to_no_capture(confirmation.take_due(now + CONFIRM_MAX)));
    }
}
