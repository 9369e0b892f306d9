//! Describes a run (a program under `tacit run`) and its sockets for the agent that replaces this
//! agent.
//!
//! The new agent gets duplicates of the sockets and of the TUN device. So the new agent can also
//! read the data in their queues. The new agent also gets a second channel to the run's helper
//! process.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tacit_core::dns::KnownName;
use tacit_core::flow::Address;
use tokio::sync::oneshot;

use super::channel::{HelperChannel, adopt};
use super::host::HostNetwork;
use super::launchers::{Followed, Launcher, RunSockets};
use super::protocol::SocketSet;
use super::tunnels::{HandedTunnels, PeerReports};
use super::{Run, RunIdentity};
use crate::placement::RunCpu;
use crate::run::Outside;

/// The state of a run for the successor. Its sockets are sent after it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunState {
    /// Its number.
    pub id: u64,
    name: String,
    pid: u32,
    user: String,
    since: SystemTime,
    claimed: bool,
    #[serde(default)]
    covers_files: bool,
    #[serde(default)]
    lists_unix_sockets: bool,
    /// The CPU that its programs share with a worker.
    #[serde(default)]
    pub cpu: Option<usize>,
    /// Names, their real addresses, and the seconds until they expire.
    names: Vec<(String, IpAddr, u64)>,
    /// Names with an alias.
    #[serde(default)]
    aliases: Vec<AliasState>,
    /// Names whose address belongs to another name.
    #[serde(default)]
    sharing: Vec<(String, IpAddr, u64)>,
    /// Outside addresses. Their sockets are sent after all others, except for those of `tunnels`
    /// and `asks_before`.
    inbound: Vec<Address>,
    /// The tunnels of the run, if its TUN device is sent after the outside addresses.
    #[serde(default)]
    tunnels: Option<PeerReports>,
    /// Which sockets are sent.
    #[serde(default)]
    socket_set: SocketSet,
    /// Whether the last socket is a channel to the predecessor, for queries about connections that
    /// stay there.
    #[serde(default)]
    asks_before: bool,
    /// The number of sockets.
    pub sockets: usize,
}

/// The state of an alias.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct AliasState {
    name: String,
    /// The real address.
    address: IpAddr,
    alias: IpAddr,
    seconds: u64,
}

/// Duplicates of the sockets that an agent serves for a run.
#[derive(Debug, Default)]
pub struct ServedSockets {
    /// The query socket.
    pub query: Option<OwnedFd>,
    /// The source of copies of held SYNs, if SYNs are held.
    pub syn_log: Option<OwnedFd>,
    /// For each IP version, the sockets for captured TCP, captured datagrams and ICMP errors; if
    /// SYNs are held, also the sockets that hold and release them.
    pub captured: Vec<OwnedFd>,
    /// Outside addresses.
    pub inbound: Vec<HeldAddress>,
    /// The TUN device.
    pub tunnels: Option<HandedTunnels>,
    /// Leads to this agent, to ask about the connections that stay with it.
    pub before: Option<OwnedFd>,
}

/// An address outside that is held for a run.
#[derive(Debug)]
pub struct HeldAddress {
    /// The address.
    pub address: Address,
    /// Its socket.
    pub socket: OwnedFd,
}

/// A run on its way to a successor.
#[derive(Debug)]
pub struct Departing {
    /// The state of the run.
    pub state: RunState,
    /// Its sockets; the launcher's connection is the first.
    pub sockets: Vec<OwnedFd>,
}

impl Departing {
    /// Collects what a successor needs to continue a run.
    ///
    /// # Errors
    /// The process has no free descriptor, or the helper cannot create a channel.
    pub async fn new(run: &Run, launcher: &Launcher, served: ServedSockets) -> io::Result<Self> {
        run.expect_no_more();
        run.depart();
        let ServedSockets { query, syn_log, captured, inbound, tunnels, before } = served;
        let socket_set = run.sockets;
        let mut sockets = vec![launcher.connection.try_clone()?, run.helper.another().await?];
        sockets.extend(query);
        sockets.extend(syn_log);
        sockets.extend(captured);
        let mut addresses = Vec::new();
        for HeldAddress { address, socket } in inbound {
            addresses.push(address);
            sockets.push(socket);
        }
        let tunnels = tunnels.map(|HandedTunnels { reports, tun }| {
            sockets.push(tun);
            reports
        });
        let asks_before = before.is_some();
        sockets.extend(before);
        // The kernel has the names of a host and of a joined namespace.
        let learnt = if run.has_plan() { Vec::new() } else { run.learnt() };
        let of = |is_shared| {
            let true_ones = learnt.iter().filter(move |known| known.alias.is_none());
            let these = true_ones.filter(move |known| known.is_shared == is_shared);
            these.map(|known| (known.name.clone(), known.address, known.remaining.as_secs()))
        };
        let names = of(false).collect();
        let sharing = of(true).collect();
        let aliases = learnt.iter().filter_map(AliasState::of).collect();
        let state = RunState {
            id: run.id,
            name: run.name.clone(),
            pid: run.pid,
            user: run.user.clone(),
            since: run.since,
            claimed: run.claimed,
            covers_files: run.covers_files,
            lists_unix_sockets: run.lists_unix_sockets,
            cpu: run.cpu(),
            names,
            aliases,
            sharing,
            inbound: addresses,
            tunnels,
            socket_set,
            asks_before,
            sockets: sockets.len(),
        };
        Ok(Self { state, sockets })
    }
}

impl RunState {
    /// The run as it was, with the launcher's connection and the sockets; `place` is the CPU that
    /// it shares with a worker here.
    ///
    /// # Errors
    /// Sockets are missing.
    pub fn resume(
        self,
        mut sockets: Vec<OwnedFd>,
        place: Option<RunCpu>,
        host: Arc<HostNetwork>,
        outside: Outside,
    ) -> io::Result<Resumed> {
        let before = if self.asks_before { sockets.pop() } else { None };
        let tunnels =
            self.tunnels.and_then(|reports| Some(HandedTunnels { reports, tun: sockets.pop()? }));
        if sockets.len() <= self.inbound.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let held = sockets.split_off(sockets.len() - self.inbound.len());
        let addresses = self.inbound.into_iter().zip(held);
        let inbound = addresses.map(|(address, socket)| HeldAddress { address, socket }).collect();
        let connection = sockets.remove(0);
        let stream = adopt(connection.try_clone()?)?;
        let (reading, until) = oneshot::channel();
        let launcher = Launcher { connection, reading };
        let sockets = RunSockets::from_order(sockets, self.socket_set)?;
        let helper = HelperChannel::open(sockets.helper.try_clone()?)?;
        let identity = RunIdentity {
            id: self.id,
            name: self.name,
            pid: self.pid,
            user: self.user,
            since: self.since,
            claimed: self.claimed,
            covers_files: self.covers_files,
            lists_unix_sockets: self.lists_unix_sockets,
        };
        let run = Run::new(identity, helper, place, host, self.socket_set, outside);
        for known in known(self.names, self.aliases, self.sharing) {
            run.restore(known);
        }
        let followed = Followed { stream, until, id: self.id };
        Ok(Resumed { run, launcher, followed, sockets, inbound, tunnels, before })
    }
}

impl AliasState {
    fn of(known: &KnownName) -> Option<Self> {
        let KnownName { name, address, alias, remaining, .. } = known.clone();
        Some(Self { name, address, alias: alias?, seconds: remaining.as_secs() })
    }
}

/// Returns the names that a run has learned. With an older agent, an address could have several
/// names. Connections to such an address have no name here, because any of the names could be
/// wrong.
fn known(
    names: Vec<(String, IpAddr, u64)>,
    aliases: Vec<AliasState>,
    sharing: Vec<(String, IpAddr, u64)>,
) -> Vec<KnownName> {
    let mut count: HashMap<IpAddr, usize> = HashMap::new();
    for (_, address, _) in &names {
        *count.entry(address.to_canonical()).or_default() += 1;
    }
    let owners = names.into_iter().filter(|(_, address, _)| count[&address.to_canonical()] == 1);
    let known = |is_shared| {
        move |(name, address, seconds): (String, IpAddr, u64)| {
            let remaining = Duration::from_secs(seconds);
            KnownName { name, address: address.to_canonical(), alias: None, is_shared, remaining }
        }
    };
    let owners = owners.map(known(false));
    let sharing = sharing.into_iter().map(known(true));
    let aliases = aliases.into_iter().map(|AliasState { name, address, alias, seconds }| {
        let remaining = Duration::from_secs(seconds);
        KnownName { name, address, alias: Some(alias), is_shared: false, remaining }
    });
    owners.chain(aliases).chain(sharing).collect()
}

/// A run of the predecessor.
#[derive(Debug)]
pub struct Resumed {
    /// The run.
    pub run: Run,
    /// Its launcher.
    pub launcher: Launcher,
    /// The launcher's connection, which is read until the run is handed over again.
    pub followed: Followed,
    /// Its sockets.
    pub sockets: RunSockets,
    /// The addresses that are held for it.
    pub inbound: Vec<HeldAddress>,
    /// Its TUN device.
    pub tunnels: Option<HandedTunnels>,
    /// The connection to the predecessor, which still relays some connections.
    pub before: Option<OwnedFd>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_an_older_agent_are_parsed() {
        let text = r#"{
            "id": 1, "name": "r", "pid": 2, "user": "u", "claimed": false, "sockets": 0,
            "since": { "secs_since_epoch": 3, "nanos_since_epoch": 0 }, "inbound": [],
            "names": [["own.example", "10.0.0.1", 60],
                      ["a.example", "10.0.0.2", 60], ["b.example", "10.0.0.2", 60]]
        }"#;
        let RunState { names, aliases, sharing, tunnels, .. } = serde_json::from_str(text).unwrap();
        assert_eq!(tunnels, None, "an older agent hands over no device");
        let known = known(names, aliases, sharing);
        let names: Vec<_> = known.iter().map(|known| known.name.as_str()).collect();
        assert_eq!(names, ["own.example"], "an address with two names is ambiguous");
    }

    #[test]
    fn owners_aliases_and_shared_addresses_are_distinguished() {
        let address = IpAddr::from([10, 0, 0, 1]);
        let alias = IpAddr::from([198, 18, 0, 1]);
        let owner = ("own.example".to_owned(), address, 60);
        let other = ("other.example".to_owned(), address, 60);
        let aliased = AliasState { name: "alias.example".to_owned(), address, alias, seconds: 60 };
        let known = known(vec![owner], vec![aliased], vec![other]);
        let shown: Vec<_> =
            known.iter().map(|one| (one.name.as_str(), one.used(), one.is_shared)).collect();
        let expected = [
            ("own.example", address, false),
            ("alias.example", alias, false),
            ("other.example", address, true),
        ];
        assert_eq!(shown, expected);
        assert!(known.iter().all(|one| one.address == address));
    }
}
