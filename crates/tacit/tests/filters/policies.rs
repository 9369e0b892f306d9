//! Makes random policies and packets for the tests of packet filters. The policies and packets
//! contain these addresses and interfaces:
//!
//! ```text
//! 10.0.1.0-7 fd00::1:0-7    addresses of the host      interfaces a0 b0 c0
//! 10.0.0.0-7 fd00::0:0-7    addresses of other hosts
//! 10.0.2.0-7 fd00::2:0-7    addresses of hosts behind b0
//! 10.0.3.0-7 fd00::3:0-7    addresses of hosts behind c0
//! ```

use std::net::IpAddr;

use tacit_core::policy::filter::{FilterPacket, PacketPath, TransportHeader};

use crate::random::Random;

pub const INTERFACES: [&str; 3] = ["a0", "b0", "c0"];
const HOST: u16 = 1;
const OTHERS: u16 = 0;

/// A policy with up to 20 rules.
pub fn policy(random: &mut Random) -> String {
    let count = 1 + random.below(20);
    let mut text =
        "version = 1\n[host]\nunmatched = \"permit\"\nclasses = { a0 = 1, b0 = 1, c0 = 2 }\n"
            .to_owned();
    let has_flows = random.once_in(2);
    for number in 0..count {
        text.push_str(&format!("[[rule]]\nname = \"r{number}\"\n"));
        if has_flows && random.once_in(4) {
            flow(random, &mut text);
        } else {
            filter(random, &mut text);
        }
    }
    if random.once_in(2) {
        let verdict = random.of(&["permit", "deny"]);
        text.push_str(&format!("[[rule]]\nname = \"rest\"\nfilter = \"{verdict}\"\n"));
    }
    text
}

fn flow(random: &mut Random, text: &mut String) {
    let action = random.of(&["permit = true", "deny = true"]);
    if random.once_in(3) {
        let port = 1 + random.below(6);
        text.push_str(&format!("direction = \"inbound\"\nlocal-ports = {port}\n{action}\n"));
        return;
    }
    let protocol = random.of(&["tcp", "udp"]);
    let remote = addresses(random, OTHERS);
    let ports = ports(random);
    text.push_str(&format!(
        "direction = \"outbound\"\nprotocol = \"{protocol}\"\nremote = \"{remote}\"\n\
         remote-ports = \"{ports}\"\n{action}\n"
    ));
}

fn filter(random: &mut Random, text: &mut String) {
    let verdict = random.of(&["permit", "deny"]);
    text.push_str(&format!("filter = \"{verdict}\"\n"));
    if random.once_in(12) {
        text.push_str("fragments = true\n");
        if random.once_in(2) {
            text.push_str("protocol = \"udp\"\n");
        }
        return selected(random, text, "remote", OTHERS);
    }
    if *verdict == "deny" && random.once_in(3) {
        let discard = random.of(&["icmp", "reset"]);
        text.push_str(&format!("discard = \"{discard}\"\n"));
    }
    selected(random, text, "local", HOST);
    selected(random, text, "remote", OTHERS);
    protocol(random, text);
    if random.once_in(3) {
        let direction = random.of(&["inbound", "outbound"]);
        text.push_str(&format!("direction = \"{direction}\"\n"));
    }
    match random.below(8) {
        0 => text.push_str(&format!("interface = \"{}\"\n", random.of(&INTERFACES))),
        1 => text.push_str("class = [1, 2]\n"),
        2 => text.push_str("class = 1\n"),
        _ => {}
    }
    match random.below(5) {
        0 => text.push_str("routing = \"routed\"\n"),
        1 => text.push_str("routing = \"either\"\n"),
        _ => {}
    }
    if random.once_in(6) {
        // One of the windows is open, and the other is closed, for some hours or days.
        let months = random.of(&["jan-jun", "jul-dec"]);
        text.push_str(&format!("when = {{ months = \"{months}\", zone = \"UTC\" }}\n"));
    }
}

fn protocol(random: &mut Random, text: &mut String) {
    match random.below(8) {
        0..4 => {
            let name = random.of(&["tcp", "udp", "sctp"]);
            text.push_str(&format!("protocol = \"{name}\"\n"));
            for key in ["local-ports", "remote-ports"] {
                if random.once_in(2) {
                    text.push_str(&format!("{key} = \"{}\"\n", ports(random)));
                }
            }
            if *name == "tcp" && random.once_in(2) {
                let end = random.of(&["local", "remote"]);
                text.push_str(&format!("opened-by = \"{end}\"\n"));
            }
        }
        4 => {
            let kind = random.below(3);
            let protocol = random.of(&["\"icmp\"", "\"icmpv6\"", "[\"icmp\", \"icmpv6\"]"]);
            text.push_str(&format!("protocol = {protocol}\nicmp-type = [8, {kind}]\n"));
            if random.once_in(2) {
                text.push_str(&format!("icmp-code = {}\n", random.below(3)));
            }
        }
        5 => text.push_str("protocol = [\"tcp\", 47, \"icmp\"]\n"),
        _ => {}
    }
}

fn selected(random: &mut Random, text: &mut String, key: &str, net: u16) {
    match random.below(5) {
        0 | 1 => text.push_str(&format!("{key} = \"{}\"\n", addresses(random, net))),
        2 => {
            let [one, other] = [(); 2].map(|()| addresses(random, net));
            if one != other {
                text.push_str(&format!("{key} = [\"{one}\", \"{other}\"]\n"));
            }
        }
        _ => {}
    }
}

fn addresses(random: &mut Random, net: u16) -> String {
    // A forwarded packet has other addresses.
    let net = if random.once_in(4) { random.below(4) } else { net.into() };
    let last = random.below(8);
    match random.below(5) {
        0 => format!("fd00::{net}:{last}"),
        1 => format!("10.0.{net}.{}-10.0.{net}.{}", last, last + random.below(4)),
        2 => format!("10.0.{net}.{}/30", last & 4),
        3 => "10.0.0.0/22".to_owned(),
        _ => format!("10.0.{net}.{last}"),
    }
}

fn ports(random: &mut Random) -> String {
    let first = 1 + random.below(6);
    let last = first + random.below(3);
    format!("{first}-{last}")
}

/// A packet that the kernel can be given.
pub fn packet(random: &mut Random) -> FilterPacket {
    let interface = |random: &mut Random| (*random.of(&INTERFACES)).to_owned();
    let is_v4 = !random.once_in(4);
    let address = |random: &mut Random, net: u16| {
        let last = u16::try_from(random.below(8)).unwrap();
        if is_v4 {
            IpAddr::from([10, 0, u8::try_from(net).unwrap(), u8::try_from(last).unwrap()])
        } else {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, net, last])
        }
    };
    let (path, source, destination) = match random.below(5) {
        0 | 1 => {
            (PacketPath::In(interface(random)), address(random, OTHERS), address(random, HOST))
        }
        2 | 3 => {
            (PacketPath::Out(interface(random)), address(random, HOST), address(random, OTHERS))
        }
        _ => {
            let (net, sent) = *random.of(&[(2, "b0"), (3, "c0")]);
            let received = interface(random);
            let path = PacketPath::Routed { received, sent: sent.to_owned() };
            (path, address(random, OTHERS), address(random, net))
        }
    };
    let (protocol, header) = transport(random, if is_v4 { 1 } else { 58 });
    let is_received = !matches!(path, PacketPath::Out(_));
    let is_fragment = is_received && random.once_in(10);
    let header = if is_fragment { TransportHeader::Other } else { header };
    FilterPacket { path, source, destination, protocol, header, is_fragment }
}

/// The protocol of ICMP is that of the IP version.
fn transport(random: &mut Random, icmp: u8) -> (u8, TransportHeader) {
    let port = |random: &mut Random| u16::try_from(1 + random.below(8)).unwrap();
    match random.below(8) {
        0..6 => {
            let protocol = *random.of(&[6, 6, 17, 17, 132]);
            let opens = protocol == 6 && random.once_in(2);
            let [source, destination] = [port(random), port(random)];
            (protocol, TransportHeader::Ports { source, destination, opens })
        }
        6 => {
            let [kind, code] = [random.below(4), random.below(3)].map(|n| u8::try_from(n).unwrap());
            let kind = if kind == 3 { 8 } else { kind };
            (icmp, TransportHeader::Icmp { kind, code })
        }
        _ => (47, TransportHeader::Other),
    }
}

/// The bytes of a packet with this number, which is not 0.
pub fn bytes(packet: &FilterPacket, number: u16) -> Vec<u8> {
    let payload = match packet.header {
        TransportHeader::Ports { source, destination, opens } => {
            let mut header = vec![0; 20];
            header[..2].copy_from_slice(&source.to_be_bytes());
            header[2..4].copy_from_slice(&destination.to_be_bytes());
            match packet.protocol {
                6 => {
                    header[12] = 0x50;
                    header[13] = if opens { 0x02 } else { 0x10 };
                }
                17 => header[5] = 20,
                _ => {}
            }
            header
        }
        TransportHeader::Icmp { kind, code } => [&[kind, code][..], &[0; 6]].concat(),
        TransportHeader::Other => vec![0; 16],
    };
    match (packet.source, packet.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = vec![0x45, 0];
            let len = u16::try_from(20 + payload.len()).unwrap();
            header.extend(len.to_be_bytes());
            header.extend(number.to_be_bytes());
            // The last fragment of a packet whose others never come.
            header.extend(if packet.is_fragment { [0, 9] } else { [0, 0] });
            header.extend([64, packet.protocol, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            [header, payload].concat()
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let fragment = [packet.protocol, 0, 0, 72, 0, 0, 0, 1];
            let extension = if packet.is_fragment { &fragment[..] } else { &[] };
            let next = if packet.is_fragment { 44 } else { packet.protocol };
            let [high, low] = number.to_be_bytes();
            let mut header = vec![0x60, 0, high, low];
            let len = u16::try_from(extension.len() + payload.len()).unwrap();
            header.extend(len.to_be_bytes());
            header.extend([next, 64]);
            header.extend(source.octets());
            header.extend(destination.octets());
            [&header, extension, &payload].concat()
        }
        ends => panic!("two IP versions: {ends:?}"),
    }
}

fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
