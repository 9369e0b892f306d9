//! Creates a packet worker, its TUN device and a peer, for the tests. The peer runs inside the test
//! process, and encrypts and decrypts packets itself.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use tacit::packet::{
    FlowOpener, PacketEvent, PacketStatistics, PacketThreads, PacketWorker, PeerAddress, TunId,
    Tunnel, TunnelAccounts, TunnelFlow, Underlay,
};
use tacit_core::packet::datagram;
use tacit_ipsec::esp::{DataLifetime, DropReason, InboundSa, Opened, OutboundSa};
use tacit_ipsec::{ChildSa, Cipher, EspSpi, TrafficSelector};
use tacit_sys::tun::Tun;

use super::{driver, ip, keys};

pub(crate) const WORKER: &str = "127.0.0.1:4500";
/// More than the tests cause, except the one that fills the queue.
pub(crate) const EVENTS_MAX: usize = 16;

pub(crate) struct Lab {
    pub(crate) worker: PacketWorker,
    pub(crate) events: Receiver<PacketEvent>,
    pub(crate) tun: TunId,
    pub(crate) socket: UdpSocket,
}

/// The SAs of the peer for one tunnel.
pub(crate) struct PeerSas {
    pub(crate) inbound: InboundSa,
    pub(crate) outbound: OutboundSa,
    pub(crate) near_spi: EspSpi,
}

impl Lab {
    /// Opens the device, and a worker at a loopback address.
    pub(crate) fn open() -> Self {
        Self::open_with(PacketThreads::default())
    }

    /// The same, with these threads.
    pub(crate) fn open_with(threads: PacketThreads) -> Self {
        ip("link set lo up");
        // Otherwise the interface would send packets of its own.
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let tun = Tun::open("tacit0").unwrap();
        ip("link set tacit0 up mtu 1400");
        ip("address add 10.1.0.1/24 dev tacit0");
        ip("route add 10.2.0.0/24 dev tacit0");
        Self::with(tun, WORKER, threads)
    }

    /// A worker at this address.
    pub(crate) fn with(tun: Tun, address: &str, threads: PacketThreads) -> Self {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let underlay = Underlay::bind(&[address.parse().unwrap()]).unwrap();
        let worker = PacketWorker::start(underlay, sender, threads).unwrap();
        driver::confine(&worker);
        let tun = worker.add_tun(tun).unwrap();
        Self { worker, events, tun, socket: socket() }
    }

    pub(crate) fn tunnel(&self, number: u8) -> Tunnel {
        Tunnel {
            tun: self.tun,
            child: keys::near(Cipher::Aes256Gcm, number),
            peer: self.socket.local_addr().unwrap(),
            peer_address: PeerAddress::Fixed,
            lifetime: DataLifetime::UNLIMITED,
            flows: flows(),
            accounts: TunnelAccounts::default(),
            filter: Arc::default(),
        }
    }

    /// Installs and activates a tunnel. Returns the SAs of the peer.
    pub(crate) fn establish(&self, tunnel: Tunnel, number: u8) -> PeerSas {
        let near_spi = tunnel.child.inbound.spi;
        self.worker.install(tunnel).unwrap();
        self.worker.activate(near_spi).unwrap();
        PeerSas::new(number)
    }

    /// Waits until a condition is true.
    pub(crate) fn wait(&self, what: &str, is_true: impl Fn(&PacketStatistics) -> bool) {
        for _ in 0..1_000 {
            if is_true(&self.worker.statistics()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("{what}: {:?}", self.worker.statistics());
    }

    /// Waits until a reason has dropped this many packets.
    pub(crate) fn wait_for_drops(&self, reason: DropReason, wanted: u64) {
        self.wait(reason.name(), |statistics| drops(statistics, reason) == wanted);
    }

    /// Receives the next ESP packet of the worker, and its inner packet.
    pub(crate) fn receive(&self, sas: &mut PeerSas) -> Vec<u8> {
        let mut buffer = vec![0; 65_535];
        let bytes = self.socket.recv(&mut buffer).unwrap();
        let opened = sas.inbound.open(&mut buffer[..bytes], 0).unwrap();
        let Opened::Packet(_, place) = opened else { panic!("a dummy") };
        buffer[place].to_vec()
    }

    /// Sends a question of a program, which the peer may answer then.
    pub(crate) fn ask(&self, program: &UdpSocket, sas: &mut PeerSas) {
        program.send_to(b"question", "10.2.0.1:53").unwrap();
        assert_eq!(&self.receive(sas)[28..], b"question");
    }

    pub(crate) fn send(&self, frame: &[u8]) {
        self.socket.send_to(frame, WORKER).unwrap();
    }

    /// Waits for an event other than that a path was learnt.
    pub(crate) fn next_event(&self) -> PacketEvent {
        loop {
            let event = self.events.recv_timeout(Duration::from_secs(10)).unwrap();
            if !matches!(event, PacketEvent::PathLearnt { .. }) {
                return event;
            }
        }
    }

    /// Waits for the report of a learnt path, and returns the longest packet.
    pub(crate) fn next_path(&self) -> usize {
        loop {
            let event = self.events.recv_timeout(Duration::from_secs(10)).unwrap();
            if let PacketEvent::PathLearnt { inner_bytes_max, .. } = event {
                return inner_bytes_max;
            }
        }
    }
}

impl PeerSas {
    pub(crate) fn new(number: u8) -> Self {
        Self::of(&keys::far(Cipher::Aes256Gcm, number))
    }

    /// The SAs of a tunnel as the peer sees it.
    pub(crate) fn of(child: &ChildSa) -> Self {
        Self {
            inbound: InboundSa::new(child, DataLifetime::UNLIMITED).unwrap(),
            outbound: OutboundSa::new(child, DataLifetime::UNLIMITED).unwrap(),
            near_spi: child.outbound.spi,
        }
    }

    pub(crate) fn seal(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; self.outbound.frame_bytes(packet.len())];
        let at = self.outbound.header_bytes();
        frame[at..at + packet.len()].copy_from_slice(packet);
        self.outbound.seal(&mut frame, packet.len()).unwrap();
        frame
    }

    pub(crate) fn seal_dummy(&mut self, bytes: usize) -> Vec<u8> {
        let mut frame = vec![0; self.outbound.frame_bytes(bytes)];
        self.outbound.seal_dummy(&mut frame, bytes).unwrap();
        frame
    }
}

/// A socket of the peer.
pub(crate) fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// A program's socket inside.
pub(crate) fn program() -> UdpSocket {
    let socket = UdpSocket::bind("10.1.0.1:4000").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Requests to DNS and HTTP outside, and HTTP inside.
fn flows() -> Vec<TunnelFlow> {
    let ports = |protocol, ports, network: (&str, &str)| {
        let [first, last] = [network.0, network.1].map(|text| text.parse::<IpAddr>().unwrap());
        TrafficSelector::new(protocol, ports, (first, last)).unwrap()
    };
    let [near, far] = [keys::NEAR[0], keys::FAR[0]];
    let opened_by = FlowOpener::Local;
    vec![
        TunnelFlow { local: keys::selector(near), remote: ports(17, (53, 53), far), opened_by },
        TunnelFlow { local: keys::selector(near), remote: ports(6, (80, 80), far), opened_by },
        TunnelFlow {
            local: ports(6, (8080, 8080), near),
            remote: keys::selector(far),
            opened_by: FlowOpener::Remote,
        },
    ]
}

pub(crate) fn udp(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    datagram(address(from), address(to), payload).unwrap()
}

/// A SYN without options.
pub(crate) fn syn(from: [u8; 4], ports: (u16, u16), to: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 1, 0, 0, 64, 6, 0, 0];
    packet.extend([from, to].concat());
    let header = checksum(&packet);
    packet[10..12].copy_from_slice(&header);
    packet.extend(ports.0.to_be_bytes());
    packet.extend(ports.1.to_be_bytes());
    packet.extend([0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]);
    let sum = checksum(&[&from[..], &to, &[0, 6, 0, 20], &packet[20..]].concat());
    packet[36..38].copy_from_slice(&sum);
    packet
}

/// Divides an IPv4 packet without options into two fragments. The first has this many bytes after
/// the header, a multiple of eight.
pub(crate) fn fragments(packet: &[u8], first_bytes: usize) -> [Vec<u8>; 2] {
    let (header, payload) = packet.split_at(20);
    let (first, second) = payload.split_at(first_bytes);
    let offset = u16::try_from(first_bytes / 8).unwrap();
    [(first, 0x2000), (second, offset)].map(|(part, flags_and_offset)| {
        let mut fragment = [header, part].concat();
        let length = u16::try_from(fragment.len()).unwrap();
        fragment[2..4].copy_from_slice(&length.to_be_bytes());
        fragment[6..8].copy_from_slice(&flags_and_offset.to_be_bytes());
        fragment[10..12].fill(0);
        let sum = checksum(&fragment[..20]);
        fragment[10..12].copy_from_slice(&sum);
        fragment
    })
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from(0xffff ^ folded).unwrap().to_be_bytes()
}

pub(crate) fn drops(statistics: &PacketStatistics, reason: DropReason) -> u64 {
    statistics.drops.iter().find(|(found, _)| *found == reason).map_or(0, |(_, count)| *count)
}
