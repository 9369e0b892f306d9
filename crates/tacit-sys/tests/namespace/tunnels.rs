//! Tests which packets of a program leave through a TUN device. The test itself reads and answers
//! these packets.

use std::io::{ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use tacit_sys::netlink::IpProtocol;
use tacit_sys::netlink::tunnel::{self, FlowGroup, FlowRoute, TunnelDevice};
use tacit_sys::spawn::LauncherState;
use tacit_sys::tun::Tun;
use tacit_sys::{IpVersion, transparent};

use super::launcher::{BOTH, Run, accept, element, wait};

const TCP: u8 = 6;
const UDP: u8 = 17;
const UNREACHABLE_HOST: &str = "errno 113";
const REFUSED: &str = "errno 111";

/// The networks behind the tunnel, with the run's address inside: IPv4 and IPv6.
const NETWORKS: [(IpVersion, &str, u8, &str); 2] =
    [(IpVersion::V4, "10.2.0.0", 16, "10.1.0.1"), (IpVersion::V6, "fd00:2::", 64, "fd01::1")];

fn device(tun: &Tun) -> TunnelDevice {
    let addresses = NETWORKS.iter().map(|(_, _, _, own)| own.parse().unwrap()).collect();
    TunnelDevice { name: tun.name().unwrap(), addresses, mtu_bytes: 1400 }
}

/// The groups of one IP version: outbound TCP and UDP by ports; inbound TCP and UDP at a
/// port; echo requests.
fn groups() -> Vec<FlowGroup> {
    let mut all = Vec::new();
    for (version, network, prefix_bits, own) in NETWORKS {
        let source = Some(own.parse().unwrap());
        let route =
            FlowRoute { address: network.parse().unwrap(), prefix_bits, source, mtu_bytes: None };
        let icmp = if version == IpVersion::V4 { 1 } else { 58 };
        let mut group = |protocol, local_ports, remote_ports, routes| {
            all.push(FlowGroup { version, protocol, local_ports, remote_ports, routes });
        };
        group(TCP, None, Some(9050..=9059), vec![route]);
        group(UDP, None, Some(5000..=5009), vec![route]);
        group(TCP, Some(9070..=9070), None, vec![route]);
        group(UDP, Some(9070..=9070), None, vec![route]);
        group(icmp, None, None, vec![route]);
    }
    all
}

/// A server behind the tunnel.
fn server(version: IpVersion) -> IpAddr {
    let text = if version == IpVersion::V4 { "10.2.0.1" } else { "fd00:2::1" };
    text.parse().unwrap()
}

/// A server outside of the network.
fn other(version: IpVersion) -> IpAddr {
    let text = if version == IpVersion::V4 { "10.3.0.1" } else { "fd00:3::1" };
    text.parse().unwrap()
}

pub(crate) fn flows_of_a_group_leave_by_the_tun_device_and_all_others_as_before(
    original: &LauncherState,
) {
    let mut run = Run::new(BOTH, original);
    let tun = run.tun();
    // A second change replaces the first.
    for _ in 0..3 {
        tunnel::replace(&mut run.route, Some(&device(&tun)), &groups()).unwrap();
    }
    for (version, _, _, own) in NETWORKS {
        let own: IpAddr = own.parse().unwrap();
        let server = server(version);
        let other = other(version);
        let at = |ip: IpAddr, port: u16| SocketAddr::new(ip, port).to_string();
        outbound(&mut run, &tun, server, own);
        inbound(&mut run, &tun, server, own);
        // Neither another port of the same address nor another network is protected.
        for captured in [SocketAddr::new(server, 9007), SocketAddr::new(other, 9055)] {
            let ip = captured.ip().to_string();
            let ports = [captured.port(); 2];
            run.change(&[], &[element(IpProtocol::Tcp, &ip, &ip, ports)]).unwrap();
            let mut program = run.start(&[&format!("tcp {captured}")]);
            assert_eq!(accept(run.listener(version)).1, captured);
            let answer = program.answer();
            assert!(answer.starts_with("from ") && !answer.contains(&own.to_string()), "{answer}");
        }
        let unnamed = [at(server, 9300), at(server, 9060)].map(|to| format!("tcp {to}"));
        let orders: Vec<_> = unnamed.iter().map(String::as_str).collect();
        assert_eq!(run.answers(&orders), [REFUSED, REFUSED]);
        assert_eq!(run.answers(&[&format!("udp {}", at(server, 9300))]), [REFUSED]);
    }
    assert!(nothing(&tun), "a packet that no group names left by the device");
}

/// A program asks over UDP, TCP and ICMP.
fn outbound(run: &mut Run<'_>, tun: &Tun, server: IpAddr, own: IpAddr) {
    let mut program = run.start(&[
        &format!("udp {}", SocketAddr::new(server, 5000)),
        &format!("tcp {}", SocketAddr::new(server, 9055)),
        &format!("ping {server}"),
    ]);
    let asked = Packet::read(tun);
    assert_eq!(
        (asked.protocol(), asked.from().ip(), asked.to()),
        (UDP, own, SocketAddr::new(server, 5000))
    );
    asked.swapped().write(tun);
    assert_eq!(program.answer(), "question");
    let syn = Packet::read(tun);
    assert_eq!(
        (syn.protocol(), syn.from().ip(), syn.to()),
        (TCP, own, SocketAddr::new(server, 9055))
    );
    syn.reset().write(tun);
    assert_eq!(program.answer(), REFUSED);
    let echo = Packet::read(tun);
    assert_eq!((echo.from().ip(), echo.to().ip()), (own, server));
    echo.swapped().to_echo_reply().write(tun);
    let kind = if server.is_ipv4() { 0 } else { 129 };
    assert_eq!(program.answer(), format!("answer of type {kind}"));
}

/// A client behind the tunnel connects to the program; it cannot reach the agent's own ports.
fn inbound(run: &mut Run<'_>, tun: &Tun, client: IpAddr, own: IpAddr) {
    let any = if own.is_ipv4() { "0.0.0.0" } else { "[::]" };
    let mut program = run.start(&[&format!("listen {any}:9070"), &format!("echo {any}:9070")]);
    assert_eq!([program.answer(), program.answer()], ["listening", "waiting"]);
    let from = SocketAddr::new(client, 40_000);
    for port in [15_001, 15_002, 9070] {
        Packet::syn(from, SocketAddr::new(own, port)).write(tun);
    }
    let answer = Packet::read(tun);
    assert_eq!((answer.from(), answer.to()), (SocketAddr::new(own, 9070), from));
    assert_eq!(answer.flags(), SYN | ACK, "only the program's port answers");
    answer.reset().write(tun);
    for port in [15_001, 9070] {
        Packet::datagram(from, SocketAddr::new(own, port)).write(tun);
    }
    let echoed = Packet::read(tun);
    assert_eq!((echoed.from(), echoed.to()), (SocketAddr::new(own, 9070), from));
    assert_eq!(program.answer(), format!("peer {from}"));
    assert!(nothing_captured(run, IpVersion::of(own)));
}

pub(crate) fn flows_of_a_group_reach_no_host_without_a_tun_device(original: &LauncherState) {
    let mut run = Run::new(BOTH, original);
    tunnel::replace(&mut run.route, None, &groups()).unwrap();
    let captured: Vec<_> = NETWORKS
        .into_iter()
        .flat_map(|(version, ..)| {
            let ip = server(version).to_string();
            [(IpProtocol::Tcp, 9055), (IpProtocol::Udp, 5000)]
                .map(|(protocol, port)| element(protocol, &ip, &ip, [port; 2]))
        })
        .collect();
    // A later rule would permit them in clear.
    run.change(&[], &captured).unwrap();
    unreachable(&mut run);
    let tun = run.tun();
    tunnel::replace(&mut run.route, Some(&device(&tun)), &groups()).unwrap();
    let mut program = run.start(&["send 10.2.0.1:5000", "send [fd00:2::1]:5000"]);
    assert_eq!([program.answer(), program.answer()], ["sent", "sent"]);
    drop((Packet::read(&tun), Packet::read(&tun)));
    // A second device takes over from the first, as at a restart.
    let next = run.tun();
    tunnel::replace(&mut run.route, Some(&device(&next)), &groups()).unwrap();
    drop(tun);
    let mut program = run.start(&["send 10.2.0.1:5000", "send [fd00:2::1]:5000"]);
    assert_eq!([program.answer(), program.answer()], ["sent", "sent"]);
    assert_eq!(Packet::read(&next).from().ip().to_string(), "10.1.0.1");
    assert_eq!(Packet::read(&next).from().ip().to_string(), "fd01::1");
    // The owner of the device ends.
    drop(next);
    unreachable(&mut run);
    // No rule protects them any more.
    tunnel::replace(&mut run.route, None, &[]).unwrap();
    for (version, ..) in NETWORKS {
        let to = SocketAddr::new(server(version), 9055);
        let mut program = run.start(&[&format!("tcp {to}")]);
        assert_eq!(accept(run.listener(version)).1, to);
        assert!(program.answer().starts_with("from "));
    }
}

/// No flow of a group reaches a host or the agent.
fn unreachable(run: &mut Run<'_>) {
    for (version, ..) in NETWORKS {
        let server = server(version);
        let orders = [
            format!("tcp {}", SocketAddr::new(server, 9055)),
            format!("udp {}", SocketAddr::new(server, 5000)),
            format!("ping {server}"),
        ];
        let orders: Vec<_> = orders.iter().map(String::as_str).collect();
        assert_eq!(run.answers(&orders), [UNREACHABLE_HOST; 3]);
        assert!(nothing_captured(run, version));
    }
}

/// Whether no connection and no datagram waits for the agent.
fn nothing_captured(run: &Run<'_>, version: IpVersion) -> bool {
    let datagram = transparent::receive(run.receiver(version).as_fd(), &mut [0; 64]);
    let connection = tacit_sys::socket::accept(run.listener(version).as_fd());
    let waits = |error: Option<std::io::Error>| error.map(|error| error.kind());
    waits(datagram.err()) == Some(ErrorKind::WouldBlock)
        && waits(connection.err()) == Some(ErrorKind::WouldBlock)
}

/// Whether no packet waits in the device, other than those of IPv6 about itself.
fn nothing(tun: &Tun) -> bool {
    let mut packet = [0; 2048];
    loop {
        match tun.read(&mut [0; HEADER_BYTES], &mut packet) {
            Ok(_) if is_of_multicast(&packet) => {}
            other => return other.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
        }
    }
}

fn is_of_multicast(packet: &[u8]) -> bool {
    packet[0] >> 4 == 6 && packet[24] == 0xff
}

/// An IP packet.
struct Packet(Vec<u8>);

impl Packet {
    fn read(tun: &Tun) -> Self {
        let mut packet = vec![0; 2048];
        loop {
            wait(tun.as_fd());
            let length = tun.read(&mut [0; HEADER_BYTES], &mut packet).unwrap();
            if !is_of_multicast(&packet) {
                packet.truncate(length);
                return Self(packet);
            }
        }
    }

    fn write(&self, tun: &Tun) {
        let mut header = [0; HEADER_BYTES];
        // The kernel does not verify a checksum that is still to be computed.
        header[0] = NEEDS_CHECKSUM;
        let start = u16::try_from(self.start()).unwrap();
        let offset = match self.protocol() {
            TCP => 16_u16,
            UDP => 6,
            _ => 2,
        };
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
        tun.write(&[IoSlice::new(&header), IoSlice::new(&self.0)]).unwrap();
    }

    /// A packet without payload: the transport header is zero, except for the ports.
    fn new(protocol: u8, from: SocketAddr, to: SocketAddr, transport: usize) -> Self {
        let transport_bytes = u16::try_from(transport).unwrap();
        let mut bytes = match (from.ip(), to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0];
                ip[2..4].copy_from_slice(&(20 + transport_bytes).to_be_bytes());
                ip.extend(from.octets());
                ip.extend(to.octets());
                let pairs = ip.as_chunks::<2>().0;
                let sum: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
                let folded = (sum & 0xffff) + (sum >> 16);
                let checksum = !u16::try_from(folded).unwrap();
                ip[10..12].copy_from_slice(&checksum.to_be_bytes());
                ip
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut ip = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
                ip[4..6].copy_from_slice(&transport_bytes.to_be_bytes());
                ip.extend(from.octets());
                ip.extend(to.octets());
                ip
            }
            _ => panic!("two IP versions"),
        };
        let start = bytes.len();
        bytes.resize(start + transport, 0);
        bytes[start..start + 2].copy_from_slice(&from.port().to_be_bytes());
        bytes[start + 2..start + 4].copy_from_slice(&to.port().to_be_bytes());
        Self(bytes)
    }

    fn syn(from: SocketAddr, to: SocketAddr) -> Self {
        let mut packet = Self::new(TCP, from, to, 20);
        let start = packet.start();
        packet.0[start + 12] = 5 << 4;
        packet.0[start + 13] = SYN;
        packet.0[start + 14] = 0xff;
        packet
    }

    fn datagram(from: SocketAddr, to: SocketAddr) -> Self {
        let mut packet = Self::new(UDP, from, to, 12);
        let start = packet.start();
        packet.0[start + 5] = 12;
        // IPv6 has no datagrams without a checksum. The kernel does not compare this one.
        packet.0[start + 7] = 1;
        packet
    }

    fn is_v4(&self) -> bool {
        self.0[0] >> 4 == 4
    }

    fn start(&self) -> usize {
        if self.is_v4() { 20 } else { 40 }
    }

    fn protocol(&self) -> u8 {
        if self.is_v4() { self.0[9] } else { self.0[6] }
    }

    fn end(&self, number: usize) -> SocketAddr {
        let port = self.start() + 2 * number;
        let port = u16::from_be_bytes([self.0[port], self.0[port + 1]]);
        let ip: IpAddr = if self.is_v4() {
            <[u8; 4]>::try_from(&self.0[12 + 4 * number..][..4]).unwrap().into()
        } else {
            <[u8; 16]>::try_from(&self.0[8 + 16 * number..][..16]).unwrap().into()
        };
        SocketAddr::new(ip, port)
    }

    fn from(&self) -> SocketAddr {
        self.end(0)
    }

    fn to(&self) -> SocketAddr {
        self.end(1)
    }

    fn flags(&self) -> u8 {
        self.0[self.start() + 13]
    }

    /// The same payload in the other direction.
    fn swapped(&self) -> Self {
        let mut bytes = self.0.clone();
        let (first, length) = if self.is_v4() { (12, 4) } else { (8, 16) };
        bytes[first..first + 2 * length].rotate_left(length);
        if [TCP, UDP].contains(&self.protocol()) {
            bytes[self.start()..][..4].rotate_left(2);
        }
        Self(bytes)
    }

    fn to_echo_reply(&self) -> Self {
        let mut bytes = self.0.clone();
        bytes[self.start()] = if self.is_v4() { 0 } else { 129 };
        Self(bytes)
    }

    /// The answer to a SYN that refuses the connection.
    fn reset(&self) -> Self {
        let mut reset = self.swapped();
        let start = self.start();
        let number = u32::from_be_bytes(self.0[start + 4..start + 8].try_into().unwrap());
        reset.0[start + 4..start + 8].copy_from_slice(&self.0[start + 8..start + 12]);
        reset.0[start + 8..start + 12].copy_from_slice(&(number + 1).to_be_bytes());
        reset.0[start + 13] = RST | ACK;
        reset
    }
}

/// The length of `virtio_net_hdr`.
const HEADER_BYTES: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
