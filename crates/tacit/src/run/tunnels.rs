//! Routes packets that the policy protects with IPsec to a TUN device in the network namespace of a
//! program under `tacit run`.
//!
//! ```text
//! policy ── TunnelRoutes ──> TunnelPlan ──> helper ──┬─> routing rules and routes of the run
//!                                                    └─> TUN device ──> IKE thread
//! ```
//!
//! `unreachable` routes exist before the device is created and after it is removed. So a packet
//! that needs a tunnel is never relayed in another way.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Mutex as StdMutex, PoisonError};

use serde::{Deserialize, Serialize};
use tacit_core::flow::Protocol;
use tacit_core::policy::{InnerAddressSource, Policy, TunnelGroup, TunnelRoutes};
use tacit_sys::IpVersion;
use tacit_sys::netlink::tunnel::{FlowGroup, FlowRoute, TunnelDevice};
use tacit_sys::tun::Tun;
use tokio::sync::{Mutex, mpsc};

use super::Run;

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
}

/// The size of packets inside a tunnel, in bytes. With the headers of ESP and UDP they fit into
/// 1,500 bytes, also over IPv6 and PPPoE.
const MTU_BYTES: u32 = 1400;

/// A TUN device that the helper of a run has made.
#[derive(Debug)]
pub struct OpenedTun {
    /// The number of the run.
    pub run: u64,
    /// The name of the run.
    pub name: String,
    /// The device.
    pub tun: Tun,
}

/// The TUN device of one run, and the routes into it.
#[derive(Debug)]
pub struct RunTunnels {
    mirror: Mutex<Mirror>,
    /// The addresses that peers have assigned, by the name of the peer.
    assigned: StdMutex<BTreeMap<String, Vec<IpAddr>>>,
    opened: mpsc::Sender<OpenedTun>,
}

/// What is to be routed into the TUN device of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedTunnels {
    groups: Vec<PlannedGroup>,
    addresses: Vec<IpAddr>,
}

impl WantedTunnels {
    /// Whether there are packets of this IP version.
    #[must_use]
    pub fn has_family(&self, version: IpVersion) -> bool {
        self.groups.iter().any(|group| group.ipv6 == (version == IpVersion::V6))
    }
}

/// What the kernel has, as far as it is known.
#[derive(Debug, Default)]
struct Mirror {
    /// The name of the device that this agent has.
    device: Option<String>,
    /// The routes; `None`: they are not known, or there were never any.
    plan: Option<TunnelPlan>,
}

impl RunTunnels {
    /// A run without a device. The device will be sent to this queue.
    #[must_use]
    pub fn new(opened: mpsc::Sender<OpenedTun>) -> Self {
        Self { mirror: Mutex::default(), assigned: StdMutex::default(), opened }
    }

    /// Records the addresses that a peer has assigned to the run, in place of earlier ones.
    pub fn assign(&self, ike: String, addresses: Vec<IpAddr>) {
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        assigned.insert(ike, addresses);
    }

    /// The packets that the policy leads into tunnels of a run.
    ///
    /// # Errors
    /// The policy exceeds a limit.
    pub fn wanted(&self, run: &Run, policy: &Policy) -> io::Result<WantedTunnels> {
        let own: Vec<IpAddr> = run.host.addresses().all().collect();
        let routes = TunnelRoutes::of(policy, &run.name, &own).map_err(io::Error::other)?;
        let inner = self.inner_addresses(policy, &routes);
        let mut groups = Vec::new();
        for group in routes.groups() {
            groups.extend(planned(group, inner.get(&group.ike).map_or(&[], Vec::as_slice)));
        }
        let addresses: BTreeSet<IpAddr> = inner.into_values().flatten().collect();
        Ok(WantedTunnels { groups, addresses: addresses.into_iter().collect() })
    }

    /// Makes the routes those that are wanted. The first time that there are some, the helper makes
    /// the device.
    ///
    /// # Errors
    /// The kernel refuses, or there is no helper. No packet of a tunnel takes another route then.
    pub async fn follow(&self, run: &Run, wanted: WantedTunnels) -> io::Result<()> {
        let WantedTunnels { groups, addresses } = wanted;
        let mut mirror = self.mirror.lock().await;
        if mirror.device.is_none() {
            if groups.is_empty() {
                return Ok(());
            }
            let closed = TunnelPlan { device: None, groups: groups.clone() };
            run.helper.route_tunnels(closed).await?;
            mirror.device = Some(self.open_tun(run).await?);
        }
        let device = mirror.device.clone().map(|name| PlannedDevice { name, addresses });
        let plan = TunnelPlan { device, groups };
        if mirror.plan.as_ref() != Some(&plan) {
            // If it fails, it is not known which routes there are.
            mirror.plan = None;
            run.helper.route_tunnels(plan.clone()).await?;
            mirror.plan = Some(plan);
        }
        Ok(())
    }

    async fn open_tun(&self, run: &Run) -> io::Result<String> {
        let tun = run.helper.open_tun().await?;
        let name = tun.name()?;
        let ended = |_| io::Error::other("the agent is ending");
        let opened = OpenedTun { run: run.id, name: run.name.clone(), tun };
        self.opened.send(opened).await.map_err(ended)?;
        Ok(name)
    }

    /// The addresses of the run inside its tunnels, by the name of the peer.
    fn inner_addresses(
        &self,
        policy: &Policy,
        routes: &TunnelRoutes,
    ) -> BTreeMap<String, Vec<IpAddr>> {
        let assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |ike: &str| match &policy.ikes.get(ike)?.inner {
            InnerAddressSource::Policy(addresses) => Some(addresses.clone()),
            InnerAddressSource::Gateway => assigned.get(ike).cloned(),
        };
        routes.ikes().filter_map(|ike| Some((ike.to_owned(), of(ike)?))).collect()
    }
}

/// Divides a group by the IP version of its prefixes.
fn planned(group: &TunnelGroup, inner: &[IpAddr]) -> impl Iterator<Item = PlannedGroup> {
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
