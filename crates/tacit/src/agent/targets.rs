//! Asks the predecessor (the agent that this agent replaces) which targets are down. A target is an
//! address to which an agent connects. The first connections of this agent then do not try targets
//! that are down.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::control::client::{self, ClientError};
use crate::control::{Display, Request};
use crate::live::{Live, LiveRule};
use crate::log::{Event, Log};
use crate::net::target::SeveralTargets;

/// How long the predecessor may take for each part of its answer.
const ANSWER_WAIT: Duration = Duration::from_secs(5);

/// The part of the display of rules that is needed here.
#[derive(Debug, Deserialize)]
struct ShownRules {
    rules: Vec<ShownRule>,
}

#[derive(Debug, Deserialize)]
struct ShownRule {
    name: String,
    /// Present only for a rule with several targets.
    targets: Option<ShownTargets>,
}

#[derive(Debug, Deserialize)]
struct ShownTargets {
    states: Vec<ShownTarget>,
}

#[derive(Debug, Deserialize)]
struct ShownTarget {
    connect: String,
    down: bool,
}

/// Marks the targets that are down according to the predecessor. Without its answer all targets
/// begin as up, as after a start, and a warning is logged.
pub(super) fn inherit(live: &Live, control: &Path, log: &Log) {
    if live.rules.iter().all(|rule| several(rule).is_none()) {
        return;
    }
    match ask(control) {
        Ok(shown) => mark(live, &shown),
        Err(error) => {
            let event = Event::new("targets-unknown").field("error", &error);
            log.warn(event.field(
                "next",
                "no action is needed: the agent does not know which addresses in `connect` were \
                 down, and tries all of them again",
            ));
        }
    }
}

fn ask(control: &Path) -> Result<ShownRules, ClientError> {
    let request = Request::Show { what: Display::Rules };
    client::typed(client::ask_within(control, &request, ANSWER_WAIT)?)
}

fn mark(live: &Live, shown: &ShownRules) {
    let now = Instant::now();
    for rule in &live.rules {
        let before = shown.rules.iter().find(|before| before.name == rule.name());
        let states = before.and_then(|before| before.targets.as_ref()).map(|known| &known.states);
        if let (Some(targets), Some(states)) = (several(rule), states) {
            for state in states.iter().filter(|state| state.down) {
                targets.inherit_down(&state.connect, now);
            }
        }
    }
}

fn several(rule: &LiveRule) -> Option<&SeveralTargets> {
    rule.targets.as_ref()?.several()
}
