//! Defines [`SentDatagrams`], which records the UDP ports to which programs have sent datagrams
//! through a tunnel. The peer may answer these datagrams, but must not send other datagrams.
//!
//! The flags of a TCP packet show whether it opens a connection, but a UDP datagram has no flags.
//! So for outbound rules, the packet worker stores the two socket addresses (address and port) of
//! each flow. The worker keeps the addresses until [`ANSWER_SECONDS_MAX`] after the program's last
//! datagram.
//!
//! Limit: the worker stores at most [`PAIRS_MAX`] flows of a device, and drops answers to further
//! flows.

use std::collections::HashMap;
use std::net::IpAddr;

use tacit_ipsec::packet::IpPacket;

/// How long answers are accepted (RFC 4787 section 4.3 recommends five minutes for NATs).
const ANSWER_SECONDS_MAX: u32 = 300;
/// The largest number of pairs of a device.
const PAIRS_MAX: usize = 65_536;

/// The pairs of sockets of a device.
#[derive(Debug, Default)]
pub(super) struct SentDatagrams {
    /// With the second of the last datagram.
    pairs: HashMap<SocketPair, u32>,
    second: u32,
}

/// A program's socket, and the one to which it has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SocketPair {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
}

impl SentDatagrams {
    /// Reports whether a packet is a UDP datagram. No other packets are recorded.
    pub(super) fn are_concerned(packet: &IpPacket) -> bool {
        udp_ports(packet).is_some()
    }

    /// Records a packet that leaves, if it is a UDP datagram.
    pub(super) fn record(&mut self, packet: &IpPacket) {
        let Some((source, destination)) = udp_ports(packet) else { return };
        let local = (packet.source, source);
        let pair = SocketPair { local, remote: (packet.destination, destination) };
        if let Some(second) = self.pairs.get_mut(&pair) {
            *second = self.second;
        } else if self.pairs.len() < PAIRS_MAX {
            self.pairs.insert(pair, self.second);
        }
    }

    /// Reports whether a packet that arrives is not an unrequested UDP datagram.
    pub(super) fn permit(&self, packet: &IpPacket) -> bool {
        let Some((source, destination)) = udp_ports(packet) else { return true };
        let local = (packet.destination, destination);
        self.pairs.contains_key(&SocketPair { local, remote: (packet.source, source) })
    }

    /// Begins the next second.
    pub(super) fn turn(&mut self) {
        self.second = self.second.wrapping_add(1);
        let now = self.second;
        self.pairs.retain(|_, second| now.wrapping_sub(*second) <= ANSWER_SECONDS_MAX);
    }
}

fn udp_ports(packet: &IpPacket) -> Option<(u16, u16)> {
    packet.ports.filter(|_| packet.protocol == UDP)
}

const UDP: u8 = 17;

#[cfg(test)]
mod tests {
    use super::*;
    use tacit_core::packet::datagram;

    fn packet(from: &str, to: &str) -> IpPacket {
        let packet = datagram(from.parse().unwrap(), to.parse().unwrap(), b"x").unwrap();
        IpPacket::parse(&packet).unwrap()
    }

    #[test]
    fn only_the_socket_that_was_asked_may_answer_and_not_for_long() {
        let mut sent = SentDatagrams::default();
        sent.record(&packet("10.1.0.1:4000", "10.2.0.1:53"));
        let answer = packet("10.2.0.1:53", "10.1.0.1:4000");
        assert!(sent.permit(&answer));
        for (from, to) in [
            ("10.2.0.1:53", "10.1.0.1:4001"),
            ("10.2.0.1:54", "10.1.0.1:4000"),
            ("10.2.0.2:53", "10.1.0.1:4000"),
        ] {
            assert!(!sent.permit(&packet(from, to)), "{from} {to}");
        }
        let fragment = IpPacket { ports: None, is_fragment: true, ..answer };
        assert!(sent.permit(&fragment), "the first fragment decides");
        (0..ANSWER_SECONDS_MAX).for_each(|_| sent.turn());
        assert!(sent.permit(&answer));
        sent.record(&packet("10.1.0.1:4000", "10.2.0.1:53"));
        sent.turn();
        assert!(sent.permit(&answer), "another datagram renews the pair");
        (0..ANSWER_SECONDS_MAX).for_each(|_| sent.turn());
        assert!(!sent.permit(&answer));
    }

    #[test]
    fn the_number_of_pairs_is_limited() {
        let mut sent = SentDatagrams::default();
        let from = |port: usize| format!("10.1.{}.1:{}", port >> 16, port & 0xffff);
        for port in 0..PAIRS_MAX + 10 {
            sent.record(&packet(&from(port), "10.2.0.1:53"));
        }
        assert_eq!(sent.pairs.len(), PAIRS_MAX);
    }
}
