//! Opens the socket for metrics, and answers requests of monitoring systems on it.

use std::sync::Arc;

use serde_json::json;
use tacit_core::flow::Address;
use tacit_core::policy::{Policy, UnixSocket};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::answer::show_aside;
use super::opened::{ListenError, Opened, RequiredListener};
use super::takeover::Handover;
use super::{Agent, AgentError};
use crate::clock::Rfc3339;
use crate::control::display::VERSION;
use crate::control::display::identities::identities;
use crate::control::display::metrics::MetricsDisplay;
use crate::control::display::refused::refused;
use crate::control::display::rules::rules;
use crate::control::metrics::server::{self, Listening};
use crate::control::metrics::{self, Sources};
use crate::control::server::{PendingRequest, Reply};
use crate::ledger::costs::Costs;
use crate::log::Log;

/// The socket for metrics, and the task that serves it.
pub(super) struct Metrics {
    pub(super) opened: Opened,
    task: JoinHandle<()>,
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Metrics {
    /// Opens or takes over the socket, if the policy has `metrics`, and starts to serve it.
    pub(super) fn open(
        policy: &Policy,
        handover: &mut Handover,
        requests: &mpsc::Sender<PendingRequest>,
        log: &Log,
    ) -> Result<Option<Self>, AgentError> {
        let Some(address) = &policy.agent.metrics else { return Ok(None) };
        // Unlike relayed connections, connections of scrapers are not reset when the agent ends.
        let unix = UnixSocket { mode: 0o600, owner: None, replace_stale: true };
        let wanted = RequiredListener { address: address.clone(), clear: false, unix };
        let opened = handover.open(&wanted, None).map_err(AgentError::Listen)?;
        let listening = listen_on(address, &opened)
            .map_err(|error| AgentError::Listen(ListenError::new(address, error.to_string())))?;
        let serve = server::serve(listening, requests.clone(), log.clone());
        Ok(Some(Self { opened, task: tokio::task::spawn_local(serve) }))
    }
}

fn listen_on(address: &Address, opened: &Opened) -> std::io::Result<Listening> {
    let socket = opened.listener.socket.try_clone()?;
    Ok(match address {
        Address::Inet(_) => Listening::Tcp(TcpListener::from_std(socket.into())?),
        _ => Listening::Unix(UnixListener::from_std(socket.into())?),
    })
}

impl Agent {
    /// Answers a scraper or `tacit show metrics` after the workers have published their CPU time.
    /// Other requests are answered meanwhile.
    pub(super) fn show_metrics(&self, back: oneshot::Sender<Reply>) {
        let table = Arc::clone(&self.shared.table);
        let live = self.shared.live.load_full();
        let credentials = self.credentials.loaded.clone();
        let log = self.shared.log.clone();
        let refusals = Arc::clone(&self.shared.refusals);
        let since = self.since;
        let publisher = self.workers.publisher();
        let handshakes = self.shared.limiter.in_flight();
        let connections_max = self.connections_max;
        let runs = self.runs.registry.len();
        let coverage = self.covered();
        let ike = self.tunnels.show_ike(&self.credentials.loaded);
        let packets = self.tunnels.statistics();
        let refused_by_peer = self.tunnels.refused();
        let counted = self.count_flows_of_host();
        tokio::task::spawn_local(async move {
            counted.await;
            publisher.publish().await;
            let failures = |account: &_| live.failures(account);
            // The CPU time of programs of runs is not read, because metrics do not contain it.
            let costs = Costs::read(since, failures, Vec::new());
            show_aside(back, move || {
                let text = metrics::text(&Sources {
                    costs: &costs,
                    rules: &rules(&table, &live),
                    live: &live,
                    table: &table,
                    identities: &identities(&credentials, &live),
                    since: Rfc3339(since),
                    handshakes,
                    connections_max,
                    runs,
                    log_lines_lost: log.lost(),
                    refused: &refused(&refusals),
                    ike: &ike,
                    refused_by_peer: &refused_by_peer,
                    packets: &packets,
                    coverage: coverage.as_ref(),
                });
                Reply::ok(json!(MetricsDisplay { version: VERSION, text }))
            });
        });
    }
}
