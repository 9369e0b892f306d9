//! Finds the ports on which the programs of a run listen, by asking the helper repeatedly.
//!
//! The kernel reports no event for a new listener. The interval between two requests is short after
//! a change and grows to a tenth of a second. While no rule is for inbound connections of runs, no
//! requests are sent.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::Run;
use super::launchers::RunEvent;
use crate::live::Live;

/// How soon after a change programs are asked again.
const INTERVAL_MIN: Duration = Duration::from_millis(5);
/// How seldom they are asked when nothing changes.
const INTERVAL_MAX: Duration = Duration::from_millis(100);
/// How often it is looked whether a rule leads in.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Reports to the control thread whenever the run's programs listen elsewhere than before.
pub async fn watch<S>(run: Arc<Run>, live: Arc<ArcSwap<Live>>, events: mpsc::Sender<RunEvent<S>>) {
    let mut interval = INTERVAL_MIN;
    let mut known = Vec::new();
    loop {
        if !leads_in(&live.load()) {
            tokio::time::sleep(IDLE_INTERVAL).await;
            continue;
        }
        // Without a helper nothing is known to have changed.
        if let Ok(mut listening) = run.helper.listening().await {
            listening.sort_unstable();
            interval = (interval * 2).min(INTERVAL_MAX);
            if listening != known {
                interval = INTERVAL_MIN;
                known.clone_from(&listening);
                run.set_listening(listening);
                if events.send(RunEvent::Listening(run.id)).await.is_err() {
                    return;
                }
            }
        }
        tokio::time::sleep(interval).await;
    }
}

/// Whether a rule leads into runs from an address outside.
fn leads_in(live: &Live) -> bool {
    live.policy.rules.iter().any(|rule| rule.inbound().is_some() && !rule.listens().is_empty())
}
