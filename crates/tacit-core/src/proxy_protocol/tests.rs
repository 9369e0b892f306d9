//! Tests the PROXY protocol: fixed headers, every kind of rejected header, and properties of random
//! headers.

use proptest::prelude::*;

use super::*;

fn encoded(header: &ProxyHeader) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(header, &mut bytes).unwrap();
    bytes
}

fn proxy(source: &str, destination: &str) -> ProxyHeader {
    ProxyHeader::Proxy {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    }
}

/// Builds a header with `family`, `body` and the length of `body`.
fn raw(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_fixed(&mut bytes, command, family, u16::try_from(body.len()).unwrap());
    bytes.extend_from_slice(body);
    bytes
}

/// Bytes written out by hand from the format's text, so that `parse` and `encode` cannot
/// agree on the same mistake.
#[test]
fn ipv4_header_has_the_bytes_of_the_format() {
    let bytes = [
        0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a, 0x21, 0x11, 0, 12,
        192, 0, 2, 1, 198, 51, 100, 7, 0xc0, 0x01, 0x01, 0xbb,
    ];
    let header = proxy("192.0.2.1:49153", "198.51.100.7:443");
    assert_eq!(encoded(&header), bytes);
    assert_eq!(parse(&bytes), Ok(Some(ParsedHeader { header, consumed: 28 })));
}

#[test]
fn local_ignores_what_follows_and_consumes_it() {
    for family in [0x00, 0x11, 0xff] {
        let mut bytes = raw(COMMAND_LOCAL, family, &[0xee; 30]);
        bytes.extend_from_slice(b"client data");
        assert_eq!(
            parse(&bytes),
            Ok(Some(ParsedHeader { header: ProxyHeader::Local, consumed: 46 }))
        );
    }
}

#[test]
fn mixed_families_travel_mapped_and_arrive_as_they_were() {
    let header = proxy("192.0.2.1:1000", "[2001:db8::2]:443");
    let bytes = encoded(&header);
    assert_eq!(bytes[13], FAMILY_INET6_STREAM);
    assert_eq!(bytes[16..32], "192.0.2.1".parse::<Ipv4Addr>().unwrap().to_ipv6_mapped().octets());
    assert_eq!(parse(&bytes).unwrap().unwrap().header, header);
    let both_mapped = proxy("[::ffff:192.0.2.1]:1000", "[::ffff:192.0.2.2]:443");
    assert_eq!(encoded(&both_mapped)[13], FAMILY_INET_STREAM);
}

#[test]
fn what_cannot_be_expressed_is_refused_and_nothing_written() {
    let mut out = b"before".to_vec();
    let mixed = proxy("unix:/run/x.sock", "192.0.2.1:1");
    assert_eq!(encode(&mixed, &mut out), Err(ProxyError::MixedFamilies));
    let long = proxy("unix:", &format!("unix:/{}", "x".repeat(108)));
    assert_eq!(encode(&long, &mut out), Err(ProxyError::NameTooLong { bytes: 109 }));
    let long = proxy("unix:", &format!("unix:@{}", "x".repeat(108)));
    assert_eq!(encode(&long, &mut out), Err(ProxyError::NameTooLong { bytes: 109 }));
    assert_eq!(out, b"before");
}

#[test]
fn other_protocols_are_refused_at_their_first_byte() {
    for (spoken, byte) in [(&b"GET / HTTP/1.1"[..], b'G'), (b"\x16\x03\x01", 0x16), (b"P", b'P')] {
        assert_eq!(parse(spoken), Err(ProxyError::NotProxy { offset: 0, byte }));
    }
    assert_eq!(parse(b"\r\n\r\nHELO"), Err(ProxyError::NotProxy { offset: 4, byte: b'H' }));
    assert_eq!(parse(b"PROXY TCP4 192.0.2.1"), Err(ProxyError::Version1));
}

#[test]
fn illegal_headers_are_refused_by_their_own_name() {
    let mut version_3 = raw(0, 0, &[]);
    version_3[12] = 0x30;
    assert_eq!(parse(&version_3), Err(ProxyError::Version(3)));
    assert_eq!(parse(&raw(2, 0x11, &[0; 12])), Err(ProxyError::Command(2)));
    assert_eq!(parse(&raw(1, 0x00, &[])), Err(ProxyError::ClientUnknown));
    for family in [0x10, 0x13, 0x01, 0x41, 0xff] {
        assert_eq!(parse(&raw(1, family, &[0; 216])), Err(ProxyError::Family(family)));
    }
    for (family, needed) in [(0x11, 12), (0x22, 36), (0x31, 216)] {
        let announced = needed - 1;
        assert_eq!(
            parse(&raw(1, family, &vec![0; announced])[..16]),
            Err(ProxyError::AddressesCut { announced, needed }),
            "refused before the addresses arrive"
        );
    }
}

#[test]
fn length_limit_is_exact_and_applies_before_the_bytes_arrive() {
    let longest = raw(0, 0, &[0; HEADER_BYTES_MAX - FIXED_BYTES]);
    assert_eq!(
        parse(&longest),
        Ok(Some(ParsedHeader { header: ProxyHeader::Local, consumed: HEADER_BYTES_MAX }))
    );
    let announced = HEADER_BYTES_MAX + 1;
    let longer = raw(0, 0, &[0; HEADER_BYTES_MAX - FIXED_BYTES + 1]);
    assert_eq!(parse(&longer[..16]), Err(ProxyError::TooLong { announced }));
}

#[test]
fn tlvs_are_skipped_and_must_end_with_the_header() {
    let header = proxy("192.0.2.1:1", "192.0.2.2:2");
    let addresses = &encoded(&header)[16..];
    let with = |tlvs: &[u8]| parse(&raw(1, 0x11, &[addresses, tlvs].concat()));
    assert_eq!(with(&[4, 0, 1, 0, 0x20, 0, 0]), Ok(Some(ParsedHeader { header, consumed: 35 })));
    for cut in [&[4][..], &[4, 0], &[4, 0, 1], &[4, 0xff, 0xff, 0]] {
        assert_eq!(with(cut), Err(ProxyError::TlvCut { offset: 28 }));
    }
    assert_eq!(with(&[4, 0, 0, 9]), Err(ProxyError::TlvCut { offset: 31 }));
}

#[test]
fn unix_names_of_full_length_and_of_no_text() {
    let full = format!("unix:/{}", "x".repeat(107));
    let header = proxy(&full, "unix:");
    assert_eq!(parse(&encoded(&header)), Ok(Some(ParsedHeader { header, consumed: 232 })));
    let mut body = [0; 216];
    body[1] = 0xff;
    assert_eq!(parse(&raw(1, 0x31, &body)), Err(ProxyError::AbstractName));
}

/// Bytes written out by hand from the format's text.
#[test]
fn a_verified_client_has_the_bytes_of_the_format() {
    let header = proxy("192.0.2.1:49153", "198.51.100.7:443");
    let certificate =
        ClientVerification { common_name: Some("alice".into()), is_of_connection: true };
    let tls = ProxyTls {
        version: "TLSv1.3".into(),
        cipher: "X".into(),
        alpn: Some("h2".into()),
        authority: Some("a.example".into()),
        certificate: Some(certificate),
    };
    let mut bytes = Vec::new();
    encode_with_tls(&header, &tls, &mut bytes).unwrap();
    assert_eq!(bytes[..14], encoded(&header)[..14]);
    assert_eq!(bytes[14..16], [0, 12 + 5 + 12 + 3 + 5 + 10 + 8 + 4]);
    let tlvs = b"\x01\0\x02h2\x02\0\x09a.example\x20\0\x1b\x07\0\0\0\0\
        \x21\0\x07TLSv1.3\x22\0\x05alice\x23\0\x01X";
    assert_eq!(bytes[28..], tlvs[..]);
    assert_eq!(parse(&bytes), Ok(Some(ParsedHeader { header, consumed: bytes.len() })));
}

#[test]
fn who_is_not_verified_has_no_name_and_no_sign_of_a_certificate() {
    let tls = ProxyTls {
        version: "TLSv1.2".into(),
        cipher: "Y".into(),
        alpn: None,
        authority: None,
        certificate: None,
    };
    let mut bytes = Vec::new();
    encode_with_tls(&proxy("192.0.2.1:1", "192.0.2.2:2"), &tls, &mut bytes).unwrap();
    let tlv = b"\x20\0\x13\x01\0\0\0\x01\x21\0\x07TLSv1.2\x23\0\x01Y";
    assert_eq!(bytes[28..], tlv[..]);
}

/// An independent parser of TLVs.
fn read_tlvs(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let [kind, high, low, rest @ ..] = bytes {
        let (value, after) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        found.push((*kind, value.to_vec()));
        bytes = after;
    }
    assert!(bytes.is_empty());
    found
}

fn client_tls() -> impl Strategy<Value = ProxyTls> {
    let text = "[ -~é]{0,600}";
    let certificate =
        (proptest::option::of(text), any::<bool>()).prop_map(|(common_name, is_of_connection)| {
            ClientVerification { common_name, is_of_connection }
        });
    let texts = (proptest::option::of(text), proptest::option::of(text));
    ("TLSv1\\.[23]", "[A-Z0-9_]{1,60}", texts, proptest::option::of(certificate)).prop_map(
        |(version, cipher, (alpn, authority), certificate)| ProxyTls {
            version,
            cipher,
            alpn,
            authority,
            certificate,
        },
    )
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical()),
    ]
}

fn inet() -> impl Strategy<Value = Address> {
    (ip(), any::<u16>()).prop_map(|(ip, port)| Address::Inet(SocketAddr::new(ip, port)))
}

fn unix() -> impl Strategy<Value = Address> {
    prop_oneof![
        Just(Address::Unnamed),
        "/[^\\x00]{0,26}".prop_map(|path| Address::Path(path.into())),
        "[^\\x00]{1,26}".prop_map(Address::Abstract),
    ]
}

fn header() -> impl Strategy<Value = ProxyHeader> {
    let proxied = |(source, destination)| ProxyHeader::Proxy { source, destination };
    prop_oneof![
        Just(ProxyHeader::Local),
        (inet(), inet()).prop_map(proxied),
        (unix(), unix()).prop_map(proxied),
    ]
}

proptest! {
    #[test]
    fn round_trip_at_every_split(header in header(), after in any::<[u8; 3]>()) {
        let mut bytes = encoded(&header);
        let length = bytes.len();
        bytes.extend_from_slice(&after);
        for end in 0..length {
            prop_assert_eq!(parse(&bytes[..end]), Ok(None));
        }
        for end in length..=bytes.len() {
            let parsed = ParsedHeader { header: header.clone(), consumed: length };
            prop_assert_eq!(parse(&bytes[..end]), Ok(Some(parsed)));
        }
    }

    #[test]
    fn tls_parameters_are_read_back_and_readers_of_addresses_are_not_bothered(
        header in (inet(), inet()), tls in client_tls(),
    ) {
        let header = ProxyHeader::Proxy { source: header.0, destination: header.1 };
        let mut bytes = Vec::new();
        encode_with_tls(&header, &tls, &mut bytes).unwrap();
        prop_assert!(bytes.len() <= HEADER_BYTES_MAX);
        let parsed = ParsedHeader { header: header.clone(), consumed: bytes.len() };
        prop_assert_eq!(parse(&bytes), Ok(Some(parsed)));
        let tlvs = read_tlvs(&bytes[encoded(&header).len()..]);
        let text = |list: &[(u8, Vec<u8>)], wanted| {
            let found = list.iter().find(|(kind, _)| *kind == wanted);
            found.map(|(_, value)| String::from_utf8(value.clone()).unwrap())
        };
        let sent = |text: &Option<String>| text.clone().filter(|t| t.len() <= VALUE_BYTES_MAX);
        prop_assert_eq!(text(&tlvs, 1), sent(&tls.alpn));
        prop_assert_eq!(text(&tlvs, 2), sent(&tls.authority));
        let (_, ssl) = tlvs.iter().find(|(kind, _)| *kind == 0x20).unwrap();
        let inner = read_tlvs(&ssl[5..]);
        prop_assert_eq!(text(&inner, 0x21), Some(tls.version));
        prop_assert_eq!(text(&inner, 0x23), Some(tls.cipher));
        let name = tls.certificate.as_ref().and_then(|one| sent(&one.common_name));
        prop_assert_eq!(text(&inner, 0x22), name);
        prop_assert_eq!(ssl[1..5] == [0; 4], tls.certificate.is_some());
        prop_assert_eq!(ssl[0] & 6 != 0, tls.certificate.is_some());
    }

    /// For any bytes: the parser does not panic, its result never changes when more bytes arrive,
    /// and it never waits for more bytes than the limit.
    #[test]
    fn arbitrary_bytes_get_one_lasting_verdict(
        magic in 0..=MAGIC.len(),
        tail in proptest::collection::vec(any::<u8>(), 0..300),
        plausible in any::<bool>(),
    ) {
        let mut bytes = MAGIC[..magic].to_vec();
        bytes.extend_from_slice(&tail);
        if plausible && bytes.len() > 15 {
            bytes[12] = 0x20 | (bytes[12] & 1);
            bytes[13] = ((bytes[13] % 3 + 1) << 4) | 1;
            bytes[14] = 0;
        }
        let mut settled = None;
        for end in 0..=bytes.len() {
            match (&settled, parse(&bytes[..end])) {
                (Some(before), now) => prop_assert_eq!(before, &now),
                (_, Ok(None)) => prop_assert!(end < HEADER_BYTES_MAX),
                (_, now) => settled = Some(now),
            }
        }
    }
}
