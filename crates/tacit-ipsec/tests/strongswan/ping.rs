//! Sends echo requests through a tunnel, to show that both sides of the tunnel have the same keys.
//! A test sends either one request or a stream of requests.
//!
//! At any time, [`OUTSTANDING_MAX`] requests of the stream wait for an answer. A request without an
//! answer is repeated after [`REPEAT_AFTER`], the shortest retransmission timeout of TCP in Linux.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tacit_ipsec::ChildSa;
use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{DataLifetime, DropReason, InboundSa, Opened, OutboundSa};

/// Both directions of all child SAs.
#[derive(Default)]
pub(crate) struct DataPath {
    installed: BTreeMap<EspSpi, (ChildSa, InboundSa)>,
    outbound: Option<OutboundSa>,
    stream: Option<Stream>,
}

#[derive(Default)]
struct Stream {
    sent: u32,
    answered: u32,
    repeated: u32,
    /// How often one request was repeated at most.
    worst: u32,
    is_stopping: bool,
    outstanding: BTreeMap<u32, (Instant, u32)>,
}

impl DataPath {
    pub(crate) fn install(&mut self, child: &ChildSa) {
        let inbound = InboundSa::new(child, DataLifetime::UNLIMITED).unwrap();
        self.installed.insert(child.inbound.spi, (child.clone(), inbound));
    }

    pub(crate) fn activate(&mut self, spi: EspSpi) {
        let (child, _) = &self.installed[&spi];
        self.outbound = Some(OutboundSa::new(child, DataLifetime::UNLIMITED).unwrap());
    }

    pub(crate) fn remove(&mut self, spi: EspSpi) {
        self.installed.remove(&spi);
    }

    /// Returns an ESP packet with a single echo request.
    pub(crate) fn ping(&mut self) -> Vec<u8> {
        self.seal(&echo_v4(SINGLE, 0))
    }

    /// The same for IPv6.
    pub(crate) fn ping6(&mut self) -> Vec<u8> {
        self.seal(&echo_v6())
    }

    pub(crate) fn start_stream(&mut self) {
        self.stream = Some(Stream::default());
    }

    pub(crate) fn stop_stream(&mut self) {
        self.stream.as_mut().unwrap().is_stopping = true;
    }

    /// Returns the requests of the stream that are to be sent now. Prints when it has ended.
    pub(crate) fn poll_stream(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let Some(stream) = &mut self.stream else { return Vec::new() };
        let mut numbers = Vec::new();
        for (number, (at, repeated)) in &mut stream.outstanding {
            if now - *at >= REPEAT_AFTER {
                (*at, *repeated) = (now, *repeated + 1);
                stream.repeated += 1;
                stream.worst = stream.worst.max(*repeated);
                numbers.push(*number);
            }
        }
        while !stream.is_stopping && stream.outstanding.len() < OUTSTANDING_MAX {
            stream.outstanding.insert(stream.sent, (now, 0));
            numbers.push(stream.sent);
            stream.sent += 1;
        }
        if stream.is_stopping && stream.outstanding.is_empty() {
            let Stream { sent, answered, repeated, worst, .. } = stream;
            let bytes = u64::from(*answered) * PAYLOAD_BYTES as u64;
            let is_exact = sent == answered && *sent > 0;
            println!("streamed exact={is_exact} worst={worst} {bytes} bytes, {repeated} repeated");
            self.stream = None;
        }
        numbers.into_iter().map(|number| self.seal(&echo_v4(STREAM, number))).collect()
    }

    fn seal(&mut self, inner: &[u8]) -> Vec<u8> {
        let outbound = self.outbound.as_mut().unwrap();
        let mut frame = vec![0; outbound.frame_bytes(inner.len())];
        let at = outbound.header_bytes();
        frame[at..at + inner.len()].copy_from_slice(inner);
        let length = outbound.seal(&mut frame, inner.len()).unwrap();
        frame.truncate(length);
        frame
    }

    /// Handles an ESP packet. A late one whose child SA is deleted is dropped.
    pub(crate) fn receive(&mut self, datagram: &mut [u8]) {
        let Some(spi) = datagram.first_chunk().map(|bytes| u32::from_be_bytes(*bytes)) else {
            return;
        };
        let Some((_, inbound)) = EspSpi::new(spi).and_then(|spi| self.installed.get_mut(&spi))
        else {
            return;
        };
        // The network repeats packets.
        let opened = match inbound.open(datagram, 0) {
            Err(DropReason::Replayed) => return,
            opened => opened.unwrap(),
        };
        let Opened::Packet(packet, place) = opened else { return };
        let message = &datagram[place][packet.transport_at..];
        match (message[0], message[5]) {
            (0, SINGLE) | (129, _) => println!("pong"),
            (0, STREAM) => {
                let number = u32::from_be_bytes(message[8..12].try_into().unwrap());
                assert_eq!(message[8..], payload(number), "the content has changed");
                if let Some(stream) = &mut self.stream
                    && stream.outstanding.remove(&number).is_some()
                {
                    stream.answered += 1;
                }
            }
            _ => {}
        }
    }
}

/// The content of a request of the stream.
fn payload(number: u32) -> Vec<u8> {
    let filler = number.to_le_bytes().into_iter().cycle().take(PAYLOAD_BYTES - 4);
    number.to_be_bytes().into_iter().chain(filler).collect()
}

/// An echo request from 10.1.0.1 to 10.2.0.1.
fn echo_v4(identifier: u8, number: u32) -> Vec<u8> {
    let mut message = vec![8, 0, 0, 0, 0, identifier, 0, 1];
    message.extend(payload(number));
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum);
    let length = u16::try_from(20 + message.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0, length[0], length[1], 0, 1, 0, 0, 64, 1, 0, 0];
    packet.extend([10, 1, 0, 1, 10, 2, 0, 1]);
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet.extend(message);
    packet
}

/// An echo request from fd01::1 to fd02::1.
fn echo_v6() -> Vec<u8> {
    let address = |network| [0xfd, network, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    let addresses = [address(1), address(2)].concat();
    let mut message = vec![128, 0, 0, 0, 0, SINGLE, 0, 1];
    let length = u8::try_from(message.len()).unwrap();
    let pseudo_header = [&addresses[..], &[0, 0, 0, length, 0, 0, 0, 58], &message].concat();
    message[2..4].copy_from_slice(&checksum(&pseudo_header));
    [&[0x60, 0, 0, 0, 0, length, 58, 64], &addresses[..], &message].concat()
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    u16::try_from(0xffff ^ ((folded & 0xffff) + (folded >> 16))).unwrap().to_be_bytes()
}

/// The identifiers of echo requests.
const SINGLE: u8 = 7;
const STREAM: u8 = 8;
const PAYLOAD_BYTES: usize = 1000;
const OUTSTANDING_MAX: usize = 16;
const REPEAT_AFTER: Duration = Duration::from_millis(200);
