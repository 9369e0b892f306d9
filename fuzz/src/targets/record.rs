//! Fuzzes the parsing and decryption of TLS records. The test keys accept every authentication tag,
//! so that fuzzing also reaches the code after the check of the tag.

use tacit_core::record::{
    self, ContentType, KeyRefused, Open, OpenedRecord, RecordOpener, RecordProtection,
};
use tacit_core::record::{RecordSealer, Seal};

const PROTECTIONS: [RecordProtection; 4] = [
    RecordProtection::Tls13Gcm,
    RecordProtection::Tls13ChaCha,
    RecordProtection::Tls12Gcm,
    RecordProtection::Tls12ChaCha,
];
const NONCE: record::Nonce = [0; 12];

/// The first byte selects the protection; the rest are the bytes of a peer.
pub(crate) fn record(input: &[u8]) {
    let Some((choice, wire)) = input.split_first() else { return };
    let protection = PROTECTIONS[usize::from(*choice) % PROTECTIONS.len()];
    let mut opener = RecordOpener::new(protection, NONCE, 0);
    let mut wire = wire.to_vec();
    while let Ok(Some(opened)) = opener.open_record(&mut AnyTag, &mut wire) {
        assert!(opened.consumed <= wire.len().min(record::RECORD_BYTES_MAX));
        assert!(opened.payload.end <= opened.consumed);
        assert!(opened.payload.len() <= record::PAYLOAD_BYTES_MAX);
        let payload = wire.get(opened.payload).unwrap_or_default().to_vec();
        check_round_trip(protection, opened.content, &payload);
        wire.drain(..opened.consumed);
    }
}

/// Checks that opened content can be sealed and opened again.
fn check_round_trip(protection: RecordProtection, content: ContentType, payload: &[u8]) {
    let mut wire = Vec::new();
    let mut sealer = RecordSealer::new(protection, NONCE, 0);
    assert_eq!(sealer.seal_message(&mut AnyTag, content, payload, &mut wire), Ok(()));
    let opened = RecordOpener::new(protection, NONCE, 0).open_record(&mut AnyTag, &mut wire);
    let reopened = opened.map(|opened| {
        opened.map(|OpenedRecord { content, payload, .. }| {
            (content, wire.get(payload).map(<[u8]>::to_vec))
        })
    });
    assert_eq!(reopened, Ok(Some((content, Some(payload.to_vec())))));
}

/// A key that changes nothing and accepts every tag.
struct AnyTag;

impl Seal for AnyTag {
    fn seal(
        &mut self,
        _: record::Nonce,
        _: &[u8],
        _: &mut [u8],
    ) -> Result<[u8; record::TAG_BYTES], KeyRefused> {
        Ok([0; record::TAG_BYTES])
    }
}

impl Open for AnyTag {
    fn open(&mut self, _: record::Nonce, _: &[u8], _: &mut [u8]) -> Result<(), KeyRefused> {
        Ok(())
    }
}
