//! Takes samples of the TCP state of the agent's TLS socket, while `tacit workload` runs.
//!
//! This module asks the agent for its connections at intervals. It selects the connection that has
//! transferred the most bytes since the previous selection, and samples this connection until it
//! closes. Then this module selects another connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::ledgers::Agent;
use super::samples::Samples;
use super::tcp::{Sample, Trace};
use crate::control::client;
use crate::control::display::connections::{ConnectionDisplay, ConnectionsDisplay};
use crate::control::{Display, Request};

/// An agent with more connections is not queried again: the queries would disturb the measurement.
const CONNECTIONS_MAX: usize = 200;

/// Samples one connection of an agent until `ended` is set.
pub(super) fn follow(agent: &Agent, start: Instant, ended: &AtomicBool) -> Trace {
    let mut samples = Samples::starting(start);
    let mut selector = ConnectionSelector::default();
    while !ended.load(Ordering::Relaxed) {
        std::thread::park_timeout(samples.wait());
        if !samples.wait().is_zero() {
            continue;
        }
        let Some(connections) = ask(agent) else { break };
        let socket = selector.of(&connections).and_then(ConnectionDisplay::network_tcp);
        match socket.and_then(|socket| Sample::of_agent_socket(socket, samples.start())) {
            Some(sample) => samples.keep(sample),
            None => samples.skip(),
        }
    }
    Trace { of: format!("{}, TLS", agent.name), samples: samples.into_kept() }
}

fn ask(agent: &Agent) -> Option<Vec<ConnectionDisplay>> {
    let request = Request::Show { what: Display::Connections };
    let shown: ConnectionsDisplay = client::ask_typed(&agent.control().ok()?, &request).ok()?;
    let ConnectionsDisplay { connections, .. } = shown;
    (connections.len() <= CONNECTIONS_MAX).then_some(connections)
}

/// Selects the connection to follow.
#[derive(Default)]
struct ConnectionSelector {
    /// The bytes of each connection at the first query.
    first_bytes: HashMap<u64, u64>,
    id: Option<u64>,
}

impl ConnectionSelector {
    fn of<'a>(&mut self, connections: &'a [ConnectionDisplay]) -> Option<&'a ConnectionDisplay> {
        let find = |id: u64| connections.iter().find(|one| one.id == id);
        if let Some(found) = self.id.and_then(find) {
            return Some(found);
        }
        let transferred: HashMap<_, _> =
            connections.iter().map(|one| (one.id, one.bytes_in + one.bytes_out)).collect();
        let grown = |(id, bytes): (&u64, &u64)| {
            let more = bytes.saturating_sub(*self.first_bytes.get(id)?);
            (more > 0).then_some((more, *id))
        };
        self.id = transferred.iter().filter_map(grown).max().map(|(_, id)| id);
        self.first_bytes = transferred;
        self.id.and_then(find)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::display::connections::{TcpState, example};

    fn connection(id: u64, bytes: u64) -> ConnectionDisplay {
        ConnectionDisplay { bytes_in: bytes, ..example(id) }
    }

    #[test]
    fn the_busiest_connection_is_followed_until_it_is_gone() {
        let mut selector = ConnectionSelector::default();
        let mut chosen =
            |connections: &[ConnectionDisplay]| selector.of(connections).map(|one| one.id);
        assert_eq!(chosen(&[connection(1, 900), connection(2, 5)]), None, "nothing moved yet");
        assert_eq!(chosen(&[connection(1, 900), connection(2, 25)]), Some(2));
        assert_eq!(chosen(&[connection(1, 9000), connection(2, 25)]), Some(2));
        assert_eq!(chosen(&[connection(1, 9900)]), Some(1));
    }

    #[test]
    fn the_socket_with_tls_is_sampled() {
        let tcp = |rtt_us| Some(TcpState { rtt_us, ..TcpState::default() });
        let both = ConnectionDisplay { accepted_tcp: tcp(1), connected_tcp: tcp(2), ..example(1) };
        let rtt_us = |role: &str| {
            let one = ConnectionDisplay { role: Some(role.to_owned()), ..both.clone() };
            one.network_tcp().map(|tcp| tcp.rtt_us)
        };
        assert_eq!((rtt_us("server"), rtt_us("client")), (Some(1), Some(2)));
    }
}
