//! Builds the nftables rules for a program under `tacit run`, in the order in which the kernel
//! evaluates them.
//!
//! To hold a SYN, the kernel sends a copy to the agent and drops the SYN. When the destination has
//! answered, the agent sends the SYN again (releases the SYN), or refuses the connection. Until
//! then, the kernel retransmits the SYN. Own addresses are the addresses of the run's network
//! namespace.
//!
//! ```text
//! packet                                                   action
//! the agent's own packets                                  accept
//! from a TUN device            to a port of the agent      drop
//!                              other                       accept: the packet is for the program
//! TCP after its SYN                                        accept
//! a SYN that the agent releases                            send to the agent
//! port 53 on loopback and      a program listens there     accept
//! own addresses                other                       send UDP to the agent, hold a SYN
//! loopback and own addresses   a program listens there     accept
//! captured address and port                                send UDP to the agent, hold a SYN
//! UDP for which the agent already has a socket             accept: this socket receives it
//! loopback and own addresses   a port of the agent         reject
//!                              other                       accept: the kernel returns an error
//! port 53 anywhere else                                    send UDP to the agent, hold a SYN
//! any other SYN                                            hold
//! any other UDP                                            reject
//! ICMP echo requests                                       drop
//! ```
//!
//! The kernel always holds a SYN to another host. So for TCP, the nftables sets contain only
//! captured ports of loopback and own addresses. For UDP, the sets contain all captured
//! destinations.
//!
//! Traffic between programs of the run does not pass through the agent. Packets from a TUN device
//! come out of an IPsec tunnel, and the agent has already checked them.
//!
//! Each row with "send to the agent" or "hold" has two nftables rules. The second rule rejects the
//! packet if the agent has no socket for this packet, for example because the agent has ended. Then
//! the program gets the error "connection refused".

use std::net::{IpAddr, Ipv6Addr};

use super::agent::{AGENT_MARK, AGENT_PORT, Copies, HOLD_PORT, RELEASE_MARK};
use super::batch::{CHAIN, CREATE, TABLE, message};
use super::expression::Expression;
use super::own::{OWN4, OWN6};
use super::primitive::{NftFamily, Redirect};
use crate::ip_version::IpSupport;
use crate::netlink::message::NetlinkRequest;

use Expression::{
    Accept, AtMostPerSecond, Captured, CopyToAgent, Drop, FromTun, IcmpType, Mark, MarkedSocket,
    OwnSocket, PastSyn, PortUnreachable, ReportToAgent, Reset, To, ToAgent, ToHold, ToLoopbackV4,
    ToOwn, ToPort, Transport,
};

const NEWRULE: u16 = 6;
const APPEND: u16 = CREATE | 0x800;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;
const DNS: u16 = 53;
/// The largest number of refused packets that are reported to the agent in a second. It limits the
/// cost of a flood of such packets.
const REPORTED_PER_SECOND_MAX: u64 = 50;
const V4: Expression = Expression::NftFamily(NftFamily::V4);
const V6: Expression = Expression::NftFamily(NftFamily::V6);
const LOOPBACK_V4: [Expression; 2] = [V4, ToLoopbackV4];
const LOOPBACK_V6: [Expression; 2] = [V6, To(IpAddr::V6(Ipv6Addr::LOCALHOST))];
/// The destinations at which a program of the run itself may listen.
const OWN: [[Expression; 2]; 4] =
    [LOOPBACK_V4, [V4, ToOwn(OWN4, NftFamily::V4)], LOOPBACK_V6, [V6, ToOwn(OWN6, NftFamily::V6)]];

/// Returns all rules.
pub(super) fn all(kernel: IpSupport, copies: Copies) -> Vec<NetlinkRequest> {
    let redirect = match kernel {
        IpSupport::V4Only => Redirect::V4,
        IpSupport::V4AndV6 => Redirect::Any,
    };
    let mut rules = Rules { copies, list: Vec::new() };
    let of_agent = [Mark(AGENT_MARK), Accept];
    rules.push("adding the nft rule that accepts the agent's own packets", &of_agent);
    // No packet of a tunnel may reach the agent's ports, also no TCP packet without SYN.
    rules.push_tunnels();
    rules.push(
        "adding the nft rule that accepts packets of established TCP connections",
        &[Transport(TCP), PastSyn, Accept],
    );
    let released = [Mark(RELEASE_MARK), Transport(TCP)];
    let step = "adding the nft rule that redirects released SYNs (sent again by the agent) to the \
                agent's listener";
    rules.push_or_refused(step, &released, &[ToAgent(redirect)], Reset);
    for address in &OWN[..2] {
        rules.push_local_dns(address, Redirect::V4);
    }
    if kernel == IpSupport::V4AndV6 {
        for address in &OWN[2..] {
            rules.push_local_dns(address, Redirect::V6);
        }
    }
    for address in OWN {
        for protocol in TRANSPORTS {
            let served = [&address[..], &[Transport(protocol), OwnSocket, Accept]].concat();
            let step = "adding the nft rule that accepts traffic to the program's own servers";
            rules.push(step, &served);
        }
    }
    for (protocol, family, set, family_is) in [
        (TCP, NftFamily::V4, "tcp4", V4),
        (TCP, NftFamily::V6, "tcp6", V6),
        (UDP, NftFamily::V4, "udp4", V4),
        (UDP, NftFamily::V6, "udp6", V6),
    ] {
        let what = [family_is, Transport(protocol), Captured(set, family)];
        let step = "adding the nft rule that sends captured traffic to the agent";
        rules.push_led(step, &what, protocol, redirect);
    }
    rules.push("adding the nft rule that accepts datagrams for the agent's sockets", &TO_ANSWERER);
    for address in OWN {
        for (protocol, port) in AGENT_PORTS {
            let refusal = if protocol == TCP { Reset } else { PortUnreachable };
            let ports = [&address[..], &[Transport(protocol), ToPort(port), refusal]].concat();
            let step = "adding the nft rule that rejects packets sent to the agent's own ports";
            rules.push(step, &ports);
        }
        for protocol in TRANSPORTS {
            rules.push_report(&[&address[..], &[Transport(protocol)]].concat());
        }
        rules.push(
            "adding the nft rule that accepts traffic to the run's own addresses",
            &[&address[..], &[Accept]].concat(),
        );
    }
    let step = "adding the nft rule that sends DNS queries to the agent";
    rules.push_led(step, &[Transport(UDP), ToPort(DNS)], UDP, redirect);
    let step = "adding the nft rule that sends all other SYNs to the agent";
    rules.push_led(step, &[Transport(TCP)], TCP, redirect);
    rules.push_report(&[Transport(UDP)]);
    let step = "adding the nft rule that rejects all other traffic";
    rules.push(step, &[Transport(UDP), PortUnreachable]);
    for (family, protocol, kind) in [(V4, ICMP, ECHO_REQUEST), (V6, ICMPV6, ECHO_REQUEST_V6)] {
        let echo = [family, Transport(protocol), IcmpType(kind), Drop];
        rules.push("adding the nft rule that drops echo requests", &echo);
    }
    rules.list
}

const TRANSPORTS: [u8; 2] = [UDP, TCP];
/// The ports of the agent's sockets inside.
const AGENT_PORTS: [(u8, u16); 3] = [(TCP, AGENT_PORT), (TCP, HOLD_PORT), (UDP, AGENT_PORT)];
/// Matches datagrams that a connected socket of the agent receives.
const TO_ANSWERER: [Expression; 3] = [Transport(UDP), MarkedSocket(AGENT_MARK), Accept];

/// The rules, in the order in which the kernel evaluates them.
struct Rules {
    copies: Copies,
    list: Vec<NetlinkRequest>,
}

impl Rules {
    fn push(&mut self, step: &'static str, expressions: &[Expression]) {
        self.list.push(rule(step, expressions));
    }

    /// Accepts the packets that the agent has taken out of tunnels.
    fn push_tunnels(&mut self) {
        for (protocol, port) in AGENT_PORTS {
            self.push(
                "adding the nft rule that drops packets that come from a tunnel and go to the \
                 agent's ports",
                &[FromTun, Transport(protocol), ToPort(port), Drop],
            );
        }
        self.push("adding the nft rule that accepts packets from tunnels", &[FromTun, Accept]);
    }

    /// Reports packets that the kernel refuses to the agent.
    fn push_report(&mut self, what: &[Expression]) {
        if self.copies == Copies::OfRule {
            let report = [AtMostPerSecond(REPORTED_PER_SECOND_MAX), ReportToAgent];
            self.push(
                "adding the nft rule that reports rejected traffic",
                &[what, &report].concat(),
            );
        }
    }

    /// Handles DNS queries to a resolver on this machine. If a program of the run listens there, it
    /// gets the query; otherwise the resolver of the host is meant, and the agent gets the query.
    fn push_local_dns(&mut self, to: &[Expression], redirect: Redirect) {
        for protocol in TRANSPORTS {
            // The port first: it decides for nearly all packets.
            let dns = [&[Transport(protocol), ToPort(DNS)], to].concat();
            let own = [&dns[..], &[OwnSocket, Accept]].concat();
            self.push(
                "adding the nft rule that accepts queries to the program's own DNS server",
                &own,
            );
            let step = "adding the nft rule that captures queries to local DNS servers";
            self.push_led(step, &dns, protocol, redirect);
        }
    }

    /// Sends matching packets to the agent: a datagram at once, and a SYN when the agent releases
    /// it. Without an agent such a packet is refused, and the program gets "connection refused".
    fn push_led(
        &mut self,
        step: &'static str,
        what: &[Expression],
        protocol: u8,
        redirect: Redirect,
    ) {
        match (protocol, self.copies) {
            (TCP, Copies::OfRule) => {
                self.push_or_refused(step, what, &[CopyToAgent, ToHold(redirect)], Reset);
            }
            (TCP, Copies::OfInterface) => {
                self.push_or_refused(step, what, &[ToHold(redirect)], Reset);
            }
            _ => self.push_or_refused(step, what, &[ToAgent(redirect)], PortUnreachable),
        }
    }

    fn push_or_refused(
        &mut self,
        step: &'static str,
        what: &[Expression],
        led: &[Expression],
        refusal: Expression,
    ) {
        self.push(step, &[what, led].concat());
        self.push(step, &[what, &[refusal]].concat());
    }
}

fn rule(step: &'static str, expressions: &[Expression]) -> NetlinkRequest {
    rule_in(CHAIN, step, expressions)
}

/// Builds a rule at the end of a chain.
pub(super) fn rule_in(
    chain: &str,
    step: &'static str,
    expressions: &[Expression],
) -> NetlinkRequest {
    let mut message = message(step, NEWRULE, APPEND);
    message.text(1, TABLE);
    message.text(2, chain);
    message.nest(4, |list| {
        for expression in expressions {
            expression.write(list);
        }
    });
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::testing::{bytes, sealed};

    const RULE: &str = "060a 050c 00000000 00000000 01 00 0000 \
                        0a00 0100 7461636974 00 0000 0f00 0200 707265726f7574696e67 00 00";

    /// Builds the expressions of a rule, without the header, table and chain, which all rules have
    /// in common.
    fn expressions(expressions: &[Expression]) -> Vec<u8> {
        let whole = sealed(&rule("", expressions));
        let head = bytes(RULE);
        assert_eq!(whole[4..4 + head.len()], head);
        let list = &whole[4 + head.len()..];
        assert_eq!(usize::from(u16::from_ne_bytes([list[0], list[1]])), list.len());
        assert_eq!(list[2..4], bytes("0480"));
        list[4..].to_vec()
    }

    const LOAD_FAMILY: &str = "2400 0180 0900 0100 6d65746100 000000 \
                               1400 0280 0800 0200 0000000f 0800 0100 00000001";
    const ACCEPT: &str = "3000 0180 0e00 0100 696d6d65646961746500 0000 \
                          1c00 0280 0800 0100 00000000 1000 0280 0c00 0280 0800 0100 00000001";

    fn compare_byte(value: &str) -> String {
        format!(
            "2c00 0180 0800 0100 636d7000 2000 0280 0800 0100 00000001 0800 0200 00000000 \
             0c00 0380 0500 0100 {value} 000000"
        )
    }

    #[test]
    fn packets_of_tunnels_are_decided_about_before_any_rule_for_tcp() {
        let rules = all(IpSupport::V4AndV6, Copies::OfRule);
        let written: Vec<Vec<u8>> = rules.iter().map(sealed).collect();
        let place = |expressions: &[Expression]| {
            let wanted = sealed(&rule("", expressions));
            written.iter().position(|one| *one == wanted).unwrap()
        };
        let past_syn = place(&[Transport(TCP), PastSyn, Accept]);
        let from_tunnels = place(&[FromTun, Accept]);
        assert!(from_tunnels < past_syn);
        for (protocol, port) in AGENT_PORTS {
            assert!(place(&[FromTun, Transport(protocol), ToPort(port), Drop]) < from_tunnels);
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn the_mark_is_compared_in_host_order() {
        let wanted = format!(
            "2400 0180 0900 0100 6d65746100 000000 1400 0280 0800 0200 00000003 0800 0100 00000001 \
             2c00 0180 0800 0100 636d7000 2000 0280 0800 0100 00000001 0800 0200 00000000 \
             0c00 0380 0800 0100 c17a0000 {ACCEPT}"
        );
        assert_eq!(expressions(&[Mark(0x7ac1), Accept]), bytes(&wanted));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn family_own_socket_and_redirect_byte_by_byte() {
        let wanted = format!(
            "{LOAD_FAMILY} {} \
             2400 0180 0b00 0100 736f636b657400 00 1400 0280 0800 0100 00000000 0800 0200 00000001 \
             {} \
             2c00 0180 0e00 0100 696d6d65646961746500 0000 1800 0280 0800 0100 00000001 \
             0c00 0280 0600 0100 3a99 0000 \
             2400 0180 0b00 0100 7470726f787900 00 1400 0280 0800 0100 0000000a 0800 0300 00000001 \
             {ACCEPT}",
            compare_byte("0a"),
            compare_byte("00"),
        );
        assert_eq!(expressions(&[V6, OwnSocket, ToAgent(Redirect::V6)]), bytes(&wanted));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn past_syn_masks_two_flags_and_refusals_have_their_kinds() {
        let wanted = "3400 0180 0c00 0100 7061796c6f616400 2400 0280 0800 0100 00000001 \
             0800 0200 00000002 0800 0300 0000000d 0800 0400 00000001 \
             4400 0180 0c00 0100 6269747769736500 3400 0280 0800 0100 00000001 \
             0800 0200 00000001 0800 0300 00000001 \
             0c00 0480 0500 0100 12 000000 0c00 0580 0500 0100 00 000000 \
             2c00 0180 0800 0100 636d7000 2000 0280 0800 0100 00000001 0800 0200 00000001 \
             0c00 0380 0500 0100 02 000000 \
             1c00 0180 0b00 0100 72656a65637400 00 0c00 0280 0800 0100 00000001 \
             2400 0180 0b00 0100 72656a65637400 00 1400 0280 0800 0100 00000002 \
             0500 0200 01 000000";
        assert_eq!(expressions(&[PastSyn, Reset, PortUnreachable]), bytes(wanted));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_captured_key_is_the_address_then_the_port_in_registers_side_by_side() {
        let lookup = |offset, len, register, set| {
            format!(
                "3400 0180 0c00 0100 7061796c6f616400 2400 0280 0800 0100 00000001 \
                 0800 0200 00000001 0800 0300 000000{offset} 0800 0400 000000{len} \
                 3400 0180 0c00 0100 7061796c6f616400 2400 0280 0800 0100 000000{register} \
                 0800 0200 00000002 0800 0300 00000002 0800 0400 00000002 \
                 2800 0180 0b00 0100 6c6f6f6b757000 00 1800 0280 0900 0100 {set}00 000000 \
                 0800 0200 00000001"
            )
        };
        let four = [Captured("tcp4", NftFamily::V4)];
        assert_eq!(expressions(&four), bytes(&lookup("10", "04", "09", "74637034")));
        let six = [Captured("udp6", NftFamily::V6)];
        assert_eq!(expressions(&six), bytes(&lookup("18", "10", "02", "75647036")));
    }

    /// Counts the kernel's expressions of this name in a rule.
    fn count(rule: &[u8], name: &[u8]) -> usize {
        rule.windows(name.len()).filter(|part| *part == name).count()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn what_the_program_serves_on_loopback_stays_with_it_byte_by_byte() {
        let rules: Vec<_> = all(IpSupport::V4AndV6, Copies::OfRule).iter().map(sealed).collect();
        let wanted = format!(
            "{LOAD_FAMILY} {} \
             3400 0180 0c00 0100 7061796c6f616400 2400 0280 0800 0100 00000001 \
             0800 0200 00000001 0800 0300 00000010 0800 0400 00000001 {} \
             2400 0180 0900 0100 6d65746100 000000 1400 0280 0800 0200 00000010 0800 0100 00000001 \
             {} \
             2400 0180 0b00 0100 736f636b657400 00 1400 0280 0800 0100 00000000 0800 0200 00000001 \
             {} {ACCEPT}",
            compare_byte("02"),
            compare_byte("7f"),
            compare_byte("06"),
            compare_byte("00"),
        );
        let served = [V4, ToLoopbackV4, Transport(TCP), OwnSocket, Accept];
        assert_eq!(expressions(&served), bytes(&wanted));
        assert!(rules.contains(&sealed(&rule("", &served))));
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_marked_socket_is_compared_in_host_order() {
        let wanted = "2400 0180 0b00 0100 736f636b657400 00 \
             1400 0280 0800 0100 00000001 0800 0200 00000001 \
             2c00 0180 0800 0100 636d7000 2000 0280 0800 0100 00000001 0800 0200 00000000 \
             0c00 0380 0800 0100 c17a0000";
        assert_eq!(expressions(&[MarkedSocket(AGENT_MARK)]), bytes(wanted));
    }

    #[test]
    fn own_sockets_come_before_captured_addresses_and_those_before_own_addresses() {
        let steps: Vec<_> =
            all(IpSupport::V4AndV6, Copies::OfRule).iter().map(|rule| rule.step).collect();
        let first = |step: &str| steps.iter().position(|one| one.contains(step)).unwrap();
        let last = |step: &str| steps.iter().rposition(|one| one.contains(step)).unwrap();
        assert!(last("to the program's own servers") < first("captured traffic"));
        assert!(last("captured traffic") < first("traffic to the run's own addresses"));
        assert!(last("traffic to the run's own addresses") < first("rejects all other traffic"));
        // Each set occurs once to redirect and once to refuse, for the case that there is no agent.
        for set in ["tcp4", "tcp6", "udp4", "udp6"] {
            let uses: usize = all(IpSupport::V4AndV6, Copies::OfRule)
                .iter()
                .map(|rule| count(&sealed(rule), set.as_bytes()))
                .sum();
            assert_eq!(uses, 2, "{set}");
        }
    }

    #[test]
    fn without_ipv6_nothing_is_led_to_an_ipv6_socket() {
        assert!(
            all(IpSupport::V4Only, Copies::OfRule).len()
                < all(IpSupport::V4AndV6, Copies::OfRule).len()
        );
        let tproxy = bytes("7470726f787900 00 1400 0280 0800 0100");
        for message in all(IpSupport::V4Only, Copies::OfRule) {
            let message = sealed(&message);
            for at in 0..message.len() - tproxy.len() {
                if message[at..].starts_with(&tproxy) {
                    assert_eq!(message[at + tproxy.len()..][..4], [0, 0, 0, 2]);
                }
            }
        }
    }
}
