use proptest::prelude::*;

use super::*;
use crate::child::{ChildSa, EspSpi, KeyOrigin, ReplayCheck, SaKeys, SaMode, SaProtocol};
use crate::cipher::{Cipher, IntegrityHash};
use crate::packet::IpPacket;
use crate::packet::testing::{udp_v4, udp_v6};
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;

const CIPHERS: [Cipher; 7] = [
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::ChaCha20Poly1305,
    Cipher::Aes128Cbc(IntegrityHash::Sha256),
    Cipher::Aes256Cbc(IntegrityHash::Sha256),
    Cipher::Aes256Cbc(IntegrityHash::Sha384),
    Cipher::Aes256Cbc(IntegrityHash::Sha512),
];

fn keys(cipher: Cipher, spi: u32, fill: u8) -> SaKeys {
    let encryption = vec![fill; cipher.key_bytes() + cipher.salt_bytes()];
    SaKeys {
        spi: EspSpi::new(spi).unwrap(),
        encryption: SecretBytes::new(encryption),
        integrity: SecretBytes::new(vec![fill; cipher.integrity_key_bytes()]),
    }
}

fn network(text: &str) -> TrafficSelector {
    let (first, last) = text.split_once('-').unwrap();
    TrafficSelector::of_addresses(first.parse().unwrap(), last.parse().unwrap()).unwrap()
}

/// The tunnel of packets from 10.1.0.1 and fd01::1; the peer is 10.2.0.1 and fd02::1.
fn child(cipher: Cipher) -> ChildSa {
    ChildSa {
        protocol: SaProtocol::EspInUdp(cipher),
        origin: KeyOrigin::Ike,
        mode: SaMode::Tunnel,
        has_extended_sequence: true,
        inbound: keys(cipher, 0x1001, 1),
        outbound: keys(cipher, 0x1002, 2),
        local: vec![network("10.1.0.0-10.1.255.255"), network("fd01::-fd01::ffff")],
        remote: vec![network("10.2.0.0-10.2.255.255"), network("fd02::-fd02::ffff")],
    }
}

/// The same tunnel as its other end sees it.
fn reversed(child: &ChildSa) -> ChildSa {
    let child = child.clone();
    ChildSa {
        inbound: child.outbound,
        outbound: child.inbound,
        local: child.remote,
        remote: child.local,
        ..child
    }
}

fn pair_of(child: &ChildSa) -> (OutboundSa, InboundSa) {
    let lifetime = DataLifetime::UNLIMITED;
    let inbound = InboundSa::new(&reversed(child), lifetime).unwrap();
    (OutboundSa::new(child, lifetime).unwrap(), inbound)
}

fn pair(cipher: Cipher) -> (OutboundSa, InboundSa) {
    pair_of(&child(cipher))
}

fn seal(outbound: &mut OutboundSa, inner: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xaa; outbound.frame_bytes(inner.len())];
    let at = outbound.header_bytes();
    frame[at..at + inner.len()].copy_from_slice(inner);
    let sealed = outbound.seal(&mut frame, inner.len()).unwrap();
    assert_eq!(sealed, frame.len());
    frame
}

fn open(inbound: &mut InboundSa, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
    let mut frame = frame.to_vec();
    match inbound.open(&mut frame, 0)? {
        Opened::Packet(_, place) => Ok(frame[place].to_vec()),
        Opened::Dummy => Ok(Vec::new()),
    }
}

#[test]
fn every_cipher_returns_what_was_sealed() {
    for cipher in CIPHERS {
        for has_extended_sequence in [false, true] {
            let tunnel = ChildSa { has_extended_sequence, ..child(cipher) };
            let (mut outbound, mut inbound) = pair_of(&tunnel);
            for length in 0..70 {
                for inner in [udp_v4(&vec![7; length]), udp_v6(&vec![8; length])] {
                    let frame = seal(&mut outbound, &inner);
                    assert_eq!(&frame[..4], [0, 0, 0x10, 2]);
                    assert_eq!(open(&mut inbound, &frame), Ok(inner), "{cipher:?} {length}");
                    assert_eq!(open(&mut inbound, &frame), Err(DropReason::Replayed));
                }
            }
            assert_eq!(outbound.sequence(), 140);
            assert_eq!(inbound.sequence(), 140);
            assert_eq!(inbound.counters().packets(), 140);
            assert_eq!(inbound.counters().bytes(), outbound.counters().bytes());
        }
    }
}

#[test]
fn every_changed_bit_is_detected() {
    for cipher in CIPHERS {
        let (mut outbound, mut inbound) = pair(cipher);
        // No changed bit of the third sequence number gives the invalid number 0.
        let [_, _, frame] = [(); 3].map(|()| seal(&mut outbound, &udp_v4(b"protected")));
        // The SPI selects the SA, and is authenticated with the rest.
        for bit in 0..frame.len() * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                open(&mut inbound, &changed),
                Err(DropReason::Integrity),
                "{cipher:?} {bit}"
            );
        }
        for length in 0..frame.len() {
            let error = open(&mut inbound, &frame[..length]).unwrap_err();
            assert!(matches!(error, DropReason::Malformed | DropReason::Integrity), "{error:?}");
        }
        assert_eq!(inbound.sequence(), 0, "forged packets do not move the window");
        assert!(open(&mut inbound, &frame).is_ok());
    }
}

#[test]
fn the_upper_half_of_the_sequence_is_authenticated() {
    for cipher in CIPHERS {
        let (mut outbound, mut inbound) = pair(cipher);
        outbound.set_sequence(u64::from(u32::MAX) - 1);
        let before = seal(&mut outbound, &udp_v4(b"last of the lower half"));
        let after = seal(&mut outbound, &udp_v4(b"first of the upper half"));
        assert_eq!(&after[4..8], [0; 4]);
        assert!(open(&mut inbound, &before).is_ok(), "{cipher:?}");
        assert!(open(&mut inbound, &after).is_ok(), "{cipher:?}");
        assert_eq!(inbound.sequence(), 1 << 32);
        // The same bytes, received by a peer that counts from zero, are not those of number 0.
        let (_, mut fresh) = pair(cipher);
        assert!(open(&mut fresh, &after).is_err(), "{cipher:?}");
    }
}

#[test]
fn sequence_numbers_end_and_are_never_reused() {
    let (mut outbound, _) =
        pair_of(&ChildSa { has_extended_sequence: false, ..child(Cipher::Aes256Gcm) });
    outbound.set_sequence(u64::from(u32::MAX) / 16 * 15 + 1);
    assert_eq!(outbound.lifetime_state(), LifetimeState::RekeyDue);
    outbound.set_sequence(u64::from(u32::MAX) - 1);
    let frame = seal(&mut outbound, &udp_v4(b"last"));
    assert_eq!(&frame[4..8], [0xff; 4]);
    let mut frame = vec![0x45; 200];
    assert_eq!(outbound.seal(&mut frame, 40), Err(DropReason::Expired));
    assert_eq!(outbound.sequence(), u64::from(u32::MAX));
}

/// SAs with keys of a file. They are new at each call, as after a restart.
fn manual(nonce: u8, replay: ReplayCheck) -> ChildSa {
    ChildSa {
        origin: KeyOrigin::Manual { nonce: [nonce; 8], replay },
        has_extended_sequence: false,
        ..child(Cipher::Aes256Cbc(IntegrityHash::Sha256))
    }
}

#[test]
fn manual_keys_never_use_an_iv_again_after_a_restart() {
    let first = |nonce| {
        let (mut outbound, _) = pair_of(&manual(nonce, ReplayCheck::Off));
        seal(&mut outbound, &udp_v4(b"the same packet"))
    };
    let [one, other] = [1, 2].map(first);
    assert_eq!(one[..8], other[..8], "the same SPI and sequence number");
    assert_ne!(one[8..24], other[8..24], "another IV");
    assert_ne!(one[24..40], other[24..40], "another ciphertext");
}

#[test]
fn a_restarted_sender_is_accepted_only_without_the_replay_check() {
    for (replay, wanted) in [(ReplayCheck::Off, true), (ReplayCheck::On, false)] {
        let (mut outbound, mut inbound) = pair_of(&manual(1, replay));
        for _ in 0..3 {
            let frame = seal(&mut outbound, &udp_v4(b"x"));
            assert!(open(&mut inbound, &frame).is_ok());
        }
        let (mut restarted, _) = pair_of(&manual(2, replay));
        let frame = seal(&mut restarted, &udp_v4(b"x"));
        assert_eq!(open(&mut inbound, &frame).is_ok(), wanted, "{replay:?}");
        assert_eq!(open(&mut inbound, &frame).is_ok(), wanted, "{replay:?}: the same again");
        let mut changed = frame;
        changed[30] ^= 1;
        assert!(open(&mut inbound, &changed).is_err(), "the ICV is checked all the same");
    }
}

/// The SAs of both test packets in transport mode, one for each IP version.
fn transport(cipher: Cipher) -> [ChildSa; 2] {
    [("10.1.0.1", "10.2.0.1"), ("fd01::1", "fd02::1")].map(|(local, remote)| ChildSa {
        mode: SaMode::Transport { local: local.parse().unwrap(), remote: remote.parse().unwrap() },
        ..child(cipher)
    })
}

fn reversed_transport(child: &ChildSa) -> ChildSa {
    let SaMode::Transport { local, remote } = child.mode else { panic!() };
    ChildSa { mode: SaMode::Transport { local: remote, remote: local }, ..reversed(child) }
}

/// An opened packet without the fields of its header that transport mode does not keep.
fn comparable(mut packet: Vec<u8>) -> Vec<u8> {
    match packet[0] >> 4 {
        4 => [1, 4, 5, 6, 7, 8, 10, 11].into_iter().for_each(|at| packet[at] = 0),
        _ => {
            packet[0] = 0x60;
            packet[1..4].fill(0);
            packet[7] = 0;
        }
    }
    packet
}

#[test]
fn transport_mode_keeps_addresses_and_content_and_sends_no_ip_header() {
    for cipher in CIPHERS.into_iter().filter(|cipher| !cipher.is_aead()) {
        let [v4, v6] = transport(cipher);
        for length in 0..70 {
            for (child, inner) in [(&v4, udp_v4(&vec![7; length])), (&v6, udp_v6(&vec![7; length]))]
            {
                let lifetime = DataLifetime::UNLIMITED;
                let mut outbound = OutboundSa::new(child, lifetime).unwrap();
                let mut inbound = InboundSa::new(&reversed_transport(child), lifetime).unwrap();
                let mut frame = vec![0; outbound.frame_bytes(inner.len())];
                let sealed = outbound.seal_packet(&mut frame, &inner).unwrap();
                assert_eq!(sealed, frame.len());
                let header = if inner[0] >> 4 == 4 { 20 } else { 40 };
                let text = inner.len() - header + 2;
                let text = text.next_multiple_of(cipher.block_bytes().max(4));
                assert_eq!(sealed, 8 + cipher.iv_bytes() + text + cipher.icv_bytes());
                let Opened::Packet(parsed, place) = inbound.open(&mut frame, 3).unwrap() else {
                    panic!()
                };
                let opened = frame[place].to_vec();
                assert_eq!(IpPacket::parse(&opened), Ok(parsed), "{cipher:?} {length}");
                assert_eq!(crate::packet::traffic_class(&opened), 3, "that of the outer header");
                assert_eq!(comparable(opened), comparable(inner));
                assert_eq!(inbound.counters().bytes(), outbound.counters().bytes());
            }
        }
    }
}

#[test]
fn transport_mode_drops_what_it_cannot_send_and_what_is_of_tunnel_mode() {
    let cipher = Cipher::Aes128Cbc(IntegrityHash::Sha256);
    let [v4, _] = transport(cipher);
    let lifetime = DataLifetime::UNLIMITED;
    let mut outbound = OutboundSa::new(&v4, lifetime).unwrap();
    let mut send = |packet: &[u8]| outbound.seal_packet(&mut vec![0; 300], packet);
    for (at, value) in [(15, 2), (19, 2), (6, 0x20), (7, 1)] {
        let mut packet = udp_v4(b"x");
        packet[at] = value;
        assert_eq!(send(&packet), Err(DropReason::InnerPacket), "{at}");
    }
    assert_eq!(send(&udp_v6(b"x")), Err(DropReason::InnerPacket));
    assert_eq!(outbound.seal(&mut [0x45; 300], 40), Err(DropReason::InnerPacket));
    assert_eq!(outbound.sequence(), 0);
    // The same keys, but another mode.
    let (mut tunnel, mut of_tunnel) = pair(cipher);
    let mut inbound = InboundSa::new(&reversed_transport(&v4), lifetime).unwrap();
    let frame = seal(&mut tunnel, &udp_v4(b"x"));
    assert_eq!(open(&mut inbound, &frame), Err(DropReason::NextHeader));
    let mut frame = vec![0; outbound.frame_bytes(29)];
    outbound.seal_packet(&mut frame, &udp_v4(b"x")).unwrap();
    assert_eq!(open(&mut of_tunnel, &frame), Err(DropReason::NextHeader));
}

#[test]
fn other_selectors_apply_to_an_sa_that_exists() {
    let (mut outbound, mut inbound) = pair(Cipher::Aes128Gcm);
    let packet = IpPacket::parse(&udp_v4(b"x")).unwrap();
    let before = seal(&mut outbound, &udp_v4(b"x"));
    let after = seal(&mut outbound, &udp_v4(b"x"));
    assert!(outbound.matches(&packet));
    assert!(open(&mut inbound, &before).is_ok());
    let other = || vec![network("10.9.0.0-10.9.0.255")];
    outbound.set_selectors(other(), other());
    inbound.set_selectors(other(), other());
    assert!(!outbound.matches(&packet));
    assert_eq!(open(&mut inbound, &after), Err(DropReason::Selectors));
    assert_eq!(outbound.sequence(), 2);
}

#[test]
fn an_sa_at_its_hard_lifetime_processes_nothing() {
    let volume = |packets| DataVolume { packets, bytes: u64::MAX };
    let lifetime = DataLifetime { soft: volume(1), hard: volume(2) };
    let child = child(Cipher::Aes128Gcm);
    let mut outbound = OutboundSa::new(&child, lifetime).unwrap();
    let mut inbound = InboundSa::new(&reversed(&child), lifetime).unwrap();
    assert_eq!(outbound.lifetime_state(), LifetimeState::Current);
    for _ in 0..2 {
        let frame = seal(&mut outbound, &udp_v4(b"x"));
        assert!(open(&mut inbound, &frame).is_ok());
    }
    let mut frame = vec![0x45; 200];
    assert_eq!(outbound.seal(&mut frame, 40), Err(DropReason::Expired));
    assert_eq!(open(&mut inbound, &frame), Err(DropReason::Expired));
}

#[test]
fn packets_outside_the_selectors_are_dropped() {
    let (mut outbound, mut inbound) = pair(Cipher::Aes128Gcm);
    for (at, value) in [(13, 2), (17, 3)] {
        let mut inner = udp_v4(b"x");
        inner[at] = value;
        let frame = seal(&mut outbound, &inner);
        assert_eq!(open(&mut inbound, &frame), Err(DropReason::Selectors));
    }
    let mut broken = udp_v4(b"x");
    broken[3] = 200;
    let frame = seal(&mut outbound, &broken);
    assert_eq!(open(&mut inbound, &frame), Err(DropReason::InnerPacket));
}

#[test]
fn padding_and_next_header_are_checked() {
    let (mut outbound, mut inbound) = pair(Cipher::Aes128Gcm);
    let inner = udp_v4(b"xyz");
    let header = outbound.header_bytes();
    let mut send = |change: &dyn Fn(&mut [u8])| {
        // The transform alone seals a packet with a wrong trailer.
        let mut frame = vec![0; outbound.frame_bytes(inner.len())];
        frame[header..header + inner.len()].copy_from_slice(&inner);
        let text = header..frame.len() - 16;
        frame[text.end - 5..text.end].copy_from_slice(&[1, 2, 3, 3, 4]);
        change(&mut frame[text]);
        outbound.seal_frame(&mut frame).unwrap();
        open(&mut inbound, &frame)
    };
    assert_eq!(inner.len() % 4, 3, "the padding has three bytes");
    assert_eq!(send(&|_| ()), Ok(inner.clone()));
    assert_eq!(send(&|text| text[inner.len()] = 0), Err(DropReason::Padding));
    let end = |text: &mut [u8], bytes: [u8; 3]| {
        let at = text.len() - 3;
        text[at..].copy_from_slice(&bytes);
    };
    assert_eq!(send(&|text| end(text, [1, 1, 4])), Ok(inner.clone()));
    assert_eq!(send(&|text| end(text, [2, 1, 4])), Err(DropReason::Padding));
    assert_eq!(send(&|text| end(text, [1, 255, 4])), Err(DropReason::Padding));
    assert_eq!(send(&|text| end(text, [1, 1, 6])), Err(DropReason::NextHeader));
    assert_eq!(send(&|text| end(text, [1, 1, 41])), Err(DropReason::InnerPacket));
    assert_eq!(send(&|text| end(text, [1, 1, 59])), Ok(Vec::new()), "a dummy");
}

#[test]
fn dummies_are_counted_and_deliver_nothing() {
    let (mut outbound, mut inbound) = pair(Cipher::ChaCha20Poly1305);
    let mut frame = vec![0; outbound.frame_bytes(100)];
    let sealed = outbound.seal_dummy(&mut frame, 100).unwrap();
    assert_eq!(inbound.open(&mut frame[..sealed], 0), Ok(Opened::Dummy));
    assert_eq!((inbound.counters().dummies(), inbound.counters().packets()), (1, 0));
}

#[test]
fn bytes_behind_the_inner_packet_are_padding_too() {
    let (mut outbound, mut inbound) = pair(Cipher::Aes128Gcm);
    let inner = udp_v4(b"x");
    let mut padded = inner.clone();
    padded.resize(inner.len() + 60, 0);
    let frame = seal(&mut outbound, &padded);
    assert_eq!(open(&mut inbound, &frame), Ok(inner));
}

#[test]
fn congestion_on_the_outer_header_reaches_the_inner_packet() {
    let (mut outbound, mut inbound) = pair(Cipher::Aes128Gcm);
    for (inner_ecn, outer, wanted) in
        [(2, 3, Ok(3)), (2, 0, Ok(2)), (0, 2, Ok(0)), (0, 3, Err(DropReason::Congestion))]
    {
        let mut inner = udp_v4(b"x");
        crate::packet::ecn::set(&mut inner, inner_ecn);
        let mut frame = seal(&mut outbound, &inner);
        let opened = inbound.open(&mut frame, outer).map(|opened| match opened {
            Opened::Packet(_, place) => frame[place.start + 1] & 3,
            Opened::Dummy => u8::MAX,
        });
        assert_eq!(opened, wanted);
    }
}

#[test]
fn keys_of_a_wrong_length_are_refused() {
    let mut short = child(Cipher::Aes256Gcm);
    short.outbound.encryption = SecretBytes::new(vec![0; 32]);
    assert_eq!(OutboundSa::new(&short, DataLifetime::UNLIMITED).err(), Some(KeyLengthError));
    let mut other = child(Cipher::Aes128Cbc(IntegrityHash::Sha256));
    other.inbound.integrity = SecretBytes::new(Vec::new());
    assert_eq!(InboundSa::new(&other, DataLifetime::UNLIMITED).err(), Some(KeyLengthError));
}

proptest! {
    #[test]
    fn arbitrary_frames_are_dropped_with_a_reason(
        mut frame in prop::collection::vec(any::<u8>(), 0..200),
        cipher in prop::sample::select(CIPHERS.to_vec()),
    ) {
        let (_, mut inbound) = pair(cipher);
        let _ = UdpContent::of(&frame);
        prop_assert!(inbound.open(&mut frame, 3).is_err());
    }

    /// Any order of arrival delivers each packet once.
    #[test]
    fn reordered_and_repeated_packets_arrive_once(
        order in prop::collection::vec(0_usize..20, 1..60),
    ) {
        let (mut outbound, mut inbound) = pair(Cipher::Aes128Gcm);
        let frames: Vec<_> =
            (0..20_u8).map(|number| seal(&mut outbound, &udp_v4(&[number]))).collect();
        let mut delivered = [0; 20];
        for at in order {
            let first = delivered[at] == 0;
            prop_assert_eq!(open(&mut inbound, &frames[at]).is_ok(), first);
            delivered[at] = 1;
        }
    }
}
