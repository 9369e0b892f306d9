//! Finds the account of a packet in an IPsec tunnel. An account counts the CPU time of one rule. A
//! packet belongs to the rule that sends the packet through the tunnel. A packet worker processes
//! packets in batches. The CPU time of a batch is divided among the accounts of its packets.
//!
//! [`TunnelAccounts`] finds the account of a packet. `BatchShares` adds up a weight for each
//! account: the bytes of its packets, and a constant for each packet. The thread's meter divides
//! the CPU time in proportion to these weights.

use std::net::SocketAddr;
use std::sync::Arc;

use tacit_core::flow::Protocol;
use tacit_core::policy::{TunnelPacket, TunnelRoutes};
use tacit_ipsec::packet::IpPacket;

use super::direction::Direction;
use crate::ledger::{Account, meter};

/// The CPU time of any packet, as that of this number of bytes. It only matters in a batch with
/// packets of several rules.
const PACKET_WEIGHT_BYTES: u64 = 2_000;

/// The accounts of the rules that lead packets into one tunnel.
#[derive(Clone, Debug, Default)]
pub struct TunnelAccounts {
    routes: Arc<TunnelRoutes>,
    peer: String,
    accounts: Vec<(String, Arc<Account>)>,
}

/// The index of an account in [`TunnelAccounts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccountIndex(usize);

/// The accounts of the packets of a batch.
#[derive(Debug)]
pub(super) struct BatchShares {
    current: Arc<Account>,
    weight: u64,
}

impl TunnelAccounts {
    /// Selects the accounts of the rules of one peer, by the names of the rules.
    #[must_use]
    pub fn new(
        routes: &Arc<TunnelRoutes>,
        peer: &str,
        accounts: &[(String, Arc<Account>)],
    ) -> Self {
        let of_peer =
            |name: &str| routes.rules().iter().any(|rule| rule.peer == peer && rule.name == name);
        let accounts = accounts.iter().filter(|(name, _)| of_peer(name)).cloned().collect();
        Self { routes: Arc::clone(routes), peer: peer.to_owned(), accounts }
    }

    /// Whether all packets have the same account.
    pub(super) fn is_single(&self) -> bool {
        self.accounts.len() < 2
    }

    /// Finds the account of a packet that the tunnel permits.
    pub(super) fn find(&self, direction: Direction, packet: &IpPacket) -> Option<AccountIndex> {
        if self.is_single() {
            return (!self.accounts.is_empty()).then_some(AccountIndex(0));
        }
        let rule = self.routes.rule_in_tunnel(&self.peer, &tunnel_packet(direction, packet)?)?;
        self.accounts.iter().position(|(name, _)| name == rule).map(AccountIndex)
    }

    /// Returns an account; that of all packets if the rule of a packet is not known.
    pub(super) fn account(&self, index: Option<AccountIndex>) -> &Arc<Account> {
        match index.and_then(|index| self.accounts.get(index.0)) {
            Some((_, account)) => account,
            None => Account::packets(),
        }
    }
}

impl BatchShares {
    pub(super) fn new() -> Self {
        Self { current: Arc::clone(Account::packets()), weight: 0 }
    }

    /// Counts a packet.
    pub(super) fn count(&mut self, account: &Arc<Account>, packet_bytes: usize) {
        if !Arc::ptr_eq(&self.current, account) {
            self.finish();
            self.current = Arc::clone(account);
        }
        let bytes = u64::try_from(packet_bytes).unwrap_or(0);
        self.weight += PACKET_WEIGHT_BYTES + bytes;
    }

    /// Reports the packets since the last call to the meter of this thread.
    pub(super) fn finish(&mut self) {
        if self.weight > 0 {
            meter::share(&self.current, self.weight);
            self.weight = 0;
        }
    }
}

/// Returns the ends of a packet, as rules name them; `None` if no rule has its protocol.
pub(crate) fn tunnel_packet(direction: Direction, packet: &IpPacket) -> Option<TunnelPacket> {
    let (protocol, has_ports) = match packet.protocol {
        6 => (Protocol::Tcp, true),
        17 => (Protocol::Udp, true),
        1 | 58 => (Protocol::Icmp, false),
        _ => return None,
    };
    let (source_port, destination_port) = packet.ports.filter(|_| has_ports).unwrap_or_default();
    let source = SocketAddr::new(packet.source, source_port);
    let destination = SocketAddr::new(packet.destination, destination_port);
    let (local, remote) = match direction {
        Direction::Outbound => (source, destination),
        Direction::Inbound => (destination, source),
    };
    Some(TunnelPacket { protocol, local, remote })
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"
version = 1
[ike.branch]
peer = "192.0.2.1"
psk-file = "psk"
local-id = "a.example"
remote-id = "b.example"
inner = "10.1.0.1"
[[rule]]
name = "web"
direction = "outbound"
remote = "10.2.0.0/16"
remote-ports = 80
ipsec = { ike = "branch" }
[[rule]]
name = "served"
direction = "inbound"
remote = "10.2.0.0/16"
local-ports = 7000
ipsec = { ike = "branch" }
"#;

    /// The TCP packet from `from` to `to`.
    fn packet(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> IpPacket {
        let mut bytes = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
        bytes.extend([from.0, to.0].concat());
        bytes.extend([from.1.to_be_bytes(), to.1.to_be_bytes()].concat());
        bytes.resize(40, 0);
        IpPacket::parse(&bytes).unwrap()
    }

    #[test]
    fn a_packet_has_the_account_of_its_rule_in_both_directions() {
        let policy = tacit_core::policy::parse(POLICY).policy.unwrap();
        let routes = Arc::new(TunnelRoutes::of(&policy, "run", &[]).unwrap());
        let open = ["web", "served", "other"].map(|name| (name.to_owned(), Account::open(name)));
        let accounts = TunnelAccounts::new(&routes, "branch", &open);
        assert_eq!(accounts.accounts.len(), 2, "not the account of another rule");
        let [near, far] = [[10, 1, 0, 1], [10, 2, 0, 9]];
        for (direction, packet, rule) in [
            (Direction::Outbound, packet((near, 5000), (far, 80)), Some("web")),
            (Direction::Inbound, packet((far, 80), (near, 5000)), Some("web")),
            (Direction::Inbound, packet((far, 5000), (near, 7000)), Some("served")),
            (Direction::Outbound, packet((near, 7000), (far, 5000)), Some("served")),
            (Direction::Outbound, packet((near, 7001), (far, 5000)), None),
        ] {
            let found = accounts.find(direction, &packet);
            let found = found.map(|index| accounts.accounts[index.0].0.as_str());
            assert_eq!(found, rule, "{direction:?} {packet:?}");
        }
    }

    #[test]
    fn a_packet_has_the_account_of_a_rule_for_its_peer() {
        let other = r#"
[ike.other]
peer = "192.0.2.2"
psk-file = "psk"
local-id = "a.example"
inner = "10.1.0.2"
[[rule]]
name = "all"
direction = "outbound"
remote = "10.2.0.0/15"
ipsec = { ike = "other" }
"#;
        let policy = tacit_core::policy::parse(&format!("{POLICY}{other}")).policy.unwrap();
        let routes = Arc::new(TunnelRoutes::of(&policy, "run", &[]).unwrap());
        let open = ["web", "served", "all"].map(|name| (name.to_owned(), Account::open(name)));
        let accounts = TunnelAccounts::new(&routes, "branch", &open);
        // A rule for the other peer contains the addresses and ports of this packet too.
        let served = packet(([10, 2, 0, 9], 5000), ([10, 1, 0, 1], 7000));
        let found = accounts.find(Direction::Inbound, &served);
        assert_eq!(found.map(|index| accounts.accounts[index.0].0.as_str()), Some("served"));
    }
}
