use proptest::prelude::*;

use super::*;
use crate::policy::{PostgresOptions, StarttlsProtocol};
use crate::starttls::StarttlsRole;
use crate::starttls::testing::{Stage, refusal};

const STARTUP: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0a\0\0";
const CANCEL: &[u8] = b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02";

/// A cancel request that declares this length, with a matching key.
fn cancel_of(length: u16) -> Vec<u8> {
    let [high, low] = length.to_be_bytes();
    let mut message = vec![0, 0, high, low, 0x04, 0xd2, 0x16, 0x2e, 0, 0, 0, 1];
    message.resize(usize::from(length).max(message.len()), 7);
    message
}

fn server(mode: StarttlsMode) -> Stage {
    Stage::new(StarttlsProtocol::Postgres(PostgresOptions::default()), mode, StarttlsRole::Server)
}

/// A server whose rule forwards cancel requests.
fn cancelling() -> Stage {
    let postgres = PostgresOptions { cancel: Cancel::Clear };
    Stage::new(StarttlsProtocol::Postgres(postgres), StarttlsMode::Required, StarttlsRole::Server)
}

fn client() -> Stage {
    let protocol = StarttlsProtocol::Postgres(PostgresOptions::default());
    Stage::new(protocol, StarttlsMode::Required, StarttlsRole::Client)
}

#[test]
fn a_client_that_asks_gets_tls_at_every_split() {
    for cut in 0..=16 {
        let mut stage = server(StarttlsMode::Required);
        stage.send_split(StarttlsSide::Peer, &GSS_REQUEST, &[cut.min(8)]);
        assert_eq!(stage.to_peer, b"N");
        let step = stage.send_split(StarttlsSide::Peer, &SSL_REQUEST, &[cut.saturating_sub(8)]);
        assert_eq!(step, StarttlsStep::Handshake);
        assert_eq!(stage.to_peer, b"NS");
        assert_eq!(stage.exchange.take_input(), b"");
        assert_eq!(stage.secure(), StarttlsStep::Relay);
        assert_eq!(stage.to_program, b"");
    }
}

#[test]
fn what_stands_behind_the_request_is_refused() {
    for request in [SSL_REQUEST, GSS_REQUEST] {
        let mut stage = server(StarttlsMode::Required);
        let step = stage.send(StarttlsSide::Peer, [&request, STARTUP].concat());
        assert_eq!(refusal(&step), &StarttlsError::ExtraData(StarttlsSide::Peer));
        assert_eq!(stage.to_peer, b"");
    }
}

#[test]
fn direct_tls_is_left_to_the_handshake() {
    let mut stage = server(StarttlsMode::Required);
    assert_eq!(
        stage.send(StarttlsSide::Peer, b"\x16\x03\x01\x02\x00\x01"),
        StarttlsStep::Handshake
    );
    assert_eq!(stage.exchange.take_input(), b"\x16\x03\x01\x02\x00\x01");
    assert_eq!(stage.to_peer, b"");
}

#[test]
fn direct_tls_alone_must_agree_on_the_application_protocol() {
    for mode in [StarttlsMode::Required, StarttlsMode::Optional] {
        let mut direct = server(mode);
        assert_eq!(direct.send(StarttlsSide::Peer, b"\x16"), StarttlsStep::Handshake);
        assert_eq!(direct.exchange.required_alpn(), Some("postgresql"));
        let mut asked = server(mode);
        assert_eq!(asked.send(StarttlsSide::Peer, SSL_REQUEST), StarttlsStep::Handshake);
        assert_eq!(asked.exchange.required_alpn(), None);
    }
    let mut client = client();
    client.send(StarttlsSide::Peer, b"S");
    assert_eq!(client.send(StarttlsSide::Program, STARTUP), StarttlsStep::Handshake);
    assert_eq!(client.exchange.required_alpn(), None);
}

/// The bytes that a program may receive in clear if TLS is required: one cancel request, and
/// nothing else.
#[test]
fn a_cancel_request_passes_alone_where_the_rule_says_so_at_every_split() {
    for cuts in 0..1_u32 << (CANCEL.len() - 1) {
        // Every way of splitting would take long; at most two splits show all states.
        if cuts.count_ones() > 2 {
            continue;
        }
        let cuts: Vec<usize> = (1..CANCEL.len()).filter(|at| cuts & (1 << (at - 1)) != 0).collect();
        let mut stage = cancelling();
        assert_eq!(
            stage.send_split(StarttlsSide::Peer, CANCEL, &cuts),
            StarttlsStep::Deliver,
            "{cuts:?}"
        );
        assert_eq!(stage.to_program, CANCEL);
        // Neither end is read any more, so nothing else can be forwarded.
        for side in [StarttlsSide::Peer, StarttlsSide::Program] {
            assert!(!stage.exchange.has_room(side));
        }
        stage.exchange.handle_input(StarttlsSide::Peer, STARTUP);
        stage.exchange.handle_input(StarttlsSide::Program, b"R");
        assert_eq!(stage.next_step(), StarttlsStep::Deliver);
        assert_eq!((&stage.to_peer[..], &stage.to_program[..]), (&b""[..], CANCEL));
    }
    // Protocol 3.2 has longer keys: 32 bytes in PostgreSQL 18, 256 at most.
    for length in [44, 268] {
        let message = cancel_of(length);
        for cut in 0..message.len() {
            let mut stage = cancelling();
            let step = stage.send_split(StarttlsSide::Peer, &message, &[cut]);
            assert_eq!(step, StarttlsStep::Deliver, "{length} cut at {cut}");
            assert_eq!(stage.to_program, message);
        }
    }
    for short in 0..CANCEL.len() {
        let mut stage = cancelling();
        assert_eq!(stage.send(StarttlsSide::Peer, &CANCEL[..short]), StarttlsStep::Wait);
        stage.exchange.handle_eof(StarttlsSide::Peer);
        assert_eq!(refusal(&stage.next_step()), &StarttlsError::Closed(StarttlsSide::Peer));
        assert_eq!(stage.to_program, b"");
    }
}

#[test]
fn what_is_no_cancel_request_alone_does_not_pass() {
    let [shorter, longer] = [15, 269].map(cancel_of);
    let behind = [&cancel_of(44)[..], b"Q"].concat();
    for said in [[CANCEL, b"Q"].concat(), [CANCEL, CANCEL].concat(), behind, longer, shorter] {
        let mut stage = cancelling();
        let step = stage.send(StarttlsSide::Peer, &said);
        assert!(
            matches!(refusal(&step), StarttlsError::ProtocolViolation(StarttlsSide::Peer, _)),
            "{said:?}"
        );
        assert_eq!(stage.to_program, b"");
    }
    let mut stage = cancelling();
    assert_eq!(refusal(&stage.send(StarttlsSide::Peer, STARTUP)), &StarttlsError::InClear);
    assert_eq!(stage.to_program, b"");
}

#[test]
fn a_client_in_clear_receives_the_reason_and_no_byte_of_it_passes() {
    let mut stage = server(StarttlsMode::Required);
    assert_eq!(refusal(&stage.send(StarttlsSide::Peer, STARTUP)), &StarttlsError::InClear);
    assert!(stage.to_peer.starts_with(b"E\0\0\0"), "{:?}", stage.to_peer);
    let length = usize::from(stage.to_peer[4]);
    assert_eq!(stage.to_peer.len(), length + 1);
    assert!(stage.to_program.is_empty());
    let mut stage = server(StarttlsMode::Required);
    assert_eq!(refusal(&stage.send(StarttlsSide::Peer, CANCEL)), &StarttlsError::CancelInClear);
    assert!(stage.to_peer.is_empty() && stage.to_program.is_empty());
}

#[test]
fn optional_lets_it_continue_in_clear() {
    for message in [STARTUP, CANCEL] {
        let mut stage = server(StarttlsMode::Optional);
        assert_eq!(stage.send(StarttlsSide::Peer, message), StarttlsStep::Relay);
        assert_eq!(stage.to_program, message);
    }
}

#[test]
fn something_else_is_refused_by_its_first_bytes() {
    let mut stage = server(StarttlsMode::Optional);
    let step = stage.send(StarttlsSide::Peer, b"GET ");
    assert!(matches!(refusal(&step), StarttlsError::ProtocolViolation(StarttlsSide::Peer, _)));
}

#[test]
fn the_program_starts_up_under_tls_whatever_it_asks_for_first() {
    for asks in [&[][..], &[GSS_REQUEST], &[SSL_REQUEST], &[GSS_REQUEST, SSL_REQUEST]] {
        for answer_first in [true, false] {
            let mut stage = client();
            assert_eq!(stage.to_peer, SSL_REQUEST);
            if answer_first {
                assert_eq!(stage.send(StarttlsSide::Peer, b"S"), StarttlsStep::Wait);
            }
            for ask in asks {
                assert_eq!(stage.send(StarttlsSide::Program, ask), StarttlsStep::Wait);
            }
            assert_eq!(stage.to_program, vec![b'N'; asks.len()]);
            stage.send(StarttlsSide::Program, STARTUP);
            if !answer_first {
                assert_eq!(stage.send(StarttlsSide::Peer, b"S"), StarttlsStep::Handshake);
            }
            stage.to_peer.clear();
            assert_eq!(stage.secure(), StarttlsStep::Relay);
            assert_eq!(stage.to_peer, STARTUP);
        }
    }
}

#[test]
fn a_request_to_cancel_goes_under_tls_too() {
    let mut stage = client();
    stage.send(StarttlsSide::Peer, b"S");
    assert_eq!(stage.send(StarttlsSide::Program, CANCEL), StarttlsStep::Handshake);
    stage.to_peer.clear();
    assert_eq!(stage.secure(), StarttlsStep::Relay);
    assert_eq!(stage.to_peer, CANCEL);
}

#[test]
fn a_server_without_tls_gets_no_startup_message() {
    for answer in [&b"N"[..], b"EFATAL: what is that", b"N and more"] {
        let mut stage = client();
        assert_eq!(stage.send(StarttlsSide::Peer, answer), StarttlsStep::Wait);
        let step = stage.send(StarttlsSide::Program, STARTUP);
        assert!(matches!(refusal(&step), StarttlsError::NotOffered(_)), "{step:?}");
        assert_eq!(stage.to_peer, SSL_REQUEST);
        assert!(stage.to_program.starts_with(b"E\0\0\0"));
    }
}

#[test]
fn what_a_server_sends_behind_its_answer_is_refused() {
    let mut stage = client();
    let step = stage.send(StarttlsSide::Peer, b"SR\0\0\0\x08\0\0\0\0");
    assert_eq!(refusal(&step), &StarttlsError::ExtraData(StarttlsSide::Peer));
    let mut stage = client();
    stage.send(StarttlsSide::Peer, b"S");
    assert_eq!(
        refusal(&stage.send(StarttlsSide::Peer, b"R")),
        &StarttlsError::ExtraData(StarttlsSide::Peer)
    );
}

#[test]
fn a_failed_handshake_is_reported_in_the_protocol() {
    let mut stage = client();
    stage.send(StarttlsSide::Peer, b"S");
    assert_eq!(stage.send(StarttlsSide::Program, STARTUP), StarttlsStep::Handshake);
    stage.exchange.handshake_failed();
    assert!(stage.exchange.take_output(StarttlsSide::Program).starts_with(b"E"));
}

#[test]
fn an_end_before_tls_is_an_end() {
    for (mut stage, side) in
        [(server(StarttlsMode::Optional), StarttlsSide::Peer), (client(), StarttlsSide::Peer)]
    {
        stage.exchange.handle_eof(side);
        assert_eq!(refusal(&stage.next_step()), &StarttlsError::Closed(side));
    }
}

proptest! {
    #[test]
    fn no_startup_message_passes_before_tls(
        said in proptest::collection::vec((any::<bool>(), piece()), 0..8),
        is_server: bool,
        cancels: bool,
    ) {
        let mut stage = match (is_server, cancels) {
            (true, true) => cancelling(),
            (true, false) => server(StarttlsMode::Required),
            (false, _) => client(),
        };
        for (from_peer, bytes) in said {
            let from = if from_peer { StarttlsSide::Peer } else { StarttlsSide::Program };
            let step = stage.send(from, bytes);
            let clear_target = if is_server { &stage.to_program } else { &stage.to_peer };
            if is_server && cancels && step == StarttlsStep::Deliver {
                let length = message_length(clear_target).map(|length| length as usize);
                prop_assert_eq!(length, Some(clear_target.len()));
                prop_assert_eq!(clear_target.get(4..8), Some(&CANCEL_REQUEST_CODE[..]));
                prop_assert!(CANCEL_REQUEST_BYTES.contains(&clear_target.len()));
                continue;
            }
            let legal: &[u8] = if is_server { b"" } else { &SSL_REQUEST };
            prop_assert_eq!(&clear_target[..], legal);
        }
    }
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(SSL_REQUEST.to_vec()),
        Just(GSS_REQUEST.to_vec()),
        Just(STARTUP.to_vec()),
        Just(CANCEL.to_vec()),
        (12..300_u16).prop_map(cancel_of),
        Just(b"S".to_vec()),
        Just(b"N".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ]
}
