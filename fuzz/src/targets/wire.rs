//! Fuzzes the parsers of small network formats: PROXY protocol, DNS, SYN packets, ICMP, and
//! requests of programs about their connections.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use tacit_core::held::{HEADERS_BYTES_MAX, Syn};
use tacit_core::learn::SeenPacket;
use tacit_core::{dns, icmp, proxy_protocol, query};

/// A PROXY protocol header at the start of a connection.
pub(crate) fn proxy_protocol(input: &[u8]) {
    match proxy_protocol::parse(input) {
        Ok(None) => {}
        Ok(Some(proxy_protocol::ParsedHeader { header, consumed })) => {
            assert!(consumed <= input.len().min(proxy_protocol::HEADER_BYTES_MAX));
            let mut again = Vec::new();
            let encoded = proxy_protocol::encode(&header, &mut again);
            assert_eq!(encoded, Ok(()), "a parsed header must be encodable");
            let parsed = proxy_protocol::ParsedHeader { header, consumed: again.len() };
            assert_eq!(proxy_protocol::parse(&again), Ok(Some(parsed)));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A DNS message, parsed as a query, as the response to its own or another question, and converted
/// for a program.
pub(crate) fn dns(input: &[u8]) {
    let question = dns::question(input).ok();
    let refused = dns::refuse(input, dns::ResponseCode::Refused);
    assert!(question.is_none() || refused.is_some(), "tacit cannot refuse a valid question");
    if let (Some(question), Some(refused)) = (&question, &refused) {
        assert!(dns::is_refusal(refused));
        // The parser of answers does not support this type.
        assert!(dns::answers(refused, question).map_or(true, |found| found.is_empty()));
    }
    if let Ok(query) = dns::Query::read(input) {
        let refused = query.refused(dns::ResponseCode::Refused);
        let bytes_max = query.datagram_bytes_max();
        let written = dns::for_program(&refused, &query, bytes_max);
        assert_eq!(written.as_ref(), Some(&refused), "a refusal is a response");
        converted(input, &query);
    }
    converted(input, &ASKED);
    let requested = dns::DnsQuestion { name: "db.example".into(), kind: 1, class: 1 };
    let _ = dns::answers(input, &requested);
    let _ = dns::is_truncated(input);
}

/// A query without EDNS for the question that most seeds answer.
static ASKED: LazyLock<dns::Query> = LazyLock::new(|| {
    let query = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x02db\x07example\0\0\x01\0\x01";
    dns::Query::read(query).unwrap_or_else(|error| panic!("the target's query is invalid: {error}"))
});

/// Checks that a response for a program fits, and that converting it again changes nothing.
fn converted(response: &[u8], query: &dns::Query) {
    let bytes_max = query.datagram_bytes_max();
    let Some(written) = dns::for_program(response, query, bytes_max) else { return };
    assert!(written.len() <= bytes_max && written.starts_with(&query.id.to_be_bytes()));
    assert_eq!(dns::for_program(&written, query, bytes_max).as_ref(), Some(&written));
}

/// The bytes of a program over TCP: consecutive messages.
pub(crate) fn dns_stream(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some(dns::Framed { message, consumed })) = dns::next_message(rest) {
        assert_eq!(dns::framed(message).as_deref(), rest.get(..consumed));
        rest = rest.get(consumed..).unwrap_or_default();
    }
}

/// The files /etc/hosts and /etc/resolv.conf.
pub(crate) fn dns_files(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let hosts = dns::hosts(&text);
    assert!(hosts.len() <= dns::HOSTS_MAX && hosts.iter().all(|host| !host.name.contains(' ')));
    let read = dns::ResolverConfig::read(&text);
    assert!((1..=dns::NAMESERVERS_MAX).contains(&read.nameservers.len()));
}

/// A copy of a program's packet, as the kernel makes it.
pub(crate) fn syn(input: &[u8]) {
    let seen = SeenPacket::parse(input);
    let Some(syn) = Syn::parse(input) else { return };
    let has_ports = [syn.key.program, syn.key.destination].iter().all(|end| end.port() != 0);
    let opened = has_ports.then_some(SeenPacket::Opened(syn.key));
    assert_eq!(seen, opened, "every SYN with ports opens a connection");
    let released = syn.released();
    assert!(released.len() <= HEADERS_BYTES_MAX, "a released SYN must have no data");
    let again = Syn::parse(&released).expect("a released SYN must parse as a SYN");
    assert_eq!((again.key, again.sequence), (syn.key, syn.sequence));
    assert_eq!(Syn::parse(&syn.reset()), None, "a reset must not parse as a SYN");
    assert!(syn.unreachable(icmp::IcmpError::NetUnreachable).is_some());
}

/// The first bytes select an error; the rest is the datagram that caused it.
pub(crate) fn icmp(input: &[u8]) {
    let Some((&[kind, code, v6, a, b], payload)) = input.split_first_chunk::<5>() else { return };
    let (program, server): (IpAddr, IpAddr) = match v6 & 1 {
        0 => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into()),
        _ => (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::from([0xff; 16]).into()),
    };
    let info = u32::from_be_bytes([0, 0, a, b]);
    let read = |kind, code| match v6 & 1 {
        0 => icmp::IcmpError::from_icmp(kind, code, info),
        _ => icmp::IcmpError::from_icmpv6(kind, code, info),
    };
    let Some(cause) = read(kind, code) else { return };
    let sent = icmp::SentDatagram {
        source: SocketAddr::new(program, u16::from(a)),
        destination: SocketAddr::new(server, u16::from(b)),
        payload,
    };
    let packet = icmp::error(cause, sent, server).unwrap_or_default();
    assert!(packet.len() <= icmp::PACKET_BYTES_MAX);
    let message = packet.get(if v6 & 1 == 0 { 20 } else { 40 }..).unwrap_or_default();
    let again = message.first_chunk::<2>().and_then(|&[kind, code]| read(kind, code));
    assert_eq!(again, Some(cause), "the ICMP error must parse as the same error");
}

/// A request of a program at its query socket.
pub(crate) fn query(input: &[u8]) {
    match query::QueryRequest::parse(input) {
        Ok(question) => {
            let word = question.word().as_bytes();
            let rest = input.strip_prefix(word);
            assert!(
                rest.is_some_and(|rest| rest.is_empty() || rest == b"\n"),
                "no bytes may follow"
            );
        }
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
}
