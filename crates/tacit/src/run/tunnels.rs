//! Routes packets to a TUN device, if the policy protects these packets with IPsec. The device is
//! in the network namespace of a program under `tacit run`.
//!
//! ```text
//! policy ── TunnelRoutes ──> TunnelPlan ──> helper ──┬─> routing rules and routes of the run
//!                                                    └─> TUN device ──> IKE thread
//! ```
//!
//! While the device does not exist, `unreachable` routes reject the packets that need a tunnel.
//!
//! On a restart, the new agent takes over the device. The routes and the addresses stay, and
//! packets wait until the new agent has tunnels. When the last agent that has the device ends, the
//! kernel removes the device.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tacit_core::flow::Protocol;
use tacit_core::policy::{InnerAddressSource, Policy, TunnelGroup, TunnelRoutes};
use tacit_sys::IpVersion;
use tacit_sys::netlink::route::Families;
use tacit_sys::netlink::tunnel::{FlowGroup, FlowRoute, TunnelDevice};
use tacit_sys::tun::Tun;
use tokio::sync::{Mutex, mpsc, watch};

use super::Run;
use crate::packet::{TunLease, TunLeaseWatch};

/// What is routed into the TUN device of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TunnelPlan {
    /// The device; `None`: there is none, and the packets reach no host.
    pub device: Option<PlannedDevice>,
    /// The packets.
    pub groups: Vec<PlannedGroup>,
}

/// A TUN device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlannedDevice {
    /// The name of its interface.
    pub name: String,
    /// The addresses of the run inside its tunnels.
    pub addresses: Vec<IpAddr>,
}

/// Packets of one IP version, protocol and combination of ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlannedGroup {
    /// The IP version.
    pub ipv6: bool,
    /// The number of the protocol.
    pub protocol: u8,
    /// The ports of programs; `None`: all.
    pub local_ports: Option<(u16, u16)>,
    /// The ports of other hosts; `None`: all.
    pub remote_ports: Option<(u16, u16)>,
    /// The address of programs inside the tunnel; `None`: it is not known yet.
    pub source: Option<IpAddr>,
    /// The networks, each with the length of its prefix.
    pub prefixes: Vec<(IpAddr, u8)>,
    /// The largest size of a packet, in bytes; `None`: that of the device. Older helpers ignore it.
    #[serde(default)]
    pub mtu_bytes: Option<u32>,
}

/// The size of packets inside a tunnel, in bytes. With the headers of ESP and UDP they fit into
/// 1,500 bytes, also over IPv6 and PPPoE.
const MTU_BYTES: u32 = 1400;
/// The smallest MTU that IP permits (RFC 791 section 3.2, RFC 8200 section 5). If a path has a
/// smaller one, the packet worker fragments.
const MTU_BYTES_MIN: [u32; 2] = [68, 1280];

/// A TUN device that the helper of a run has made.
#[derive(Debug)]
pub struct OpenedTun {
    /// The run.
    pub run: Arc<Run>,
    /// The device.
    pub tun: Tun,
    /// Held as long as the device is read.
    pub lease: TunLease,
    /// Whether the run has ended, or was refused.
    is_over: Arc<AtomicBool>,
}

impl OpenedTun {
    /// Whether the run still needs the device: it has not ended, and was not refused.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        !self.is_over.load(Ordering::Acquire)
    }
}

/// The TUN device of a run that one agent hands over to another.
#[derive(Debug)]
pub struct HandedTunnels {
    /// The reports of peers from which the routes into the device are made.
    pub reports: PeerReports,
    /// Its descriptor.
    pub tun: OwnedFd,
}

/// What peers have reported about their tunnels with a run, for a successor. The routes stay the
/// same until the successor has tunnels of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PeerReports {
    /// The assigned addresses, by the name of the peer.
    assigned: BTreeMap<String, Vec<IpAddr>>,
    /// The longest packets for the paths to peers, by the name of the peer.
    paths: BTreeMap<String, u32>,
}

/// The TUN device of one run, and the routes into it.
#[derive(Debug)]
pub struct RunTunnels {
    mirror: Mutex<Mirror>,
    /// The addresses that peers have assigned, by the name of the peer.
    assigned: StdMutex<BTreeMap<String, Vec<IpAddr>>>,
    /// The longest packets for the paths to peers, by the name of the peer.
    paths: StdMutex<BTreeMap<String, u32>>,
    /// How far the addresses of peers are that assign them.
    progress: watch::Sender<AddressProgress>,
    opened: mpsc::Sender<OpenedTun>,
    /// Whether the run has ended, or was refused.
    is_over: Arc<AtomicBool>,
}

impl Drop for RunTunnels {
    fn drop(&mut self) {
        self.end();
    }
}

/// The peers of a run, as far as addresses matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct AddressProgress {
    /// The peers for which the policy has the address.
    fixed: BTreeSet<String>,
    /// The peers that assign it.
    assigning: BTreeSet<String>,
    /// Those of them whose addresses the run has.
    done: BTreeSet<String>,
    /// Why others have not assigned one yet.
    failed: BTreeMap<String, String>,
}

impl AddressProgress {
    fn is_complete(&self) -> bool {
        self.assigning.iter().all(|ike| self.done.contains(ike) || self.failed.contains_key(ike))
    }
}

/// What is to be routed into the TUN device of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedTunnels {
    groups: Vec<PlannedGroup>,
    addresses: Vec<IpAddr>,
    /// The peers that have assigned addresses.
    assigned: BTreeSet<String>,
}

impl WantedTunnels {
    /// The IP versions of the packets.
    #[must_use]
    pub fn families(&self) -> Families {
        let has = |ipv6| self.groups.iter().any(|group| group.ipv6 == ipv6);
        Families { v4: has(false), v6: has(true) }
    }
}

/// What the kernel has, as far as it is known.
#[derive(Debug, Default)]
struct Mirror {
    /// The device that this agent has.
    device: Option<LeasedDevice>,
    /// The device of the predecessor, which this agent does not use yet.
    inherited: Option<Tun>,
    /// Whether a successor has the device, and changes the routes.
    is_handed_over: bool,
    /// The routes; `None`: they are not known, or there were never any.
    plan: Option<TunnelPlan>,
}

/// A device that this agent uses.
#[derive(Debug)]
struct LeasedDevice {
    name: String,
    lease: TunLeaseWatch,
}

impl Mirror {
    /// Forgets the device if it is not read any more, because there was no driver of IKE for it.
    fn forget_unread(&mut self) {
        if self.device.take_if(|device| !device.lease.is_held()).is_some() {
            self.plan = None;
        }
    }
}

impl RunTunnels {
    /// The tunnels of a run, with what its predecessor has handed over. The device will be sent to
    /// this queue.
    #[must_use]
    pub fn new(opened: mpsc::Sender<OpenedTun>, handed: Option<HandedTunnels>) -> Self {
        let (progress, _) = watch::channel(AddressProgress::default());
        let (reports, tun) = handed.map(|one| (one.reports, one.tun)).unzip();
        let PeerReports { assigned, paths } = reports.unwrap_or_default();
        // If its interface was removed, the run gets another device.
        let inherited = tun.and_then(|tun| Tun::from_descriptor(tun).ok());
        let mirror = Mutex::new(Mirror { inherited, ..Mirror::default() });
        let assigned = StdMutex::new(assigned);
        let paths = StdMutex::new(paths);
        Self { mirror, assigned, paths, progress, opened, is_over: Arc::default() }
    }

    /// Notes that the run has ended, or was refused. The agent closes a device that it does not
    /// read yet.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    /// The device for a successor; `None`: there is none. From now on, this agent leaves the routes
    /// as they are.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub async fn hand_over(&self) -> io::Result<Option<HandedTunnels>> {
        let mut mirror = self.mirror.lock().await;
        mirror.is_handed_over = true;
        let Some(device) = mirror.device.take() else { return Ok(None) };
        let assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let reports = PeerReports { assigned, paths };
        Ok(device.lease.duplicate()?.map(|tun| HandedTunnels { reports, tun }))
    }

    /// Records the addresses that a peer has assigned to the run, in place of earlier ones.
    pub fn assign(&self, ike: String, addresses: Vec<IpAddr>) {
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        assigned.insert(ike, addresses);
    }

    /// Records why a peer has not assigned addresses, or why the run must not keep them. It may
    /// assign others later. Returns whether the run has to give up addresses.
    pub fn note_failure(&self, ike: String, reason: String) -> bool {
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        let gives_up = assigned.remove(&ike).is_some();
        drop(assigned);
        self.progress.send_modify(|progress| drop(progress.failed.insert(ike, reason)));
        gives_up
    }

    /// Records the longest packet for the path to a peer. Returns whether the routes have another
    /// MTU now.
    pub fn note_path(&self, ike: String, inner_bytes_max: usize) -> bool {
        let bytes_max = u32::try_from(inner_bytes_max).unwrap_or(u32::MAX).min(MTU_BYTES);
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.insert(ike, bytes_max).unwrap_or(MTU_BYTES) != bytes_max
    }

    /// The peers for which the policy has the address of the run.
    #[must_use]
    pub fn fixed_peers(&self) -> BTreeSet<String> {
        self.progress.borrow().fixed.clone()
    }

    /// Waits at most this long until the run has the addresses of all peers that assign them, or
    /// they have failed. Returns `false` at the limit.
    pub async fn wait_for_addresses(&self, limit: Duration) -> bool {
        let mut progress = self.progress.subscribe();
        let complete = progress.wait_for(AddressProgress::is_complete);
        tokio::time::timeout(limit, complete).await.is_ok()
    }

    /// Returns a warning for each peer whose address is missing.
    #[must_use]
    pub fn warnings_about_addresses(&self) -> Vec<String> {
        let AddressProgress { assigning, done, failed, .. } = self.progress.borrow().clone();
        let missing = assigning.into_iter().filter(|ike| !done.contains(ike));
        let warning = |ike: String| {
            let reason = failed.get(&ike).map_or("the peer has not answered yet", String::as_str);
            format!(
                "the peer [ike.{ike}] has assigned no address to this run: {reason}\n    until the \
                 peer assigns an address, connections through its tunnel fail with EHOSTUNREACH"
            )
        };
        missing.map(warning).collect()
    }

    /// The packets that the policy leads into tunnels of a run.
    ///
    /// # Errors
    /// The policy exceeds a limit.
    pub fn wanted(&self, run: &Run, policy: &Policy) -> io::Result<WantedTunnels> {
        let own: Vec<IpAddr> = run.host.addresses().all().collect();
        let routes = TunnelRoutes::of(policy, &run.name, &own).map_err(io::Error::other)?;
        let inner = self.inner_addresses(policy, &routes);
        let (assigning, fixed): (BTreeSet<String>, BTreeSet<String>) =
            routes.peers().map(str::to_owned).partition(|peer| is_assigning(policy, peer));
        let assigned = inner.keys().filter(|ike| assigning.contains(*ike)).cloned().collect();
        self.progress.send_modify(|progress| {
            progress.assigning = assigning;
            progress.fixed = fixed;
        });
        let mut groups = Vec::new();
        let paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for group in routes.groups() {
            let path = paths.get(&group.peer).copied().unwrap_or(MTU_BYTES);
            groups.extend(planned(group, inner.get(&group.peer).map_or(&[], Vec::as_slice), path));
        }
        let addresses: BTreeSet<IpAddr> = inner.into_values().flatten().collect();
        let addresses = addresses.into_iter().collect();
        Ok(WantedTunnels { groups, addresses, assigned })
    }

    /// Installs the wanted routes, and removes others. For the first routes, the helper makes the
    /// device, unless the predecessor has handed one over. If the agent could not use the device,
    /// the helper makes another one.
    ///
    /// # Errors
    /// The kernel refuses, or there is no helper. No packet of a tunnel takes another route then.
    pub async fn follow(&self, run: &Arc<Run>, wanted: WantedTunnels) -> io::Result<()> {
        let WantedTunnels { groups, addresses, assigned } = wanted;
        let mut mirror = self.mirror.lock().await;
        if mirror.is_handed_over {
            return Ok(());
        }
        mirror.forget_unread();
        if let Some(tun) = mirror.inherited.take() {
            mirror.device = Some(self.use_tun(run, tun).await?);
        }
        if mirror.device.is_none() {
            if groups.is_empty() {
                return Ok(());
            }
            let closed = TunnelPlan { device: None, groups: groups.clone() };
            run.helper.route_tunnels(closed).await?;
            mirror.device = Some(self.open_tun(run).await?);
        }
        let name = mirror.device.as_ref().map(|device| device.name.clone());
        let device = name.map(|name| PlannedDevice { name, addresses });
        let plan = TunnelPlan { device, groups };
        if mirror.plan.as_ref() != Some(&plan) {
            // If it fails, it is not known which routes there are.
            mirror.plan = None;
            run.helper.route_tunnels(plan.clone()).await?;
            mirror.plan = Some(plan);
        }
        self.progress.send_modify(|progress| {
            progress.failed.retain(|ike, _| !assigned.contains(ike));
            progress.done = assigned;
        });
        Ok(())
    }

    async fn open_tun(&self, run: &Arc<Run>) -> io::Result<LeasedDevice> {
        let tun = run.helper.open_tun().await?;
        self.use_tun(run, tun).await
    }

    /// Sends a device to the thread that reads it.
    async fn use_tun(&self, run: &Arc<Run>, tun: Tun) -> io::Result<LeasedDevice> {
        let name = tun.name()?;
        let ended = |_| io::Error::other("the agent is ending");
        let (lease, watch) = TunLease::new(tun.try_clone()?.into());
        let is_over = Arc::clone(&self.is_over);
        let opened = OpenedTun { run: Arc::clone(run), tun, lease, is_over };
        self.opened.send(opened).await.map_err(ended)?;
        Ok(LeasedDevice { name, lease: watch })
    }

    /// The addresses of the run inside its tunnels, by the name of the peer.
    fn inner_addresses(
        &self,
        policy: &Policy,
        routes: &TunnelRoutes,
    ) -> BTreeMap<String, Vec<IpAddr>> {
        let assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        let of_ike = |ike: &str| match &policy.ikes.get(ike)?.inner {
            InnerAddressSource::Policy(addresses) => Some(addresses.clone()),
            InnerAddressSource::Gateway => assigned.get(ike).cloned(),
        };
        let of = |peer: &str| {
            let of_sa = policy.sas.get(peer).map(|sa| sa.inner.clone());
            of_sa.or_else(|| of_ike(peer))
        };
        routes.peers().filter_map(|peer| Some((peer.to_owned(), of(peer)?))).collect()
    }
}

/// Whether a peer assigns the addresses of runs.
fn is_assigning(policy: &Policy, ike: &str) -> bool {
    policy.ikes.get(ike).is_some_and(|peer| peer.inner == InnerAddressSource::Gateway)
}

/// Divides a group by the IP version of its prefixes. `path_bytes_max` is the longest packet for
/// the path to its peer.
fn planned(
    group: &TunnelGroup,
    inner: &[IpAddr],
    path_bytes_max: u32,
) -> impl Iterator<Item = PlannedGroup> {
    let ends = |range: &RangeInclusive<u16>| (*range.start(), *range.end());
    [false, true].into_iter().filter_map(move |ipv6| {
        let of_version = group.prefixes.iter().filter(|one| one.network.is_ipv6() == ipv6);
        let prefixes: Vec<_> = of_version.map(|one| (one.network, one.length)).collect();
        let protocol = match group.protocol {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Icmp if ipv6 => 58,
            Protocol::Icmp => 1,
        };
        (!prefixes.is_empty()).then(|| PlannedGroup {
            ipv6,
            protocol,
            local_ports: group.local_ports.as_ref().map(ends),
            remote_ports: group.remote_ports.as_ref().map(ends),
            source: inner.iter().copied().find(|address| address.is_ipv6() == ipv6),
            prefixes,
            mtu_bytes: Some(path_bytes_max.max(MTU_BYTES_MIN[usize::from(ipv6)]))
                .filter(|bytes| *bytes < MTU_BYTES),
        })
    })
}

impl TunnelPlan {
    /// The device for the kernel.
    #[must_use]
    pub fn device(&self) -> Option<TunnelDevice> {
        let PlannedDevice { name, addresses } = self.device.clone()?;
        Some(TunnelDevice { name, addresses, mtu_bytes: MTU_BYTES })
    }

    /// The groups for the kernel.
    #[must_use]
    pub fn groups(&self) -> Vec<FlowGroup> {
        self.groups.iter().map(PlannedGroup::group).collect()
    }
}

impl PlannedGroup {
    fn group(&self) -> FlowGroup {
        let range = |ports: Option<(u16, u16)>| -> Option<RangeInclusive<u16>> {
            ports.map(|(first, last)| first..=last)
        };
        let route = |(address, prefix_bits): &(IpAddr, u8)| FlowRoute {
            address: *address,
            prefix_bits: *prefix_bits,
            source: self.source,
            mtu_bytes: self.mtu_bytes,
        };
        FlowGroup {
            version: if self.ipv6 { IpVersion::V6 } else { IpVersion::V4 },
            protocol: self.protocol,
            local_ports: range(self.local_ports),
            remote_ports: range(self.remote_ports),
            routes: self.prefixes.iter().map(route).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tacit_core::flow::Direction;
    use tacit_core::policy::TunnelPrefix;

    use super::*;

    #[test]
    fn routes_have_the_mtu_of_the_path_to_their_peer() {
        let (opened, _) = mpsc::channel(1);
        let tunnels = RunTunnels::new(opened, None);
        let note = |bytes| tunnels.note_path("far".to_owned(), bytes);
        assert_eq!([1_438, 1_230, 1_230, 1_310, 1_400].map(note), [false, true, false, true, true]);
        let group = |address: &str, path| {
            let prefix = TunnelPrefix { network: address.parse().unwrap(), length: 24 };
            let group = TunnelGroup {
                peer: "far".to_owned(),
                direction: Direction::Outbound,
                protocol: Protocol::Udp,
                local_ports: None,
                remote_ports: None,
                prefixes: vec![prefix],
            };
            planned(&group, &[], path).next().unwrap().mtu_bytes
        };
        assert_eq!(
            [1_400, 1_230, 0].map(|path| group("10.2.0.0", path)),
            [None, Some(1_230), Some(68)]
        );
        assert_eq!(
            [1_400, 1_310, 1_230].map(|path| group("fd00::", path)),
            [None, Some(1_310), Some(1_280)]
        );
    }

    /// What an agent with a device knows.
    fn with_device() -> (TunLease, Mirror) {
        // Only the descriptor matters.
        let device = std::fs::File::open("/dev/null").unwrap();
        let (lease, watch) = TunLease::new(device.into());
        let device = LeasedDevice { name: "tacit0".to_owned(), lease: watch };
        let plan = Some(TunnelPlan::default());
        (lease, Mirror { device: Some(device), plan, ..Mirror::default() })
    }

    #[tokio::test]
    async fn a_successor_gets_the_device_and_what_peers_have_reported() {
        let (opened, _) = mpsc::channel(1);
        let tunnels = RunTunnels::new(opened.clone(), None);
        assert!(tunnels.hand_over().await.unwrap().is_none(), "there is no device");
        let tunnels = RunTunnels::new(opened.clone(), None);
        let address: IpAddr = "10.1.0.1".parse().unwrap();
        tunnels.assign("far".to_owned(), vec![address]);
        tunnels.note_path("far".to_owned(), 1_230);
        let (lease, mirror) = with_device();
        *tunnels.mirror.lock().await = mirror;
        let HandedTunnels { reports, tun } = tunnels.hand_over().await.unwrap().unwrap();
        assert!(tunnels.hand_over().await.unwrap().is_none(), "it is handed over once");
        drop(lease);
        let text = serde_json::to_string(&reports).unwrap();
        let reports = serde_json::from_str(&text).unwrap();
        let successor = RunTunnels::new(opened, Some(HandedTunnels { reports, tun }));
        assert_eq!(successor.assigned.lock().unwrap()["far"], [address]);
        assert!(!successor.note_path("far".to_owned(), 1_230), "the routes have this MTU");
        assert!(successor.mirror.lock().await.inherited.is_none(), "this is not a TUN device");
    }

    #[test]
    fn a_device_that_the_agent_could_not_use_is_made_again() {
        let (lease, mut mirror) = with_device();
        mirror.forget_unread();
        assert!(mirror.device.is_some() && mirror.plan.is_some());
        drop(lease);
        mirror.forget_unread();
        assert!(mirror.device.is_none() && mirror.plan.is_none());
    }
}
