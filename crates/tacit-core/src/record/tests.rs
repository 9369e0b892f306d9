//! Tests the record layer with a simple cipher. The tests check which records are legal. They also
//! check that the result is the same for every way to split the bytes. `tacit-tls` tests the real
//! ciphers against a TLS library.

use proptest::prelude::*;

use super::*;

/// Adds a key stream that is computed from the nonce; the tag is the sum of all bytes.
struct Toy;

fn stream(nonce: Nonce, at: usize) -> u8 {
    nonce[at % nonce.len()].wrapping_mul(31).wrapping_add(u8::try_from(at % 251).unwrap())
}

fn toy_tag(nonce: Nonce, aad: &[u8], data: &[u8]) -> [u8; TAG_BYTES] {
    let mut hash = 0xcbf2_9ce4_8422_2325_u128;
    for &byte in nonce.iter().chain(aad).chain(data) {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0100_0000_01b3_0000_0000_0000_0000_01b3);
    }
    hash.to_be_bytes()
}

impl Seal for Toy {
    fn seal(
        &mut self,
        nonce: Nonce,
        aad: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], KeyRefused> {
        for (at, byte) in data.iter_mut().enumerate() {
            *byte = byte.wrapping_add(stream(nonce, at));
        }
        Ok(toy_tag(nonce, aad, data))
    }
}

impl Open for Toy {
    fn open(&mut self, nonce: Nonce, aad: &[u8], data: &mut [u8]) -> Result<(), KeyRefused> {
        let (data, tag) = data.split_at_mut(data.len() - TAG_BYTES);
        if toy_tag(nonce, aad, data) != *tag {
            return Err(KeyRefused);
        }
        for (at, byte) in data.iter_mut().enumerate() {
            *byte = byte.wrapping_sub(stream(nonce, at));
        }
        Ok(())
    }
}

const ALL: [RecordProtection; 4] = [
    RecordProtection::Tls13Gcm,
    RecordProtection::Tls13ChaCha,
    RecordProtection::Tls12Gcm,
    RecordProtection::Tls12ChaCha,
];
const IV: Nonce = [0xff, 2, 3, 4, 0xff, 6, 7, 8, 9, 10, 11, 12];

fn ends(protection: RecordProtection) -> (RecordSealer, RecordOpener) {
    (RecordSealer::new(protection, IV, 1), RecordOpener::new(protection, IV, 1))
}

fn seal_all(sealer: &mut RecordSealer, payload: &[u8]) -> Vec<u8> {
    let protection = sealer.protection();
    let slots = payload.len().div_ceil(PAYLOAD_BYTES_MAX);
    let mut buffer = vec![0; slots * protection.slot_bytes()];
    for (slot, chunk) in payload.chunks(PAYLOAD_BYTES_MAX).enumerate() {
        let start = slot * protection.slot_bytes() + protection.prefix_bytes();
        buffer[start..start + chunk.len()].copy_from_slice(chunk);
    }
    let sealed = sealer.seal_slots(&mut Toy, &mut buffer, payload.len()).unwrap();
    buffer.truncate(sealed);
    buffer
}

/// Passes `wire` to the opener in pieces of `piece` bytes, and returns the payload.
fn open_all(opener: &mut RecordOpener, wire: &[u8], piece: usize) -> Result<Vec<u8>, RecordError> {
    let mut held = Vec::new();
    let mut payload = Vec::new();
    for chunk in wire.chunks(piece) {
        held.extend_from_slice(chunk);
        while let Some(record) = opener.open_record(&mut Toy, &mut held)? {
            payload.extend_from_slice(&held[record.payload]);
            held.drain(..record.consumed);
        }
    }
    assert!(held.is_empty(), "{} bytes left over", held.len());
    Ok(payload)
}

fn sealed_message(protection: RecordProtection, content: ContentType, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ends(protection).0.seal_message(&mut Toy, content, message, &mut out).unwrap();
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_stream_comes_out_as_it_went_in(
        kind in 0_usize..4,
        sizes in prop::collection::vec(1_usize..40_000, 1..6),
        piece in 1_usize..50_000,
    ) {
        let (mut sealer, mut opener) = ends(ALL[kind]);
        let mut wire = Vec::new();
        let mut sent = Vec::new();
        for (round, size) in sizes.into_iter().enumerate() {
            let payload: Vec<u8> =
                (0..size).map(|at| u8::try_from((at * 7 + round) % 256).unwrap()).collect();
            wire.extend(seal_all(&mut sealer, &payload));
            sent.extend(payload);
        }
        prop_assert_eq!(open_all(&mut opener, &wire, piece.max(wire.len() / 500)), Ok(sent));
    }

    #[test]
    fn one_changed_bit_never_opens(kind in 0_usize..4, at in 0_usize..120, bit in 0_u8..8) {
        let (mut sealer, mut opener) = ends(ALL[kind]);
        let mut wire = seal_all(&mut sealer, b"the quick brown fox jumps over the lazy dog");
        let at = at % wire.len();
        wire[at] ^= 1 << bit;
        if let Ok(Some(record)) = opener.open_record(&mut Toy, &mut wire) {
            panic!("opened {record:?} after a change at {at}");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        kind in 0_usize..4,
        mut bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let _ = ends(ALL[kind]).1.open_record(&mut Toy, &mut bytes);
    }
}

#[test]
fn full_slots_lie_end_to_end() {
    for protection in ALL {
        let (mut sealer, mut opener) = ends(protection);
        let payload = vec![7; 3 * PAYLOAD_BYTES_MAX + 1];
        let wire = seal_all(&mut sealer, &payload);
        let overhead = protection.prefix_bytes() + protection.suffix_bytes();
        assert_eq!(wire.len(), payload.len() + 4 * overhead);
        assert_eq!(sealer.sequence(), 5);
        assert_eq!(open_all(&mut opener, &wire, wire.len()), Ok(payload));
    }
}

#[test]
fn headers_that_are_not_legal_are_refused_at_once() {
    use RecordError::{PeerSentContentType, PeerSentTooLong, PeerSentTooShort, PeerSentVersion};
    use RecordProtection::{Tls12Gcm, Tls13Gcm};
    let cases: [(RecordProtection, [u8; 5], RecordError); 10] = [
        (Tls13Gcm, [20, 3, 3, 0, 1], PeerSentContentType(20)),
        (Tls13Gcm, [22, 3, 3, 0, 40], PeerSentContentType(22)),
        (Tls13Gcm, [0x47, 0x45, 0x54, 0x20, 0x2f], PeerSentContentType(0x47)),
        (Tls13Gcm, [23, 2, 0, 0, 40], PeerSentVersion(0x0200)),
        (Tls13Gcm, [23, 3, 3, 0x41, 1], PeerSentTooLong),
        (Tls13Gcm, [23, 3, 3, 0, 16], PeerSentTooShort),
        (Tls12Gcm, [23, 3, 3, 0, 23], PeerSentTooShort),
        (Tls12Gcm, [20, 3, 3, 0, 1], PeerSentContentType(20)),
        (Tls12Gcm, [23, 3, 1, 0, 40], PeerSentVersion(0x0301)),
        (Tls12Gcm, [23, 3, 3, 0xff, 0xff], PeerSentTooLong),
    ];
    for (protection, mut head, expected) in cases {
        let result = ends(protection).1.open_record(&mut Toy, &mut head);
        assert_eq!(result, Err(expected), "{protection:?} {head:?}");
    }
}

#[test]
fn messages_have_their_type() {
    for protection in ALL {
        for content in [ContentType::Alert, ContentType::Handshake] {
            let mut wire = sealed_message(protection, content, &[1, 0]);
            let opened = ends(protection).1.open_record(&mut Toy, &mut wire).unwrap().unwrap();
            assert_eq!((opened.content, &wire[opened.payload]), (content, &[1_u8, 0][..]));
        }
    }
}

#[test]
fn empty_handshake_and_alert_records_are_refused() {
    for protection in ALL {
        let mut wire = sealed_message(protection, ContentType::Alert, &[]);
        let result = ends(protection).1.open_record(&mut Toy, &mut wire);
        assert_eq!(result, Err(RecordError::PeerSentContentType(21)));
    }
}

#[test]
fn change_cipher_spec_within_a_record_is_rejected() {
    let mut wire = sealed_message(RecordProtection::Tls13Gcm, ContentType::ChangeCipherSpec, &[1]);
    let result = ends(RecordProtection::Tls13Gcm).1.open_record(&mut Toy, &mut wire);
    assert_eq!(result, Err(RecordError::PeerSentContentType(20)));
}

#[test]
fn padding_is_removed_and_padding_alone_is_refused() {
    let seal = |plaintext: &[u8]| {
        let mut data = plaintext.to_vec();
        let head = header(ContentType::ApplicationData, data.len() + TAG_BYTES);
        let tag = Toy.seal(xor_sequence(IV, 1), &head, &mut data).unwrap();
        [&head[..], &data, &tag].concat()
    };
    let mut opener = ends(RecordProtection::Tls13Gcm).1;
    let mut wire = seal(b"text\x17\0\0\0\0");
    let opened = opener.open_record(&mut Toy, &mut wire).unwrap().unwrap();
    assert_eq!(&wire[opened.payload], b"text");
    let mut opener = ends(RecordProtection::Tls13Gcm).1;
    let result = opener.open_record(&mut Toy, &mut seal(&[0; 20]));
    assert_eq!(result, Err(RecordError::PeerSentNoContentType));
    // One byte more than a record may contain, within the 256 bytes of expansion.
    let mut long = vec![1; PAYLOAD_BYTES_MAX + 1];
    long.push(23);
    let mut opener = ends(RecordProtection::Tls13Gcm).1;
    let result = opener.open_record(&mut Toy, &mut seal(&long));
    assert_eq!(result, Err(RecordError::PeerSentTooLong));
}

#[test]
fn padding_counts_towards_the_longest_record() {
    let open = |padding_bytes: usize| {
        let mut data = b"text\x17".to_vec();
        data.resize(data.len() + padding_bytes, 0);
        let head = header(ContentType::ApplicationData, data.len() + TAG_BYTES);
        let tag = Toy.seal(xor_sequence(IV, 1), &head, &mut data).unwrap();
        let mut wire = [&head[..], &data, &tag].concat();
        ends(RecordProtection::Tls13Gcm).1.open_record(&mut Toy, &mut wire)
    };
    let longest = PAYLOAD_BYTES_MAX + 1 - b"text\x17".len();
    assert_eq!(open(longest).unwrap().unwrap().payload.len(), b"text".len());
    assert_eq!(open(longest + 1), Err(RecordError::PeerSentTooLong));
}

#[test]
fn a_run_of_empty_records_is_refused_but_some_are_not() {
    let (mut sealer, mut opener) = ends(RecordProtection::Tls13Gcm);
    let mut empty = || {
        let mut out = Vec::new();
        sealer.seal_message(&mut Toy, ContentType::ApplicationData, &[], &mut out).unwrap();
        out
    };
    for _ in 1..EMPTY_RECORDS_MAX {
        let opened = opener.open_record(&mut Toy, &mut empty()).unwrap().unwrap();
        assert!(opened.payload.is_empty());
    }
    let result = opener.open_record(&mut Toy, &mut empty());
    assert_eq!(result, Err(RecordError::PeerSentEmptyRecords));
}

#[test]
fn reordered_and_repeated_records_do_not_open() {
    let (mut sealer, mut opener) = ends(RecordProtection::Tls13Gcm);
    let mut first = seal_all(&mut sealer, b"first");
    let mut again = first.clone();
    let mut second = seal_all(&mut sealer, b"second");
    let forged = Err(RecordError::PeerSentForged);
    assert_eq!(opener.clone().open_record(&mut Toy, &mut second), forged);
    assert!(opener.open_record(&mut Toy, &mut first).unwrap().is_some());
    assert_eq!(opener.open_record(&mut Toy, &mut again), forged);
}

#[test]
fn tls12_explicit_nonces_rise_and_never_meet_those_of_the_handshake() {
    // The worst case: the top bit of the start and all low bits are set.
    let iv = [1, 2, 3, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
    let mut sealer = RecordSealer::new(RecordProtection::Tls12Gcm, iv, 1);
    let handshake_nonce = u64::MAX;
    let mut last = 0;
    for _ in 0..3 {
        let wire = seal_all(&mut sealer, b"x");
        let explicit = u64::from_be_bytes(wire[5..13].try_into().unwrap());
        assert!(explicit > last && explicit != handshake_nonce);
        last = explicit;
    }
}

#[test]
fn a_key_that_is_used_up_refuses() {
    let (mut sealer, _) = ends(RecordProtection::Tls12Gcm);
    sealer.limit_records(0);
    assert_eq!(sealer.records_left(), 0);
    let mut out = b"kept".to_vec();
    let result = sealer.seal_message(&mut Toy, ContentType::Alert, &[1, 0], &mut out);
    assert_eq!((result, out.as_slice()), (Err(RecordError::KeyUsedUp), &b"kept"[..]));
}

#[test]
fn a_key_counts_blocks_so_that_small_records_take_little_of_it() {
    for protection in [RecordProtection::Tls12Gcm, RecordProtection::Tls13Gcm] {
        let (mut sealer, _) = ends(protection);
        sealer.limit_records(4);
        seal_all(&mut sealer, &[0; PAYLOAD_BYTES_MAX]);
        assert_eq!(sealer.records_left(), 3);
        // A record of 16 bytes takes three blocks: one of data, one for the type, one for the tag.
        let small = 2 * FULL_RECORD_BLOCKS / 3;
        for _ in 0..small {
            seal_all(&mut sealer, &[0; 16]);
        }
        assert_eq!(sealer.records_left(), 1);
        seal_all(&mut sealer, &[0; PAYLOAD_BYTES_MAX]);
        let mut out = Vec::new();
        let result = sealer.seal_message(&mut Toy, ContentType::Alert, &[1, 0], &mut out);
        assert_eq!(result, Err(RecordError::KeyUsedUp));
    }
}

#[test]
fn limits_are_those_of_the_rfc_and_of_the_sequence_number() {
    let gcm = |protection: RecordProtection| protection.records_max() as f64;
    // RFC 8446 section 5.5: 2^24.5 full-size records.
    assert!(gcm(RecordProtection::Tls12Gcm) <= 24.5_f64.exp2());
    assert!(gcm(RecordProtection::Tls12Gcm) > 24.49_f64.exp2());
    assert!(gcm(RecordProtection::Tls13Gcm) < 24.0_f64.exp2());
    for protection in [RecordProtection::Tls12ChaCha, RecordProtection::Tls13ChaCha] {
        let blocks = protection.records_max().checked_mul(FULL_RECORD_BLOCKS);
        assert!(blocks.is_some(), "no sequence number is used twice before the limit");
    }
}
