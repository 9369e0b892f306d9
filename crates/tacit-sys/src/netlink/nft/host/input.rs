//! Builds the nftables rules of the chain `input`, for packets that the kernel delivers to this
//! host. This chain applies the filter rules, which permit or deny single packets. It also refuses
//! packets that must go to the agent, if no socket of the agent receives them.
//!
//! A *captured port* is a port whose packets must go to the agent. The earlier chain `prerouting`
//! sends these packets to the agent. But `prerouting` gets a packet before the kernel has decided
//! whether the packet is for this host. So `prerouting` only checks whether the destination address
//! has the type `local` or `anycast`. `prerouting` misses a packet to a captured port in two cases:
//!
//! * The address has another type, but policy routing or a VRF delivers the packet to this host.
//! * NAT changes the port of the packet after `prerouting`.
//!
//! ```text
//! input  accepts packets that stay on the host, and captured packets of containers
//!        accepts packets to captured ports if a socket of the agent receives them
//!        accepts packets to captured ports if the chain `clients` has already filtered them
//!        applies the filter rules to all other packets
//!        refuses the remaining packets to captured ports
//! ```
//!
//! The filter rules count packets, so no packet may pass through the filter rules twice.

use super::super::expression::Expression;
use super::super::host_expression::HostExpression;
use super::super::primitive::PacketEnd;
use super::filters;
use super::names::{Chain, INBOUND};
use super::rules::{FAMILIES, Rules, TCP};
use super::{HostTable, Lifetime};

use Expression::{Accept, Captured, Host, Jump, Reset, Transport};
use HostExpression::{FromLo, IsAnycast, IsLocal, IsRewritten, MarkIs, Transparent};

/// Whether the table needs the chain.
pub(super) fn is_needed(table: &HostTable<'_>) -> bool {
    refuses(table) || filters::needs(table, Chain::FilterIn)
}

/// Whether clients that the agent does not receive are refused. In audit mode, none is.
fn refuses(table: &HostTable<'_>) -> bool {
    !table.inbound.is_empty() && table.lifetime == Lifetime::Unlimited
}

impl Rules {
    /// What the kernel delivers to this host.
    pub(super) fn push_input(&mut self, table: &HostTable<'_>) {
        if !is_needed(table) {
            return;
        }
        let chain = Chain::Input;
        let step = "adding the nft rule that accepts packets that stay on the host";
        self.push(chain, step, &[Host(FromLo), Accept]);
        // They have their own interfaces.
        if !table.forwarded.is_empty() {
            for mark in self.bits().of_containers() {
                let step = "adding the nft rule that accepts captured packets of containers";
                self.push(chain, step, &[Host(MarkIs(mark)), Accept]);
            }
        }
        let to_agent = Host(Transparent(true));
        let step = "adding the nft rule that accepts packets that clients send to the agent";
        self.push_to_captured_ports(table, step, &[to_agent, Accept]);
        let refused = [Host(Transparent(false)), Reset];
        if filters::needs(table, Chain::FilterIn) {
            let filtered = [Jump(Chain::FilterIn.name())];
            let step =
                "adding the nft rule that checks packets that NAT redirects to captured ports";
            for then in [&filtered[..], &refused] {
                let then = [&[Host(IsRewritten(true))], then].concat();
                self.push_to_captured_ports(table, step, &then);
            }
            let step = "adding the nft rule that accepts packets to captured ports if the chain \
                        `clients` has already checked them";
            for own in [IsLocal(PacketEnd::Destination), IsAnycast(PacketEnd::Destination)] {
                self.push_to_captured_ports(table, step, &[Host(own), Accept]);
            }
            self.push(chain, "adding the nft rule that filters packets to this host", &filtered);
        }
        let step = "adding the nft rule that rejects packets that clients send to captured ports";
        self.push_to_captured_ports(table, step, &refused);
    }

    fn push_to_captured_ports(
        &mut self,
        table: &HostTable<'_>,
        step: &'static str,
        then: &[Expression],
    ) {
        if !refuses(table) {
            return;
        }
        for (set, (family, family_is)) in INBOUND.into_iter().zip(FAMILIES) {
            let to_port = [family_is, Transport(TCP), Captured(set, family)];
            self.push(Chain::Input, step, &[&to_port, then].concat());
        }
    }
}
