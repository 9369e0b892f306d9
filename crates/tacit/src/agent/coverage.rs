//! Reads the list of the host's sockets at intervals, for `tacit agent --host`. Counts the flows of
//! these sockets by kind of protection, such as TLS or clear.
//!
//! ```text
//!   helper: sockets and their owners ─┐
//!   connections of the agent ─────────┼─> CoverageTable ─> `tacit show coverage`, metrics
//!   rules ────────────────────────────┘
//! ```
//!
//! A flow is not counted if it begins after one reading of the list and ends before the next.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tacit_core::coverage::{CoverageTable, CoveredFlow, Protection};
use tacit_core::flow::{Direction, Flow, Protocol};
use tacit_core::policy::{Action, OwnTls, Tls, unescaped};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Agent;
use crate::clock::{self, Rfc3339};
use crate::control::display::coverage::{CoverageDisplay, coverage};
use crate::control::server::Reply;
use crate::live::{Live, LiveAction};
use crate::run::protocol::{HostSocket, SocketEnds};
use crate::run::{Run, Scope};
use crate::session::{ConnectionRecord, ConnectionTable};

/// From one look at the sockets to the next.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// What is known of the flows of the host.
#[derive(Debug)]
pub(super) struct HostCoverage {
    table: Arc<Mutex<CoverageTable>>,
    next_look: Instant,
}

impl Default for HostCoverage {
    fn default() -> Self {
        Self { table: Arc::default(), next_look: Instant::now() }
    }
}

/// All that one look needs.
struct Look {
    host: Arc<Run>,
    connections: Arc<ConnectionTable>,
    live: Arc<Live>,
    table: Arc<Mutex<CoverageTable>>,
}

impl Agent {
    /// Looks at the sockets of the host, if it is captured and it is time to.
    pub(super) fn look_at_host_sockets(&mut self) {
        if Instant::now() < self.coverage.next_look {
            return;
        }
        self.coverage.next_look = Instant::now() + LOOK_INTERVAL;
        let Some(look) = self.look() else { return };
        tokio::task::spawn_local(async move {
            // Without a helper nothing is counted; other requests to it report that.
            let _ = look.run().await;
        });
    }

    /// Answers after a look. Other requests are answered meanwhile.
    pub(super) fn show_coverage(&self, back: oneshot::Sender<Reply>) {
        let look = self.look();
        let since = Rfc3339(self.since);
        let counted = self.count_flows_of_host();
        tokio::task::spawn_local(async move {
            counted.await;
            let reply = match look {
                None => Reply::written(&CoverageDisplay::not_captured(since)),
                Some(look) => match look.run().await {
                    Ok(()) => Reply::written(&look.display(since)),
                    Err(error) => Reply::error(format!(
                        "the helper process cannot list the sockets of this host: {error}"
                    )),
                },
            };
            // The client may have closed its connection.
            let _ = back.send(reply);
        });
    }

    /// Adds the flows that the kernel of a captured host has decided to the counters of rules.
    pub(super) fn count_flows_of_host(&self) -> impl Future<Output = ()> + use<> {
        let capture = self.runs.registry.host().map(|host| Arc::clone(&host.capture));
        async move {
            let Some(capture) = capture else { return };
            // Without a helper nothing is counted; other requests to it report that.
            let _ = capture.count_flows().await;
        }
    }

    /// What was counted so far; `None`: the host is not captured.
    pub(super) fn covered(&self) -> Option<CoverageDisplay> {
        Some(self.look()?.display(Rfc3339(self.since)))
    }

    /// The number of different flows that are counted.
    pub(super) fn covered_flows(&self) -> usize {
        self.coverage.table.lock().unwrap_or_else(PoisonError::into_inner).entries().len()
    }

    fn look(&self) -> Option<Look> {
        let host = self.runs.registry.host()?;
        Some(Look {
            host: Arc::clone(&host.run),
            connections: Arc::clone(&self.shared.table),
            live: self.shared.live.load_full(),
            table: Arc::clone(&self.coverage.table),
        })
    }
}

impl Look {
    async fn run(&self) -> io::Result<()> {
        let sockets = self.host.helper.sockets_of_host().await?;
        let relayed = self.relayed();
        let flow = |socket: HostSocket| {
            let record = relayed.get(&canonical(&socket.ends)).map(|record| &**record);
            (socket.cookie, self.flow(socket, record))
        };
        let flows = sockets.into_iter().map(flow).collect();
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.observe(flows, SystemTime::now());
        Ok(())
    }

    fn display(&self, since: Rfc3339) -> CoverageDisplay {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        coverage(&table, &self.live.rules, since)
    }

    /// The connections of the agent by the addresses of the program's socket.
    fn relayed(&self) -> HashMap<SocketEnds, Arc<ConnectionRecord>> {
        let of_host = self.connections.snapshot().into_iter();
        let of_host = of_host.filter(|record| record.is_of_run(self.host.id));
        of_host.filter_map(|record| Some((canonical(&record.ends()?), record))).collect()
    }

    fn flow(&self, socket: HostSocket, record: Option<&ConnectionRecord>) -> CoveredFlow {
        let HostSocket { ends, direction, owner, .. } = socket;
        let SocketEnds { protocol, program, peer } = canonical(&ends);
        let decided = match record {
            Some(record) => Decided::of_record(record),
            None => {
                let mut flow = self.plain(direction, protocol, program, peer);
                Scope::of(Arc::clone(&self.host)).attribute(&mut flow, Some(owner.clone()));
                Decided::of_flow(&self.live, &flow)
            }
        };
        let Decided { protection, rule, tls, peer: name } = decided;
        CoveredFlow {
            protection,
            rule,
            tls,
            peer: name,
            program: owner.program,
            unit: owner.cgroup.as_deref().and_then(unit),
            user: owner.user,
            direction,
            protocol,
            remote: peer.ip().to_string(),
            port: match direction {
                Direction::Inbound => program.port(),
                Direction::Outbound => peer.port(),
            },
        }
    }

    fn plain(
        &self,
        direction: Direction,
        protocol: Protocol,
        program: SocketAddr,
        peer: SocketAddr,
    ) -> Flow {
        let found = self.host.destination(peer.ip());
        Flow {
            direction,
            protocol,
            listen: None,
            local: program.into(),
            remote: SocketAddr::new(found.address, peer.port()).into(),
            to_own_host: self.host.host.has(found.address),
            remote_names: found.names,
            alias: found.alias,
            is_shared: found.is_shared,
            program: None,
            user: None,
            group: Some(String::new()),
            cgroup: None,
            run: Some(String::new()),
            at_unix_s: clock::now_unix_s(),
        }
    }
}

/// What protects a flow, and why.
struct Decided {
    protection: Protection,
    rule: Option<String>,
    tls: Option<String>,
    peer: Option<String>,
}

impl Decided {
    /// A flow that the agent relays.
    fn of_record(record: &ConnectionRecord) -> Self {
        let facts = record.tls.get();
        let protection = match (&facts, &record.rule.rule.action) {
            (Some(_), _) => Protection::Protected,
            (None, Action::Tls(_)) if !record.is_open() => Protection::Pending,
            (None, Action::Tls(Tls::Client(client))) if client.own_tls == Some(OwnTls::Pass) => {
                Protection::OwnTls
            }
            (None, _) => Protection::Permitted,
        };
        let trusted = facts.as_ref().filter(|facts| facts.check.is_trusted());
        let certificate = trusted.and_then(|facts| facts.peer.as_deref());
        let name = certificate.map(|peer| peer.sans.first().unwrap_or(&peer.subject).clone());
        Self {
            protection,
            rule: Some(record.rule.name().to_owned()),
            tls: facts.map(|facts| facts.agreed.version.word().to_owned()),
            peer: name,
        }
    }

    /// A flow that the agent does not relay.
    fn of_flow(live: &Live, flow: &Flow) -> Self {
        let rule = live.lookup(flow);
        let protection = match rule.map(|rule| &rule.action) {
            None => Protection::Unmatched,
            Some(LiveAction::Permit) => Protection::Permitted,
            Some(LiveAction::Tls(_) | LiveAction::Deny(_)) => Protection::NotCaptured,
        };
        let rule = rule.map(|rule| rule.name().to_owned());
        Self { protection, rule, tls: None, peer: None }
    }
}

/// The unit of systemd that a control group belongs to.
fn unit(cgroup: &str) -> Option<String> {
    let is_unit = |name: &&str| name.ends_with(".service") || name.ends_with(".scope");
    cgroup.split('/').find(is_unit).map(|group| unescaped(group).to_owned())
}

fn canonical(ends: &SocketEnds) -> SocketEnds {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    SocketEnds { program: plain(ends.program), peer: plain(ends.peer), ..*ends }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_belongs_to_the_first_unit_in_its_path() {
        for (cgroup, wanted) in [
            ("system.slice/nginx.service", Some("nginx.service")),
            ("system.slice/_io.service", Some("io.service")),
            ("user.slice/user-1000.slice/session-3.scope", Some("session-3.scope")),
            (
                "user.slice/user-1000.slice/user@1000.service/app.slice/a.service",
                Some("user@1000.service"),
            ),
            ("system.slice", None),
            ("", None),
        ] {
            assert_eq!(unit(cgroup).as_deref(), wanted);
        }
    }
}
