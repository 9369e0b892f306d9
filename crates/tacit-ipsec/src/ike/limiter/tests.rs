//! Tests how the IKE limiter handles the first requests of unknown senders. The tests cover the
//! limits, the cookies, and floods of requests.

use std::sync::Arc;

use super::*;
use crate::ike::connection::tests::config;
use crate::ike::crypto::TestRandom;
use crate::ike::{IkeConnection, IkeEvent, IkePath, IkeTransmit};

fn remote(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 4500))
}

fn full(now: Instant) -> IkeLimiter {
    let mut limiter = IkeLimiter::new(&mut TestRandom(1), now).unwrap();
    (0..COOKIES_FROM).for_each(|_| limiter.note_opened(remote(200).ip()));
    limiter
}

fn message(connection: &mut IkeConnection) -> Vec<u8> {
    match connection.poll_transmit() {
        Some(IkeTransmit::Message(bytes)) => bytes,
        other => panic!("{other:?}"),
    }
}

fn initiator(now: Instant) -> IkeConnection {
    let config = Arc::new(config("a.example", "b.example", [1, 2]));
    let path = IkePath { local: remote(1), remote: remote(2) };
    IkeConnection::initiate(config, path, Box::new(TestRandom(2)), now)
}

#[test]
fn a_peer_that_returns_its_cookie_is_accepted() {
    let now = Instant::now();
    let mut limiter = full(now);
    let mut peer = initiator(now);
    let check = |limiter: &mut IkeLimiter, bytes: &[u8], from, at| {
        limiter.check(at, from, bytes, &mut TestRandom(3)).unwrap()
    };
    let first = message(&mut peer);
    let FirstRequestDecision::Respond(demand) = check(&mut limiter, &first, remote(1), now) else {
        panic!("no cookie");
    };
    assert!(demand.len() < first.len());
    peer.handle_datagram(now, remote(2), &demand);
    // It waits a moment, because anyone can forge the demand.
    assert_eq!(peer.poll_transmit(), None);
    peer.handle_timeout(peer.poll_timeout().unwrap());
    let second = message(&mut peer);
    assert_eq!(check(&mut limiter, &second, remote(1), now), FirstRequestDecision::Accept);
    // The cookie is of no use to another address.
    let other = check(&mut limiter, &second, remote(3), now);
    assert!(matches!(other, FirstRequestDecision::Respond(_)));
    // It outlives one change of the secret, and not two.
    let later = now + SECRET_LIFETIME;
    assert_eq!(check(&mut limiter, &second, remote(1), later), FirstRequestDecision::Accept);
    let latest = later + SECRET_LIFETIME;
    let expired = check(&mut limiter, &second, remote(1), latest);
    assert!(matches!(expired, FirstRequestDecision::Respond(_)));
}

#[test]
fn half_open_connections_have_limits() {
    let now = Instant::now();
    let mut random = TestRandom(1);
    let first = message(&mut initiator(now));
    let mut limiter = IkeLimiter::new(&mut random, now).unwrap();
    let mut check =
        |limiter: &mut IkeLimiter| limiter.check(now, remote(1), &first, &mut random).unwrap();
    assert_eq!(check(&mut limiter), FirstRequestDecision::Accept);
    (0..HALF_OPEN_MAX).for_each(|_| limiter.note_opened(remote(1).ip()));
    assert_eq!(check(&mut limiter), FirstRequestDecision::Drop);
    (0..HALF_OPEN_MAX).for_each(|_| limiter.note_closed(remote(1).ip()));
    assert_eq!(check(&mut limiter), FirstRequestDecision::Accept);
    assert!(limiter.half_open.is_empty());
}

#[test]
fn refused_first_requests_lead_to_cookies_for_a_time() {
    let now = Instant::now();
    let mut random = TestRandom(1);
    let first = message(&mut initiator(now));
    let mut limiter = IkeLimiter::new(&mut random, now).unwrap();
    let check = |limiter: &mut IkeLimiter, at| {
        limiter.check(at, remote(1), &first, &mut TestRandom(3)).unwrap()
    };
    for _ in 0..COOKIES_FROM {
        assert_eq!(check(&mut limiter, now), FirstRequestDecision::Accept);
        limiter.note_refused(now);
    }
    let FirstRequestDecision::Respond(demand) = check(&mut limiter, now) else {
        panic!("no cookie");
    };
    let second = with_cookie(&first, &demand);
    let checked = limiter.check(now, remote(1), &second, &mut random).unwrap();
    assert_eq!(checked, FirstRequestDecision::Accept);
    let later = now + REFUSED_COUNTED;
    assert_eq!(check(&mut limiter, later), FirstRequestDecision::Accept);
}

#[test]
fn other_messages_are_dropped() {
    let now = Instant::now();
    let mut limiter = full(now);
    for bytes in [&[][..], &[0; 28], &[0xff; 200]] {
        let decision = limiter.check(now, remote(1), bytes, &mut TestRandom(3)).unwrap();
        assert_eq!(decision, FirstRequestDecision::Drop);
    }
}

#[test]
fn addresses_of_one_ipv6_network_count_as_one() {
    let now = Instant::now();
    let mut limiter = full(now);
    let mut peer = initiator(now);
    let first = message(&mut peer);
    let at = |text: &str| SocketAddr::new(text.parse().unwrap(), 4500);
    let check = |limiter: &mut IkeLimiter, from: SocketAddr| {
        let FirstRequestDecision::Respond(demand) =
            limiter.check(now, from, &first, &mut TestRandom(3)).unwrap()
        else {
            panic!("no cookie");
        };
        let second = with_cookie(&first, &demand);
        limiter.check(now, from, &second, &mut TestRandom(3)).unwrap()
    };
    (0..HALF_OPEN_OF_ADDRESS_MAX).for_each(|_| limiter.note_opened(at("2001:db8::1").ip()));
    assert_eq!(check(&mut limiter, at("2001:db8::2")), FirstRequestDecision::Replace);
    assert_eq!(check(&mut limiter, at("2001:db8:0:1::2")), FirstRequestDecision::Accept);
    limiter.note_closed(at("2001:db8::3").ip());
    assert_eq!(check(&mut limiter, at("2001:db8::2")), FirstRequestDecision::Accept);
}

#[test]
fn a_first_request_has_a_limit_of_bytes() {
    let now = Instant::now();
    let mut limiter = IkeLimiter::new(&mut TestRandom(1), now).unwrap();
    let first = message(&mut initiator(now));
    let mut request = IkeMessage::parse(&first).unwrap();
    let room = FIRST_REQUEST_BYTES_MAX - first.len() - 4;
    for (bytes, decision) in
        [(room, FirstRequestDecision::Accept), (room + 1, FirstRequestDecision::Drop)]
    {
        request.payloads.push(IkePayload::VendorId(vec![0; bytes]));
        let long = encode_message(&request.header, &request.payloads);
        request.payloads.pop();
        let checked = limiter.check(now, remote(1), &long, &mut TestRandom(3)).unwrap();
        assert_eq!(checked, decision);
    }
}

/// A million first requests in ten seconds. Every tenth sender returns its cookie, so it does
/// not forge its address.
#[test]
fn a_flood_of_a_million_requests_leaves_memory_and_room_for_a_real_peer() {
    let mut now = Instant::now();
    let mut random = TestRandom(1);
    let mut limiter = IkeLimiter::new(&mut random, now).unwrap();
    let template = message(&mut initiator(now));
    let mut opened: Vec<(IpAddr, IkeConnection)> = Vec::new();
    let mut demands = 0;
    for number in 0..FLOOD_REQUESTS {
        now += Duration::from_micros(10);
        let [_, high, low, last] = (number % 1_000_000).to_be_bytes();
        let port = 1024 + u16::try_from(number / 50 % 20_000).unwrap();
        let host = u8::try_from(number % 50).unwrap();
        let from = SocketAddr::from(([198, 51, 100, host], port));
        let mut request = template.clone();
        request[4..8].copy_from_slice(&[high, low, last, host]);
        let mut decision = limiter.check(now, from, &request, &mut random).unwrap();
        if let FirstRequestDecision::Respond(demand) = &decision {
            demands += 1;
            assert!(demand.len() < request.len());
            if number % 10 != 0 {
                continue;
            }
            request = with_cookie(&request, demand);
            decision = limiter.check(now, from, &request, &mut random).unwrap();
        }
        if decision == FirstRequestDecision::Accept {
            opened.push((from.ip(), accept(&request, from, now)));
            limiter.note_opened(from.ip());
        }
        assert!(limiter.half_open.len() <= 50 && limiter.total == opened.len());
    }
    // Only the first ones needed no cookie, and each address has a share of the limit.
    assert_eq!(demands, FLOOD_REQUESTS - u32::try_from(COOKIES_FROM).unwrap());
    assert!(opened.len() <= 50 * HALF_OPEN_OF_ADDRESS_MAX, "{}", opened.len());
    const { assert!(50 * HALF_OPEN_OF_ADDRESS_MAX < HALF_OPEN_MAX) };

    // A peer that was never seen needs a cookie too, and then opens its connection.
    let mut peer = initiator(now);
    let first = message(&mut peer);
    let FirstRequestDecision::Respond(demand) =
        limiter.check(now, remote(1), &first, &mut random).unwrap()
    else {
        panic!("no cookie");
    };
    peer.handle_datagram(now, remote(2), &demand);
    peer.handle_timeout(peer.poll_timeout().unwrap());
    let second = message(&mut peer);
    let decision = limiter.check(now, remote(1), &second, &mut random).unwrap();
    assert_eq!(decision, FirstRequestDecision::Accept);
    let mut responder = accept(&second, remote(1), now);
    peer.handle_datagram(now, remote(2), &message(&mut responder));
    responder.handle_datagram(now, remote(1), &message(&mut peer));
    peer.handle_datagram(now, remote(2), &message(&mut responder));
    let is_established = |event| matches!(event, Some(IkeEvent::Established { .. }));
    assert!(is_established(peer.poll_event()) && is_established(responder.poll_event()));

    // Those that never send AUTH end, and their room is free again.
    now += Duration::from_secs(31);
    for (address, mut connection) in opened {
        connection.handle_timeout(now);
        assert!(connection.has_ended());
        limiter.note_closed(address);
    }
    assert_eq!((limiter.total, limiter.half_open.len()), (0, 0));
}

/// The request as its sender repeats it with the cookie.
fn with_cookie(request: &[u8], demand: &[u8]) -> Vec<u8> {
    let cookie = IkeMessage::parse(demand).unwrap().payloads;
    let request = IkeMessage::parse(request).unwrap();
    encode_message(&request.header, &[cookie, request.payloads].concat())
}

fn accept(request: &[u8], from: SocketAddr, now: Instant) -> IkeConnection {
    let config = Arc::new(config("b.example", "a.example", [2, 1]));
    let path = IkePath { local: remote(2), remote: from };
    IkeConnection::accept(&[config], path, Box::new(TestRandom(5)), now, request).unwrap()
}

const FLOOD_REQUESTS: u32 = 1_000_000;
