//! What the agent says, an interval at a time.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::control::client::{self, ClientError};
use crate::control::{Display, Request};
use crate::ledger::costs::Costs;

/// Connections are asked for so seldom that asking takes this part of the time at most: with very
/// many, an answer costs the agent more than it costs us.
const CONNECTIONS_SHARE: u32 = 20;

/// How long an agent may be silent: keys and signals wait meanwhile.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Asks an agent, again and again.
#[derive(Debug)]
pub(super) struct Sampler {
    control: PathBuf,
    earlier: Option<Costs>,
    connections: Vec<Connection>,
    connections_due: Option<Instant>,
}

/// One interval.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// What was spent in it.
    pub(super) costs: Costs,
    /// How long the agent has run, in seconds.
    pub(super) age_s: f64,
    /// What is open.
    pub(super) connections: Vec<Connection>,
}

/// One open connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) rule: String,
    pub(super) remote: String,
    pub(super) program: String,
    /// The version agreed on.
    pub(super) tls: String,
    /// Payload, both ways.
    pub(super) bytes: u64,
    /// CPU time since it was opened.
    pub(super) cpu_us: f64,
    /// CPU time since it was last asked for.
    pub(super) cpu_us_lately: f64,
    pub(super) age_s: u64,
}

impl Sampler {
    pub(super) fn new(control: PathBuf) -> Self {
        Self { control, earlier: None, connections: Vec::new(), connections_due: None }
    }

    /// What has happened since the last call; since the agent started, at the first.
    pub(super) fn sample(&mut self) -> Result<Sample, ClientError> {
        let now = client::to_costs(self.ask(Display::Costs)?)?;
        // Another agent's figures have nothing to be compared with.
        let earlier = self.earlier.as_ref().filter(|earlier| earlier.since == now.since);
        let costs = earlier.map_or_else(|| now.clone(), |earlier| now.since(earlier));
        let age_s = now.interval_s;
        self.earlier = Some(now);
        if self.connections_due.is_none_or(|due| Instant::now() >= due) {
            let asked = Instant::now();
            let answer = self.ask(Display::Connections)?;
            self.connections = connections(&answer, &self.connections);
            let took: Duration = asked.elapsed();
            self.connections_due = Some(Instant::now() + took * (CONNECTIONS_SHARE - 1));
        }
        Ok(Sample { costs, age_s, connections: self.connections.clone() })
    }

    fn ask(&self, what: Display) -> Result<Value, ClientError> {
        client::ask_within(&self.control, &Request::Show { what }, ANSWER_TIME_MAX)
    }
}

/// The display of connections, with what each has used since `before`.
fn connections(answer: &Value, before: &[Connection]) -> Vec<Connection> {
    let before: HashMap<u64, f64> = before.iter().map(|one| (one.id, one.cpu_us)).collect();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let one = |value: &Value| {
        let id = number(&value["id"]);
        let cpu_us = value["cpu-us"].as_f64().unwrap_or(0.0);
        let client = &value["client"];
        Connection {
            id,
            rule: text(&value["rule"]),
            remote: text(if client.is_null() { &value["remote"] } else { client }),
            program: text(&value["run"]["program"]["name"]),
            tls: text(&value["tls"]["version"]),
            bytes: number(&value["bytes-in"]) + number(&value["bytes-out"]),
            cpu_us,
            cpu_us_lately: (cpu_us - before.get(&id).copied().unwrap_or(0.0)).max(0.0),
            age_s: number(&value["age-s"]),
        }
    };
    answer.as_array().into_iter().flatten().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn connections_know_what_they_used_lately() {
        let shown = |cpu_us: f64| {
            json!([{
                "id": 7, "rule": "web", "remote": "10.0.0.1:1", "client": "192.0.2.1:2",
                "run": { "program": { "name": "psql" } }, "tls": { "version": "1.3" },
                "bytes-in": 1, "bytes-out": 2, "cpu-us": cpu_us, "age-s": 9,
            }, { "id": 8, "rule": "plain", "remote": "10.0.0.2:1" }])
        };
        let first = connections(&shown(100.0), &[]);
        let second = connections(&shown(250.0), &first);
        let wanted = Connection {
            id: 7,
            rule: "web".into(),
            remote: "192.0.2.1:2".into(),
            program: "psql".into(),
            tls: "1.3".into(),
            bytes: 3,
            cpu_us: 250.0,
            cpu_us_lately: 150.0,
            age_s: 9,
        };
        assert_eq!(second[0], wanted);
        let plain = (&*second[1].tls, &*second[1].program, second[1].cpu_us_lately);
        assert_eq!(plain, ("-", "-", 0.0));
    }
}
