//! Finds the ports on which programs under `tacit run` listen. The kernel does not report new
//! listeners, so the agent asks the helper process repeatedly.
//!
//! After a change, the agent asks at short intervals. Later the interval grows to a tenth of a
//! second. The agent asks only if the policy has a rule for inbound connections of runs.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::mpsc;

use super::Run;
use super::launchers::RunEvent;
use crate::live::Live;

/// The interval between two requests after a change.
const INTERVAL_MIN: Duration = Duration::from_millis(5);
/// The longest interval between two requests.
const INTERVAL_MAX: Duration = Duration::from_millis(100);
/// The interval of checks for inbound rules while there are none.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Notifies the control thread when the programs of the run listen on other addresses than before.
pub async fn watch<S>(run: Arc<Run>, live: Arc<ArcSwap<Live>>, events: mpsc::Sender<RunEvent<S>>) {
    let mut interval = INTERVAL_MIN;
    let mut known = Vec::new();
    loop {
        if !leads_in(&live.load()) {
            tokio::time::sleep(IDLE_INTERVAL).await;
            continue;
        }
        // Without a helper, no change is known.
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

/// Whether the policy has a rule for inbound connections of runs.
fn leads_in(live: &Live) -> bool {
    live.policy.rules.iter().any(|rule| rule.inbound().is_some() && !rule.listens().is_empty())
}
