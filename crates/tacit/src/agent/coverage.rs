//! Reads the list of the host's sockets at intervals, for `tacit agent --host`. Counts the flows of
//! these sockets by kind of protection, such as TLS or clear.
//!
//! ```text
//!   helper: sockets and their owners ─┐
//!   connections of the agent ─────────┤
//!   connections of its predecessors ──┼─> CoverageTable ─> `tacit show coverage`, metrics
//!   rules ────────────────────────────┘
//! ```
//!
//! After `tacit restart`, the predecessor still relays its connections. It sends a list of them to
//! its successor at the restart. The successor finds their sockets in its first list of sockets.
//!
//! A flow is not counted if it begins after one reading of the list and ends before the next.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tacit_core::coverage::{COVERAGE_SOCKETS_MAX, CoverageTable, CoveredFlow, Protection};
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
    inherited: Arc<Mutex<InheritedFlows>>,
    next_look: Instant,
}

impl Default for HostCoverage {
    fn default() -> Self {
        Self { table: Arc::default(), inherited: Arc::default(), next_look: Instant::now() }
    }
}

impl HostCoverage {
    /// Takes over the flows of the host that predecessors still relay. If two have the same ends,
    /// the first counts.
    pub(super) fn inherit(&self, flows: Vec<RelayedFlow>) {
        let mut inherited = lock(&self.inherited);
        for RelayedFlow { ends, decided } in flows {
            inherited.sent.entry(canonical(&ends)).or_insert(decided);
        }
    }
}

/// A flow that an agent relays, for its successor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RelayedFlow {
    ends: SocketEnds,
    decided: Decided,
}

/// The flows that predecessors still relay.
#[derive(Debug, Default)]
struct InheritedFlows {
    /// The flows that the predecessor has sent, until the next list of sockets.
    sent: HashMap<SocketEnds, Decided>,
    /// The flows of the last list, by the kernel's cookie of the socket: a later socket may have
    /// the same ends, but not the same cookie.
    open: HashMap<u64, RelayedFlow>,
}

impl InheritedFlows {
    /// Keeps the flows whose sockets are open.
    fn follow(&mut self, sockets: &[HostSocket]) {
        let sent = std::mem::take(&mut self.sent);
        let before = std::mem::take(&mut self.open);
        let known = |socket: &HostSocket| {
            let flow = before.get(&socket.cookie).cloned().or_else(|| {
                let ends = canonical(&socket.ends);
                Some(RelayedFlow { ends, decided: sent.get(&ends)?.clone() })
            });
            Some((socket.cookie, flow?))
        };
        self.open = sockets.iter().filter_map(known).collect();
    }

    /// What protects the flow of a socket, if a predecessor relays it.
    fn decided(&self, cookie: u64) -> Option<Decided> {
        self.open.get(&cookie).map(|flow| flow.decided.clone())
    }

    /// All flows that predecessors still relay.
    fn all(&self) -> impl Iterator<Item = RelayedFlow> {
        let sent = self.sent.iter();
        let sent =
            sent.map(|(ends, decided)| RelayedFlow { ends: *ends, decided: decided.clone() });
        sent.chain(self.open.values().cloned())
    }
}

/// All that one look needs.
struct Look {
    host: Arc<Run>,
    connections: Arc<ConnectionTable>,
    live: Arc<Live>,
    table: Arc<Mutex<CoverageTable>>,
    inherited: Arc<Mutex<InheritedFlows>>,
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
        lock(&self.coverage.table).entries().len()
    }

    /// The flows of the host that this agent or a predecessor relays, for a successor.
    pub(super) fn relayed_flows(&self) -> Vec<RelayedFlow> {
        let own = self.shared.table.snapshot().into_iter().filter_map(|record| {
            let is_of_host = record.scope.as_ref()?.scope.run().is_host();
            let ends = is_of_host.then(|| record.ends())??;
            Some(RelayedFlow { ends: canonical(&ends), decided: Decided::of_record(&record) })
        });
        let inherited = lock(&self.coverage.inherited);
        own.chain(inherited.all()).take(COVERAGE_SOCKETS_MAX).collect()
    }

    fn look(&self) -> Option<Look> {
        let host = self.runs.registry.host()?;
        Some(Look {
            host: Arc::clone(&host.run),
            connections: Arc::clone(&self.shared.table),
            live: self.shared.live.load_full(),
            table: Arc::clone(&self.coverage.table),
            inherited: Arc::clone(&self.coverage.inherited),
        })
    }
}

impl Look {
    async fn run(&self) -> io::Result<()> {
        let sockets = self.host.helper.sockets_of_host().await?;
        let relayed = self.relayed();
        let mut inherited = lock(&self.inherited);
        inherited.follow(&sockets);
        let flow = |socket: HostSocket| {
            let record = relayed.get(&canonical(&socket.ends));
            let decided = record.map(|record| Decided::of_record(record));
            let decided = decided.or_else(|| inherited.decided(socket.cookie));
            (socket.cookie, self.flow(socket, decided))
        };
        let flows = sockets.into_iter().map(flow).collect();
        let mut table = lock(&self.table);
        table.observe(flows, SystemTime::now());
        Ok(())
    }

    fn display(&self, since: Rfc3339) -> CoverageDisplay {
        let table = lock(&self.table);
        coverage(&table, &self.live.rules, since)
    }

    /// The connections of the agent by the addresses of the program's socket.
    fn relayed(&self) -> HashMap<SocketEnds, Arc<ConnectionRecord>> {
        let of_host = self.connections.snapshot().into_iter();
        let of_host = of_host.filter(|record| record.is_of_run(self.host.id));
        of_host.filter_map(|record| Some((canonical(&record.ends()?), record))).collect()
    }

    /// The flow of a socket. `relayed` is what protects it, if an agent relays it.
    fn flow(&self, socket: HostSocket, relayed: Option<Decided>) -> CoveredFlow {
        let HostSocket { ends, direction, owner, .. } = socket;
        let SocketEnds { protocol, program, peer } = canonical(&ends);
        let decided = relayed.unwrap_or_else(|| {
            let mut flow = self.plain(direction, protocol, program, peer);
            Scope::of(Arc::clone(&self.host)).attribute(&mut flow, Some(owner.clone()));
            Decided::of_flow(&self.live, &flow)
        });
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn canonical(ends: &SocketEnds) -> SocketEnds {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    SocketEnds { program: plain(ends.program), peer: plain(ends.peer), ..*ends }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::protocol::SocketOwner;

    fn socket(cookie: u64, port: u16) -> HostSocket {
        let ends = SocketEnds {
            protocol: Protocol::Tcp,
            program: SocketAddr::from(([192, 0, 2, 1], port)),
            peer: SocketAddr::from(([192, 0, 2, 2], 443)),
        };
        let owner = SocketOwner { pid: None, program: None, user: None, cgroup: None };
        HostSocket { ends, cookie, direction: Direction::Outbound, owner }
    }

    #[test]
    fn flows_of_a_predecessor_are_known_as_long_as_their_sockets_are_open() {
        let decided = Decided {
            protection: Protection::Protected,
            rule: Some("tls".to_owned()),
            tls: Some("1.3".to_owned()),
            peer: None,
        };
        let mut inherited = InheritedFlows::default();
        for port in [1, 2] {
            inherited.sent.insert(socket(0, port).ends, decided.clone());
        }
        assert_eq!(inherited.all().count(), 2, "the next successor gets them too");
        inherited.follow(&[socket(11, 1), socket(13, 3)]);
        assert_eq!(inherited.decided(11), Some(decided.clone()));
        assert_eq!(inherited.decided(13), None, "the predecessor does not relay it");
        inherited.follow(&[socket(11, 1), socket(12, 2)]);
        assert_eq!(inherited.decided(11), Some(decided.clone()));
        assert_eq!(inherited.decided(12), None, "a later socket has the same ends");
        let handed_on: Vec<_> = inherited.all().collect();
        assert_eq!(handed_on, [RelayedFlow { ends: socket(0, 1).ends, decided }]);
        inherited.follow(&[socket(14, 1)]);
        assert_eq!((inherited.decided(11), inherited.decided(14)), (None, None));
    }

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
