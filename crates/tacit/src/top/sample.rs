//! Gets the data for `tacit top` from the agent, and computes the differences between consecutive
//! answers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::control::client::{self, ClientError};
use crate::control::display::connections::{ConnectionDisplay, ConnectionsDisplay};
use crate::control::{Display, Request};
use crate::ledger::costs::Costs;

/// The query for connections may use at most 1/20 of the time: with very many connections, the
/// answer costs the agent more CPU time than this program.
const CONNECTIONS_SHARE: u32 = 20;

/// How long to wait for an answer. Keys and signals are not handled meanwhile.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(2);

/// Queries an agent repeatedly.
#[derive(Debug)]
pub(super) struct Sampler {
    control: PathBuf,
    earlier: Option<Costs>,
    connections: Vec<Connection>,
    connections_due: Option<Instant>,
}

/// The figures of one interval.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// The costs of the interval.
    pub(super) costs: Costs,
    /// The time since the agent started, in seconds.
    pub(super) age_s: f64,
    /// The open connections.
    pub(super) connections: Vec<Connection>,
}

/// An open connection.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) rule: String,
    pub(super) remote: String,
    pub(super) program: String,
    /// The negotiated TLS version.
    pub(super) tls: String,
    /// Payload bytes in both directions.
    pub(super) bytes: u64,
    /// CPU time since it was opened.
    pub(super) cpu_us: f64,
    /// CPU time since the last query.
    pub(super) cpu_us_lately: f64,
    pub(super) age_s: u64,
}

impl Sampler {
    pub(super) fn new(control: PathBuf) -> Self {
        Self { control, earlier: None, connections: Vec::new(), connections_due: None }
    }

    /// The figures since the last call; at the first call, since the agent started.
    pub(super) fn sample(&mut self) -> Result<Sample, ClientError> {
        let now = self.ask::<Costs>(Display::Costs)?;
        // The figures of a restarted agent cannot be compared with the earlier ones.
        let earlier = self.earlier.as_ref().filter(|earlier| earlier.since == now.since);
        let costs = earlier.map_or_else(|| now.clone(), |earlier| now.since(earlier));
        let age_s = now.interval_s;
        self.earlier = Some(now);
        if self.connections_due.is_none_or(|due| Instant::now() >= due) {
            let requested = Instant::now();
            let shown: ConnectionsDisplay = self.ask(Display::Connections)?;
            self.connections = connections(shown.connections, &self.connections);
            let took: Duration = requested.elapsed();
            self.connections_due = Some(Instant::now() + took * (CONNECTIONS_SHARE - 1));
        }
        Ok(Sample { costs, age_s, connections: self.connections.clone() })
    }

    fn ask<T: DeserializeOwned>(&self, what: Display) -> Result<T, ClientError> {
        let request = Request::Show { what };
        client::typed(client::ask_within(&self.control, &request, ANSWER_TIME_MAX)?)
    }
}

/// Converts the connections, and computes the CPU time that each has used since `before`.
fn connections(shown: Vec<ConnectionDisplay>, before: &[Connection]) -> Vec<Connection> {
    let before: HashMap<u64, f64> = before.iter().map(|one| (one.id, one.cpu_us)).collect();
    let one = |shown: ConnectionDisplay| Connection {
        id: shown.id,
        remote: shown.origin().to_string(),
        program: program(&shown).unwrap_or_else(|| "-".to_owned()),
        tls: shown.tls.map_or_else(|| "-".to_owned(), |tls| tls.version),
        bytes: shown.bytes_in + shown.bytes_out,
        cpu_us: shown.cpu_us,
        cpu_us_lately: (shown.cpu_us - before.get(&shown.id).copied().unwrap_or(0.0)).max(0.0),
        age_s: shown.age_s,
        rule: shown.rule,
    };
    shown.into_iter().map(one).collect()
}

/// The file name of the program.
fn program(shown: &ConnectionDisplay) -> Option<String> {
    shown.run.as_ref()?.program.as_ref()?.name.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::display::connections::{ConnectionProgram, ConnectionRun, example};

    #[test]
    fn connections_have_the_cpu_time_since_the_last_query() {
        let shown = |cpu_us: f64| {
            let program = ConnectionProgram { pid: 7, path: None, name: Some("psql".to_owned()) };
            let run = ConnectionRun {
                id: 1,
                name: "run".to_owned(),
                pid: 1,
                user: "ann".to_owned(),
                claimed: false,
                direction: "outbound".to_owned(),
                names: Vec::new(),
                alias: None,
                program: Some(program),
            };
            let web = ConnectionDisplay {
                run: Some(run),
                remote: "10.0.0.1:1".parse().unwrap(),
                client: Some("192.0.2.1:2".parse().unwrap()),
                bytes_in: 1,
                bytes_out: 2,
                cpu_us,
                age_s: 9,
                ..example(7)
            };
            vec![web, example(8)]
        };
        let first = connections(shown(100.0), &[]);
        let second = connections(shown(250.0), &first);
        let wanted = Connection {
            id: 7,
            rule: "web".into(),
            remote: "192.0.2.1:2".into(),
            program: "psql".into(),
            tls: "-".into(),
            bytes: 3,
            cpu_us: 250.0,
            cpu_us_lately: 150.0,
            age_s: 9,
        };
        assert_eq!(second[0], wanted);
        assert_eq!((&*second[1].program, second[1].cpu_us_lately), ("-", 0.0));
    }
}
