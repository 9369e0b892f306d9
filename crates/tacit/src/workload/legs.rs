//! Sockets of agents: the kernel's figures of the connection that has TLS, while it runs.
//!
//! An agent is asked for its connections as `tacit show connections` does it. Of these one is
//! followed: the one that has carried the most when it is asked for the second time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::Value;

use super::ledgers::Agent;
use super::samples::Samples;
use super::tcp::{Sample, Trace};
use crate::control::client;
use crate::control::{Display, Request};

/// An agent with more connections is not asked again: its answer would cost more than the bytes.
const CONNECTIONS_MAX: usize = 200;

/// Follows one connection of an agent until `ended`.
pub(super) fn follow(agent: &Agent, start: Instant, ended: &AtomicBool) -> Trace {
    let mut samples = Samples::starting(start);
    let mut choice = Choice::default();
    while !ended.load(Ordering::Relaxed) {
        std::thread::park_timeout(samples.wait());
        if !samples.wait().is_zero() {
            continue;
        }
        let Some(connections) = ask(agent) else { break };
        let leg = choice.of(&connections).map(tls_leg);
        match leg.and_then(|leg| Sample::of_leg(leg, samples.start())) {
            Some(sample) => samples.keep(sample),
            None => samples.skip(),
        }
    }
    Trace { of: format!("{}, TLS", agent.name), samples: samples.into_kept() }
}

fn ask(agent: &Agent) -> Option<Vec<Value>> {
    let request = Request::Show { what: Display::Connections };
    let answer = client::ask(&agent.control().ok()?, &request).ok()?;
    let Value::Array(connections) = answer else { return None };
    (connections.len() <= CONNECTIONS_MAX).then_some(connections)
}

/// The socket with TLS, or the upstream socket if neither has TLS.
fn tls_leg(connection: &Value) -> &Value {
    match connection["role"].as_str() {
        Some("server") => &connection["accepted-tcp"],
        _ => &connection["dialled-tcp"],
    }
}

/// Which connection is followed.
#[derive(Default)]
struct Choice {
    /// What each had carried when they were first seen.
    first_bytes: HashMap<u64, u64>,
    id: Option<u64>,
}

impl Choice {
    fn of<'a>(&mut self, connections: &'a [Value]) -> Option<&'a Value> {
        let find = |id: u64| connections.iter().find(|one| one["id"].as_u64() == Some(id));
        if let Some(found) = self.id.and_then(find) {
            return Some(found);
        }
        let mut carried = HashMap::new();
        for one in connections {
            let number = |key: &str| one[key].as_u64();
            if let (Some(id), Some(received), Some(sent)) =
                (number("id"), number("bytes-in"), number("bytes-out"))
            {
                carried.insert(id, received + sent);
            }
        }
        let grown = |(id, bytes): (&u64, &u64)| {
            let more = bytes.saturating_sub(*self.first_bytes.get(id)?);
            (more > 0).then_some((more, *id))
        };
        self.id = carried.iter().filter_map(grown).max().map(|(_, id)| id);
        self.first_bytes = carried;
        self.id.and_then(find)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn connection(id: u64, bytes: u64) -> Value {
        json!({ "id": id, "bytes-in": bytes, "bytes-out": 0, "role": "server",
                "accepted-tcp": { "of": id }, "dialled-tcp": null })
    }

    #[test]
    fn the_busiest_connection_is_followed_until_it_is_gone() {
        let mut choice = Choice::default();
        let mut chosen =
            |connections: &[Value]| choice.of(connections).map(|one| one["id"].clone());
        assert_eq!(chosen(&[connection(1, 900), connection(2, 5)]), None, "nothing moved yet");
        assert_eq!(chosen(&[connection(1, 900), connection(2, 25)]), Some(json!(2)));
        assert_eq!(chosen(&[connection(1, 9000), connection(2, 25)]), Some(json!(2)));
        assert_eq!(chosen(&[connection(1, 9900)]), Some(json!(1)));
    }

    #[test]
    fn the_leg_is_the_one_that_carries_tls() {
        assert_eq!(tls_leg(&connection(7, 1))["of"], 7);
        let client = json!({ "role": "client", "dialled-tcp": 1, "accepted-tcp": 2 });
        assert_eq!(tls_leg(&client), 1);
    }
}
