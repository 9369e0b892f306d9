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
//! The chain `prerouting` has a rule for each row, and calls the chains that contain what several
//! rows have in common:
//!
//! ```text
//! tunnels     packets from a TUN device
//! own         packets to loopback and own addresses, before the captured destinations
//! own-rest    the same packets, after the captured destinations
//! hold        holds a SYN
//! send        sends a datagram to the agent
//! ```
//!
//! `hold` and `send` have a second rule. It rejects the packet if the agent has no socket for this
//! packet, for example because the agent has ended. Then the program gets the error "connection
//! refused".

use std::net::{IpAddr, Ipv6Addr};

use super::agent::{AGENT_MARK, AGENT_PORT, Copies, HOLD_PORT, RELEASE_MARK};
use super::batch::{CHAIN, CREATE, TABLE, message};
use super::expression::Expression;
use super::own::{OWN4, OWN6};
use super::primitive::{NftFamily, Redirect};
use crate::ip_version::IpSupport;
use crate::netlink::message::NetlinkRequest;

use Expression::{
    Accept, AtMostPerSecond, Captured, CopyToAgent, Drop, FromTun, Goto, IcmpType, Jump, Mark,
    MarkedSocket, OwnSocket, PastSyn, PortUnreachable, ReportToAgent, Reset, To, ToAgent, ToHold,
    ToLoopbackV4, ToOwn, ToPort, Transport,
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
/// How many more may be reported at once.
const REPORTED_BURST_MAX: u32 = 20;
const V4: Expression = Expression::NftFamily(NftFamily::V4);
const V6: Expression = Expression::NftFamily(NftFamily::V6);
const LOOPBACK_V4: [Expression; 2] = [V4, ToLoopbackV4];
const LOOPBACK_V6: [Expression; 2] = [V6, To(IpAddr::V6(Ipv6Addr::LOCALHOST))];
/// The destinations at which a program of the run itself may listen.
const OWN: [[Expression; 2]; 4] =
    [LOOPBACK_V4, [V4, ToOwn(OWN4, NftFamily::V4)], LOOPBACK_V6, [V6, ToOwn(OWN6, NftFamily::V6)]];
const TRANSPORTS: [u8; 2] = [UDP, TCP];
/// The ports of the agent's sockets inside.
const AGENT_PORTS: [(u8, u16); 3] = [(TCP, AGENT_PORT), (TCP, HOLD_PORT), (UDP, AGENT_PORT)];
/// Matches datagrams that a connected socket of the agent receives.
const TO_ANSWERER: [Expression; 3] = [Transport(UDP), MarkedSocket(AGENT_MARK), Accept];

const TUNNELS: &str = "tunnels";
const OWN_FIRST: &str = "own";
const OWN_REST: &str = "own-rest";
const HOLD: &str = "hold";
const SEND: &str = "send";
/// The chains that the chain `prerouting` calls.
pub(super) const CHAINS: [&str; 5] = [TUNNELS, OWN_FIRST, OWN_REST, HOLD, SEND];

/// Returns the rules of all chains.
pub(super) fn all(kernel: IpSupport, copies: Copies) -> Vec<NetlinkRequest> {
    let redirect = match kernel {
        IpSupport::V4Only => Redirect::V4,
        IpSupport::V4AndV6 => Redirect::Any,
    };
    let mut rules = Rules { redirect, copies, list: Vec::new() };
    rules.push_called();
    let of_agent = [Mark(AGENT_MARK), Accept];
    rules.push("adding the nft rule that accepts the agent's own packets", &of_agent);
    // No packet of a tunnel may reach the agent's ports, also no TCP packet without SYN.
    let step = "adding the nft rule for packets from tunnels";
    rules.push(step, &[FromTun, Goto(TUNNELS)]);
    rules.push(
        "adding the nft rule that accepts packets of established TCP connections",
        &[Transport(TCP), PastSyn, Accept],
    );
    let step = "adding the nft rule that redirects released SYNs (sent again by the agent) to the \
                agent's listener";
    rules.push(step, &[Mark(RELEASE_MARK), Transport(TCP), ToAgent(redirect)]);
    rules.push(step, &[Mark(RELEASE_MARK), Transport(TCP), Reset]);
    let step = "adding the nft rule for the run's own addresses";
    rules.push_for_own(step, Jump(OWN_FIRST));
    for (family, protocol, captured, chain) in [
        (V4, TCP, Captured("tcp4", NftFamily::V4), HOLD),
        (V6, TCP, Captured("tcp6", NftFamily::V6), HOLD),
        (V4, UDP, Captured("udp4", NftFamily::V4), SEND),
        (V6, UDP, Captured("udp6", NftFamily::V6), SEND),
    ] {
        let step = "adding the nft rule that sends captured traffic to the agent";
        rules.push(step, &[family, Transport(protocol), captured, Goto(chain)]);
    }
    rules.push("adding the nft rule that accepts datagrams for the agent's sockets", &TO_ANSWERER);
    let step = "adding the nft rule for other traffic to the run's own addresses";
    rules.push_for_own(step, Goto(OWN_REST));
    let step = "adding the nft rule that sends DNS queries to the agent";
    rules.push(step, &[Transport(UDP), ToPort(DNS), Goto(SEND)]);
    let step = "adding the nft rule that sends all other SYNs to the agent";
    rules.push(step, &[Transport(TCP), Goto(HOLD)]);
    rules.push_report(CHAIN, UDP);
    let step = "adding the nft rule that rejects all other traffic";
    rules.push(step, &[Transport(UDP), PortUnreachable]);
    for (family, protocol, kind) in [(V4, ICMP, ECHO_REQUEST), (V6, ICMPV6, ECHO_REQUEST_V6)] {
        let echo = [family, Transport(protocol), IcmpType(kind), Drop];
        rules.push("adding the nft rule that drops echo requests", &echo);
    }
    rules.list
}

/// The rules of all chains. Those of a chain are in the order in which the kernel evaluates them.
struct Rules {
    redirect: Redirect,
    copies: Copies,
    list: Vec<NetlinkRequest>,
}

impl Rules {
    fn push(&mut self, step: &'static str, expressions: &[Expression]) {
        self.push_in(CHAIN, step, expressions);
    }

    fn push_in(&mut self, chain: &str, step: &'static str, expressions: &[Expression]) {
        self.list.push(rule_in(chain, step, expressions));
    }

    /// Has the packets to loopback and own addresses decided by a chain.
    fn push_for_own(&mut self, step: &'static str, call: Expression) {
        for address in OWN {
            self.push(step, &[&address[..], &[call]].concat());
        }
    }

    /// The rules of the chains that others call.
    fn push_called(&mut self) {
        self.push_tunnels();
        self.push_own_first();
        self.push_own_rest();
        let refused = "adding the nft rule that refuses traffic while there is no agent";
        let step = "adding the nft rule that holds SYNs";
        let copied = (self.copies == Copies::OfRule).then_some(CopyToAgent);
        let hold: Vec<_> = copied.into_iter().chain([ToHold(self.redirect)]).collect();
        self.push_in(HOLD, step, &hold);
        self.push_in(HOLD, refused, &[Reset]);
        let step = "adding the nft rule that sends datagrams to the agent";
        self.push_in(SEND, step, &[ToAgent(self.redirect)]);
        self.push_in(SEND, refused, &[PortUnreachable]);
    }

    /// Accepts the packets that the agent has taken out of tunnels.
    fn push_tunnels(&mut self) {
        for (protocol, port) in AGENT_PORTS {
            self.push_in(
                TUNNELS,
                "adding the nft rule that drops packets that come from a tunnel and go to the \
                 agent's ports",
                &[Transport(protocol), ToPort(port), Drop],
            );
        }
        self.push_in(TUNNELS, "adding the nft rule that accepts packets from tunnels", &[Accept]);
    }

    /// Accepts what a program of the run serves itself. A DNS query to a resolver on this machine
    /// goes to the agent if no program of the run listens there: then the resolver of the host is
    /// meant.
    fn push_own_first(&mut self) {
        for protocol in TRANSPORTS {
            self.push_in(
                OWN_FIRST,
                "adding the nft rule that accepts traffic to the program's own servers",
                &[Transport(protocol), OwnSocket, Accept],
            );
        }
        let step = "adding the nft rule that captures queries to local DNS servers";
        self.push_in(OWN_FIRST, step, &[Transport(UDP), ToPort(DNS), Goto(SEND)]);
        self.push_in(OWN_FIRST, step, &[Transport(TCP), ToPort(DNS), Goto(HOLD)]);
    }

    /// The kernel answers what nothing captures and no program serves, but for the agent's ports.
    fn push_own_rest(&mut self) {
        for (protocol, port) in AGENT_PORTS {
            let refusal = if protocol == TCP { Reset } else { PortUnreachable };
            let step = "adding the nft rule that rejects packets sent to the agent's own ports";
            self.push_in(OWN_REST, step, &[Transport(protocol), ToPort(port), refusal]);
        }
        for protocol in TRANSPORTS {
            self.push_report(OWN_REST, protocol);
        }
        let step = "adding the nft rule that accepts traffic to the run's own addresses";
        self.push_in(OWN_REST, step, &[Accept]);
    }

    /// Reports packets that the kernel refuses to the agent.
    fn push_report(&mut self, chain: &str, protocol: u8) {
        if self.copies == Copies::OfRule {
            let packets = REPORTED_PER_SECOND_MAX;
            let limit = AtMostPerSecond { packets, burst: REPORTED_BURST_MAX };
            self.push_in(
                chain,
                "adding the nft rule that reports rejected traffic",
                &[Transport(protocol), limit, ReportToAgent],
            );
        }
    }
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
        let whole = sealed(&rule_in(CHAIN, "", expressions));
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

    /// The place of a rule among all rules.
    fn place(chain: &str, expressions: &[Expression]) -> usize {
        let wanted = sealed(&rule_in(chain, "", expressions));
        let rules = all(IpSupport::V4AndV6, Copies::OfRule);
        rules.iter().position(|rule| sealed(rule) == wanted).unwrap()
    }

    #[test]
    fn packets_of_tunnels_are_decided_about_before_any_rule_for_tcp() {
        let from_tunnels = place(CHAIN, &[FromTun, Goto(TUNNELS)]);
        assert!(from_tunnels < place(CHAIN, &[Transport(TCP), PastSyn, Accept]));
        let accepted = place(TUNNELS, &[Accept]);
        for (protocol, port) in AGENT_PORTS {
            assert!(place(TUNNELS, &[Transport(protocol), ToPort(port), Drop]) < accepted);
        }
    }

    #[test]
    fn what_is_sent_to_the_agent_is_refused_without_an_agent() {
        assert_eq!(place(HOLD, &[CopyToAgent, ToHold(Redirect::Any)]) + 1, place(HOLD, &[Reset]));
        assert_eq!(place(SEND, &[ToAgent(Redirect::Any)]) + 1, place(SEND, &[PortUnreachable]));
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
             2400 0180 0b00 0100 7470726f787900 00 1400 0280 0800 0100 00000002 0800 0300 00000001 \
             {ACCEPT}",
            compare_byte("0a"),
            compare_byte("00"),
        );
        assert_eq!(expressions(&[V6, OwnSocket, ToAgent(Redirect::V4)]), bytes(&wanted));
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

    #[test]
    #[cfg(target_endian = "little")]
    fn what_the_program_serves_on_loopback_stays_with_it_byte_by_byte() {
        let wanted = format!(
            "{LOAD_FAMILY} {} \
             3400 0180 0c00 0100 7061796c6f616400 2400 0280 0800 0100 00000001 \
             0800 0200 00000001 0800 0300 00000010 0800 0400 00000001 {} \
             3800 0180 0e00 0100 696d6d65646961746500 0000 2400 0280 0800 0100 00000000 \
             1800 0280 1400 0280 0800 0100 fffffffd 0800 0200 6f776e00",
            compare_byte("02"),
            compare_byte("7f"),
        );
        let called = [V4, ToLoopbackV4, Jump(OWN_FIRST)];
        assert_eq!(expressions(&called), bytes(&wanted));
        place(CHAIN, &called);
        let wanted = format!(
            "2400 0180 0900 0100 6d65746100 000000 1400 0280 0800 0200 00000010 0800 0100 00000001 \
             {} \
             2400 0180 0b00 0100 736f636b657400 00 1400 0280 0800 0100 00000000 0800 0200 00000001 \
             {} {ACCEPT}",
            compare_byte("06"),
            compare_byte("00"),
        );
        let served = [Transport(TCP), OwnSocket, Accept];
        assert_eq!(expressions(&served), bytes(&wanted));
        place(OWN_FIRST, &served);
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
        let steps: Vec<_> = all(IpSupport::V4AndV6, Copies::OfRule)
            .iter()
            .filter(|rule| rule_has(rule, CHAIN))
            .map(|rule| rule.step)
            .collect();
        let first = |step: &str| steps.iter().position(|one| one.contains(step)).unwrap();
        let last = |step: &str| steps.iter().rposition(|one| one.contains(step)).unwrap();
        assert!(last("for the run's own addresses") < first("captured traffic"));
        assert!(last("captured traffic") < first("other traffic to the run's own addresses"));
        assert!(
            last("other traffic to the run's own addresses") < first("rejects all other traffic")
        );
        for set in ["tcp4", "tcp6", "udp4", "udp6"] {
            let rules = all(IpSupport::V4AndV6, Copies::OfRule);
            assert_eq!(rules.iter().filter(|rule| rule_has(rule, set)).count(), 1, "{set}");
        }
    }

    #[test]
    fn all_called_chains_are_created() {
        let rules = all(IpSupport::V4AndV6, Copies::OfRule);
        for chain in CHAINS {
            // Its rules, and those that call it.
            assert!(rules.iter().filter(|rule| rule_has(rule, chain)).count() > 1, "{chain}");
        }
    }

    /// Whether a rule has this name: of its chain, or of a set or chain that it refers to.
    fn rule_has(rule: &NetlinkRequest, name: &str) -> bool {
        let name = [name.as_bytes(), b"\0"].concat();
        sealed(rule).windows(name.len()).any(|part| part == name)
    }

    #[test]
    fn without_ipv6_nothing_is_led_to_an_ipv6_socket() {
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
