//! Fuzzes the STARTTLS exchange of each protocol, for both roles.
//!
//! The first byte of the input selects the role and the mode. The rest is a sequence of pieces. The
//! first byte of a piece encodes the sender and the length. The sender sends the other bytes of the
//! piece. For any input, these statements must be true:
//!
//! * Before TLS, no byte that the rule protects is forwarded.
//! * A side receives no more bytes than the other side has sent, plus a limited number of bytes
//!   from tacit itself.
//! * A second call of `next_step` returns the same step.

use std::net::Ipv4Addr;

use tacit_core::policy::{
    Cancel, FtpOptions, PostgresOptions, Starttls, StarttlsMode, StarttlsProtocol,
};
use tacit_core::starttls::ftp::ControlAddresses;
use tacit_core::starttls::{StarttlsExchange, StarttlsRole, StarttlsSide, StarttlsStep};

pub(crate) fn postgres(input: &[u8]) {
    let cancels = input.first().is_some_and(|choice| choice & 0x80 != 0);
    let cancel = if cancels { Cancel::Clear } else { Cancel::Refuse };
    run(StarttlsProtocol::Postgres(PostgresOptions { cancel }), input)
}

pub(crate) fn smtp(input: &[u8]) {
    run(StarttlsProtocol::Smtp, input)
}

pub(crate) fn telnet(input: &[u8]) {
    run(StarttlsProtocol::Telnet, input)
}

pub(crate) fn ftp(input: &[u8]) {
    let implicit = input.first().is_some_and(|choice| choice & 0x80 != 0);
    run(StarttlsProtocol::Ftp(FtpOptions { implicit, ..FtpOptions::default() }), input)
}

/// Bytes that tacit may send itself, per received byte and in total: a reply for each empty line.
const ANSWER_BYTES_MAX: usize = 64;
const WORDS_BYTES_MAX: usize = 1024;
/// The request code of a PostgreSQL CancelRequest, after its length.
const CANCEL_REQUEST: [u8; 4] = [0x04, 0xd2, 0x16, 0x2e];

fn run(protocol: StarttlsProtocol, input: &[u8]) {
    let Some((choice, mut rest)) = input.split_first() else { return };
    let (role, mode) = match choice % 3 {
        0 => (StarttlsRole::Server, StarttlsMode::Required),
        1 => (StarttlsRole::Server, StarttlsMode::Optional),
        _ => (StarttlsRole::Client, StarttlsMode::Required),
    };
    let mut exchange = StarttlsExchange::new(&Starttls { protocol: protocol.clone(), mode }, role);
    let here = Some(Ipv4Addr::LOCALHOST.into());
    exchange.set_addresses(ControlAddresses { peer: here, program: here });
    let mut received = [Vec::new(), Vec::new()];
    take(&mut exchange, &mut received);
    let mut is_secure = false;
    let mut sent = 0;
    while let Some((&head, tail)) = rest.split_first() {
        let (piece, tail) = tail.split_at(usize::from(head & 0x3f).min(tail.len()));
        rest = tail;
        let from = if head & 0x80 == 0 { StarttlsSide::Peer } else { StarttlsSide::Program };
        if head & 0x40 != 0 && piece.is_empty() {
            exchange.handle_eof(from);
        } else if exchange.has_room(from) {
            exchange.handle_input(from, piece);
            sent += piece.len();
        }
        let step = take(&mut exchange, &mut received);
        if !is_secure && mode == StarttlsMode::Required {
            check_kept(&protocol, role, &step, &received);
        }
        if step == StarttlsStep::Handshake {
            assert!(!is_secure, "a second handshake");
            is_secure = true;
            let _ = exchange.take_input();
            exchange.handshake_succeeded();
        }
        match &step {
            StarttlsStep::ContinueInClear => exchange.continue_in_clear(),
            StarttlsStep::Listen(request) => {
                assert!(request.dial.ip().is_loopback() && request.dial.port() > 0);
                assert!(request.secure || mode == StarttlsMode::Optional, "data in clear");
                exchange.set_data_listener((head & 1 == 0).then_some(request.dial));
            }
            _ => {}
        }
        if matches!(step, StarttlsStep::Reject(_)) {
            exchange.handshake_failed();
            take(&mut exchange, &mut received);
            break;
        }
    }
    for output in &received {
        assert!(output.len() <= sent * ANSWER_BYTES_MAX + WORDS_BYTES_MAX, "{}", output.len());
    }
}

/// The next step, and the bytes to send. Asking again returns the same step.
fn take(exchange: &mut StarttlsExchange, received: &mut [Vec<u8>; 2]) -> StarttlsStep {
    let step = exchange.next_step();
    if step != StarttlsStep::Wait {
        assert_eq!(exchange.next_step(), step);
    }
    for (side, received) in [StarttlsSide::Peer, StarttlsSide::Program].into_iter().zip(received) {
        received.append(&mut exchange.take_output(side));
    }
    step
}

/// Checks what the protected side received before TLS, if TLS is required.
fn check_kept(
    protocol: &StarttlsProtocol,
    role: StarttlsRole,
    step: &StarttlsStep,
    received: &[Vec<u8>; 2],
) {
    assert!(
        !matches!(
            step,
            StarttlsStep::Relay | StarttlsStep::ContinueInClear | StarttlsStep::Listen(_)
        ),
        "in clear"
    );
    let [peer, program] = received;
    let (kept_from, is_server) = match role {
        StarttlsRole::Server => (program, true),
        StarttlsRole::Client => (peer, false),
    };
    match protocol {
        StarttlsProtocol::Postgres(postgres) if is_server => match step {
            StarttlsStep::Deliver => {
                assert!(postgres.cancel == Cancel::Clear);
                assert!((16..=268).contains(&kept_from.len()));
                assert!(kept_from[4..].starts_with(&CANCEL_REQUEST));
            }
            _ => assert!(kept_from.is_empty()),
        },
        StarttlsProtocol::Postgres(_) => assert!(kept_from.len() <= 8),
        StarttlsProtocol::Telnet if is_server => assert!(kept_from.is_empty()),
        StarttlsProtocol::Telnet => assert!(kept_from.first().is_none_or(|byte| *byte == 255)),
        StarttlsProtocol::Ftp(_) => {
            for line in kept_from.split(|byte| *byte == b'\n') {
                let verb = line.get(..4).map(<[u8]>::to_ascii_uppercase);
                assert!(!matches!(verb.as_deref(), Some(b"USER" | b"PASS" | b"ACCT")));
            }
        }
        StarttlsProtocol::Smtp => {
            let harmless = ["EHLO", "HELO", "LHLO", "NOOP", "RSET", "QUIT", "HELP", "STARTTLS"];
            for line in kept_from.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let passes = harmless.iter().any(|verb| line.starts_with(verb.as_bytes()));
                assert!(passes, "{:?}", line.escape_ascii());
            }
        }
    }
}
