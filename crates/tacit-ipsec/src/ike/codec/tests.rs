//! Tests the message parser on invalid messages, round trips and arbitrary bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::selector::TrafficSelector;

fn header() -> IkeHeader {
    IkeHeader {
        initiator_spi: 0x1122_3344_5566_7788,
        responder_spi: 0,
        exchange: ExchangeType::SaInit,
        from_initiator: true,
        is_response: false,
        message_id: 7,
    }
}

/// One payload of each type.
fn every_payload() -> Vec<IkePayload> {
    let aes = Transform {
        kind: TransformKind::Encryption,
        id: 20,
        key_bits: Some(256),
        has_unknown_attribute: false,
    };
    let group = Transform { kind: TransformKind::KeyExchange, id: 31, key_bits: None, ..aes };
    let proposal = |number| Proposal {
        number,
        protocol: ProtocolId::Esp,
        spi: vec![1, 2, 3, 4],
        transforms: vec![aes, group],
    };
    let id = IdPayload { kind: 2, data: b"a.example".to_vec() };
    let v4 = TrafficSelector::of_addresses([10, 0, 0, 0].into(), [10, 0, 0, 255].into());
    let v6 = "fd00::1".parse().unwrap();
    let v6 = TrafficSelector::new(6, (80, 443), (v6, v6));
    let selectors = vec![v4.unwrap(), v6.unwrap()];
    let attribute = ConfigAttribute { kind: 1, value: vec![10, 0, 0, 1] };
    vec![
        IkePayload::SecurityAssociation(vec![proposal(1), proposal(2)]),
        IkePayload::KeyExchange(KePayload { group: 31, public_value: vec![9; 32] }),
        IkePayload::IdInitiator(id.clone()),
        IkePayload::IdResponder(id),
        IkePayload::Cert(CertPayload { encoding: 4, data: vec![1] }),
        IkePayload::CertRequest(CertRequestPayload { encoding: 4, authorities: vec![5; 20] }),
        IkePayload::Auth(AuthPayload { method: AuthMethod::SharedKey, data: vec![2; 32] }),
        IkePayload::Nonce(vec![3; 32]),
        IkePayload::Notify(NotifyPayload::new(notify::COOKIE, vec![4; 8])),
        IkePayload::Notify(NotifyPayload {
            spi: Some((ProtocolId::Esp, 0x0102_0304)),
            kind: notify::REKEY_SA,
            data: Vec::new(),
        }),
        IkePayload::Delete(DeletePayload::IkeSa),
        IkePayload::Delete(DeletePayload::Esp(vec![1000, 2000])),
        IkePayload::VendorId(b"vendor".to_vec()),
        IkePayload::TsInitiator(TsPayload { selectors: selectors.clone() }),
        IkePayload::TsResponder(TsPayload { selectors }),
        IkePayload::Config(ConfigPayload {
            kind: ConfigKind::Request,
            attributes: vec![attribute],
        }),
    ]
}

/// A message with one payload whose type and body are given.
fn with_payload(kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(body.len() + 4).unwrap();
    let mut bytes = Vec::new();
    header().encode(kind, 28 + u32::from(length), &mut bytes);
    bytes.extend([0, flags]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn every_payload_survives_a_round_trip() {
    let payloads = every_payload();
    let bytes = encode_message(&header(), &payloads);
    let message = IkeMessage::parse(&bytes).unwrap();
    assert_eq!(message.header, header());
    assert_eq!(message.payloads, payloads);
    assert_eq!(message.encrypted, None);
}

#[test]
fn a_message_that_ends_early_is_refused_at_every_length() {
    let bytes = encode_message(&header(), &every_payload());
    for length in 0..bytes.len() {
        assert!(IkeMessage::parse(&bytes[..length]).is_err(), "{length}");
    }
    // The header is corrected here, so that the payloads are what is cut.
    for length in 28..bytes.len() {
        let mut cut = bytes[..length].to_vec();
        cut[24..28].copy_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
        assert!(IkeMessage::parse(&cut).is_err(), "{length}");
    }
}

#[test]
fn rejected_messages_name_the_part_at_fault() {
    let mut ikev1 = encode_message(&header(), &[]);
    ikev1[17] = 0x10;
    let two_inside = [with_payload(46, 0, &[0; 40]), vec![0; 4]].concat();
    let selector = [1, 0, 0, 0, 7, 0, 0, 16, 0, 9, 0, 8, 10, 0, 0, 1, 10, 0, 0, 1];
    for (bytes, expected) in [
        (ikev1, CodecError::Version(1)),
        (two_inside, CodecError::Length("message")),
        (with_payload(200, 0x80, &[]), CodecError::UnsupportedCritical(200)),
        (with_payload(40, 0, &[0; 15]), CodecError::Length("nonce")),
        (with_payload(40, 0, &[0; 257]), CodecError::Length("nonce")),
        (with_payload(33, 0, &[]), CodecError::Truncated("security association payload")),
        (with_payload(33, 0, &[1, 0, 0, 8, 1, 3, 0, 0]), CodecError::Value("proposal")),
        (with_payload(34, 0, &[0, 31, 0, 0]), CodecError::Truncated("key exchange payload")),
        (with_payload(41, 0, &[3, 8, 0, 1]), CodecError::Length("SPI of a notify payload")),
        (with_payload(42, 0, &[3, 4, 0, 2, 0, 0, 0, 9]), CodecError::Length("delete payload")),
        (with_payload(42, 0, &[1, 0, 0, 9]), CodecError::Value("delete payload")),
        (with_payload(44, 0, &[0, 0, 0, 0]), CodecError::Value("number of traffic selectors")),
        (with_payload(44, 0, &[200, 0, 0, 0]), CodecError::TooMany("traffic selectors")),
        (with_payload(44, 0, &selector), CodecError::Value("traffic selector")),
        (with_payload(53, 0, &[0, 0, 0, 1]), CodecError::Value("fragment number")),
        (with_payload(53, 0, &[0, 1, 255, 0]), CodecError::TooMany("fragments")),
        (
            with_payload(47, 0, &[1, 0, 0, 0, 0, 1, 0, 9]),
            CodecError::Truncated("configuration payload"),
        ),
    ] {
        assert_eq!(IkeMessage::parse(&bytes), Err(expected));
    }
}

#[test]
fn a_higher_version_is_refused_by_a_response_that_is_not_longer() {
    let vendor = [IkePayload::VendorId(b"version 3".to_vec())];
    let mut request = encode_message(&header(), &vendor);
    assert_eq!(refuse_version(&request), None, "version 2");
    request[17] = 0x10;
    assert_eq!(refuse_version(&request), None, "IKEv1, whose peers do not know the notification");
    request[17] = 0x30;
    assert_eq!(IkeMessage::parse(&request), Err(CodecError::Version(3)));
    let response = refuse_version(&request).unwrap();
    assert!(response.len() <= request.len());
    let response = IkeMessage::parse(&response).unwrap();
    let expected = IkeHeader { is_response: true, from_initiator: false, ..header() };
    assert_eq!(response.header, expected);
    let kind = notify::INVALID_MAJOR_VERSION;
    assert_eq!(response.payloads, [IkePayload::Notify(NotifyPayload::new(kind, []))]);
    assert_eq!(refuse_version(&request[..35]), None, "shorter than the response");
    request[19] |= 0x20;
    assert_eq!(refuse_version(&request), None, "a response");
}

#[test]
fn an_unknown_payload_that_is_not_critical_is_skipped() {
    let message = IkeMessage::parse(&with_payload(200, 0, &[1, 2])).unwrap();
    assert_eq!(message.payloads, []);
}

#[test]
fn a_message_has_a_limit_of_payloads() {
    let vendor = IkePayload::VendorId(Vec::new());
    assert!(IkeMessage::parse(&encode_message(&header(), &vec![vendor.clone(); 64])).is_ok());
    let over = encode_message(&header(), &vec![vendor; 65]);
    assert_eq!(IkeMessage::parse(&over), Err(CodecError::TooMany("payloads")));
}

#[test]
fn an_unknown_attribute_marks_its_transform() {
    // A transform with the attribute 14 in the long form, which RFC 7296 does not define.
    let body = [0, 0, 0, 20, 1, 3, 0, 1, 0, 0, 0, 12, 1, 0, 0, 20, 0, 14, 0, 0];
    let proposals = security_association::parse_proposals(&body).unwrap();
    assert!(proposals[0].transforms[0].has_unknown_attribute);
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..400), kind in 33u8..54) {
        crate::ike::fuzz::codec(&bytes);
        crate::ike::fuzz::codec(&with_payload(kind, 0, &bytes));
    }

    #[test]
    fn a_changed_byte_does_no_harm(offset in 0usize..400, byte: u8) {
        let mut bytes = encode_message(&header(), &every_payload());
        if let Some(place) = bytes.get_mut(offset) {
            *place = byte;
        }
        crate::ike::fuzz::codec(&bytes);
    }
}
