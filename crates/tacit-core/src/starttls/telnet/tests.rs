use proptest::prelude::*;

use super::*;
use crate::policy::StarttlsProtocol;
use crate::starttls::StarttlsRole;
use crate::starttls::testing::{Stage, refusal};

const ASKS: [u8; 3] = [IAC, DO, START_TLS];
const AGREES: [u8; 3] = [IAC, WILL, START_TLS];
const DECLINES: [u8; 3] = [IAC, WONT, START_TLS];
const TERMINAL: [u8; 3] = [IAC, WILL, 24];

fn server(mode: StarttlsMode) -> Stage {
    Stage::new(StarttlsProtocol::Telnet, mode, StarttlsRole::Server)
}

fn client() -> Stage {
    Stage::new(StarttlsProtocol::Telnet, StarttlsMode::Required, StarttlsRole::Client)
}

#[test]
fn a_client_that_agrees_gets_tls_at_every_split() {
    let said = [&TERMINAL[..], &AGREES, &TLS_FOLLOWS, b"\x16\x03\x01"].concat();
    for cut in 0..=said.len() {
        let mut stage = server(StarttlsMode::Required);
        assert_eq!(stage.to_peer, ASKS);
        stage.to_peer.clear();
        // The client sends its FOLLOWS when it has received ours, and the handshake after it.
        assert_eq!(
            stage.send_split(StarttlsSide::Peer, &said, &[cut.min(said.len() - 3)]),
            StarttlsStep::Handshake
        );
        assert_eq!(stage.to_peer, TLS_FOLLOWS);
        assert!(b"\x16\x03\x01".starts_with(&stage.exchange.take_input()));
        assert_eq!(stage.secure(), StarttlsStep::Relay);
        assert_eq!(stage.to_program, b"", "options are negotiated again under TLS");
    }
}

#[test]
fn required_refuses_who_declines_with_a_line_of_text() {
    let mut stage = server(StarttlsMode::Required);
    assert_eq!(refusal(&stage.send(StarttlsSide::Peer, DECLINES)), &StarttlsError::InClear);
    assert!(String::from_utf8_lossy(&stage.to_peer).contains("only TLS connections"));
}

#[test]
fn optional_relays_the_earlier_bytes_of_a_client_in_clear() {
    let said = [&TERMINAL[..], b"hi\xff\xff", &DECLINES, b"there"].concat();
    for cut in 0..=said.len() {
        let mut stage = server(StarttlsMode::Optional);
        assert_eq!(stage.send_split(StarttlsSide::Peer, &said, &[cut]), StarttlsStep::Relay);
        assert_eq!(stage.to_program, [&TERMINAL[..], b"hi\xff\xffthere"].concat());
    }
}

#[test]
fn what_is_out_of_turn_is_refused() {
    for said in [
        &TLS_FOLLOWS[..],
        &[&AGREES[..], &DECLINES].concat(),
        &[&AGREES[..], &[IAC, SB, START_TLS, 7, IAC, SE]].concat(),
    ] {
        let step = server(StarttlsMode::Optional).send(StarttlsSide::Peer, said);
        assert!(
            matches!(refusal(&step), StarttlsError::ProtocolViolation(StarttlsSide::Peer, _)),
            "{said:?}"
        );
    }
    for said in [vec![b'x'; HELD_BYTES_MAX + 1], [vec![IAC, SB], vec![1; 600]].concat()] {
        let step = server(StarttlsMode::Optional).send(StarttlsSide::Peer, said);
        assert!(matches!(refusal(&step), StarttlsError::TooLong(StarttlsSide::Peer, _)));
    }
}

#[test]
fn a_program_is_taken_to_tls_at_every_split() {
    let options = [IAC, DO, 24, IAC, WILL, 3, IAC, 241];
    let said = [&options[..], &ASKS, &TLS_FOLLOWS].concat();
    for cut in 0..=said.len() {
        let mut stage = client();
        stage.send(StarttlsSide::Program, TERMINAL);
        assert_eq!(stage.send_split(StarttlsSide::Peer, &said, &[cut]), StarttlsStep::Handshake);
        let refused = [IAC, WONT, 24, IAC, DONT, 3];
        assert_eq!(stage.to_peer, [&refused[..], &AGREES, &TLS_FOLLOWS].concat());
        stage.to_peer.clear();
        assert_eq!(stage.secure(), StarttlsStep::Relay);
        assert_eq!(stage.to_peer, TERMINAL);
        assert_eq!(stage.to_program, b"");
    }
}

#[test]
fn a_server_that_continues_in_clear_is_rejected_and_receives_no_byte() {
    for said in [&b"login: "[..], &[IAC, WONT, START_TLS], b"\xff\xff", b"\r\n"] {
        let mut stage = client();
        stage.send(StarttlsSide::Program, b"root\r\nsecret\r\n");
        let step = stage.send(StarttlsSide::Peer, said);
        assert!(matches!(refusal(&step), StarttlsError::NotOffered(_)), "{said:?}");
        assert_eq!(stage.to_peer, b"");
    }
    let mut stage = client();
    let step = stage.send(StarttlsSide::Peer, b"login: ");
    assert!(matches!(refusal(&step), StarttlsError::NotOffered(said) if said.contains("login:")));
    assert!(stage.program_received().starts_with("tacit: the server does not offer TLS"));
}

#[test]
fn what_a_server_sends_behind_follows_is_refused() {
    let mut stage = client();
    let step = stage.send(StarttlsSide::Peer, [&ASKS[..], &TLS_FOLLOWS, b"login: "].concat());
    assert_eq!(refusal(&step), &StarttlsError::ExtraData(StarttlsSide::Peer));
    let options = [IAC, DO, 24].repeat(OPTIONS_MAX + 1);
    assert!(matches!(
        refusal(&client().send(StarttlsSide::Peer, options)),
        StarttlsError::TooLong(..)
    ));
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(ASKS.to_vec()),
        Just(AGREES.to_vec()),
        Just(DECLINES.to_vec()),
        Just(TLS_FOLLOWS.to_vec()),
        Just(TERMINAL.to_vec()),
        proptest::collection::vec(prop_oneof![Just(IAC), Just(SB), Just(SE), any::<u8>()], 0..9),
    ]
}

proptest! {
    #[test]
    fn required_passes_nothing_before_tls(
        said in proptest::collection::vec((any::<bool>(), piece()), 0..12),
        is_server: bool,
    ) {
        let mut stage = if is_server { server(StarttlsMode::Required) } else { client() };
        for (from_peer, bytes) in said {
            let from = if from_peer { StarttlsSide::Peer } else { StarttlsSide::Program };
            let step = stage.send(from, bytes);
            prop_assert_ne!(step, StarttlsStep::Relay);
            if is_server {
                prop_assert!(stage.to_program.is_empty());
            }
        }
        // Sent to a server: refusals of options, and START_TLS.
        if !is_server {
            prop_assert!(stage.to_peer.is_empty() || stage.to_peer[0] == IAC);
        }
    }

    #[test]
    fn a_stream_reads_the_same_in_any_pieces(
        pieces in proptest::collection::vec(piece(), 0..8),
        cuts in proptest::collection::btree_set(0..60_usize, 0..10),
    ) {
        let said = pieces.concat();
        let run = |cuts: &[usize]| {
            let mut stage = server(StarttlsMode::Optional);
            let step = stage.send_split(StarttlsSide::Peer, &said, cuts);
            (step, stage.to_peer, stage.to_program)
        };
        let whole = run(&[]);
        let cut = run(&cuts.into_iter().collect::<Vec<_>>());
        // After the beginning of a handshake, the amount of input does not matter.
        prop_assert_eq!(&whole.0, &cut.0);
        prop_assert_eq!(&whole.1, &cut.1);
    }
}
