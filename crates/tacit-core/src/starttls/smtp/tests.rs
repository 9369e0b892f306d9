use proptest::prelude::*;

use crate::policy::{StarttlsMode, StarttlsProtocol};
use crate::starttls::testing::{Stage, refusal};
use crate::starttls::{OUTPUT_BYTES_MAX, StarttlsError, StarttlsRole, StarttlsSide, StarttlsStep};

const GREETING: &str = "220-mail.example\r\n220 ready\r\n";
const CAPABILITIES: &str = "250-mail.example hello\r\n250-PIPELINING\r\n\
     250-AUTH PLAIN LOGIN\r\n250-AUTH=LOGIN\r\n250-STARTTLS\r\n250 8BITMIME\r\n";
const IN_CLEAR: &str = "250-mail.example hello\r\n250-PIPELINING\r\n250-8BITMIME\r\n250 STARTTLS\
                        \r\n";
const UNDER_TLS: &str = "250-mail.example hello\r\n250-PIPELINING\r\n\
     250-AUTH PLAIN LOGIN\r\n250-AUTH=LOGIN\r\n250 8BITMIME\r\n";

fn server(mode: StarttlsMode) -> Stage {
    Stage::new(StarttlsProtocol::Smtp, mode, StarttlsRole::Server)
}

fn client() -> Stage {
    Stage::new(StarttlsProtocol::Smtp, StarttlsMode::Required, StarttlsRole::Client)
}

/// A server behind tacit, whose client has just received the greeting.
fn greeted(mode: StarttlsMode) -> Stage {
    let mut stage = server(mode);
    stage.send(StarttlsSide::Program, GREETING);
    assert_eq!(stage.peer_received(), GREETING);
    stage
}

/// The same under TLS.
fn stage_under_tls() -> Stage {
    let mut stage = greeted(StarttlsMode::Required);
    assert_eq!(stage.send(StarttlsSide::Peer, "STARTTLS\r\n"), StarttlsStep::Handshake);
    stage.peer_received();
    stage.program_received();
    assert_eq!(stage.secure(), StarttlsStep::Wait);
    assert_eq!(stage.send(StarttlsSide::Program, GREETING), StarttlsStep::Wait);
    assert_eq!(stage.peer_received(), "");
    stage
}

#[test]
fn capabilities_are_edited_at_every_split() {
    for cut in 0..=CAPABILITIES.len() {
        let mut stage = greeted(StarttlsMode::Required);
        stage.send_split(StarttlsSide::Peer, b"ehlo client.example\r\n", &[cut.min(21)]);
        assert_eq!(stage.program_received(), "EHLO client.example\r\n");
        stage.send_split(StarttlsSide::Program, CAPABILITIES.as_bytes(), &[cut]);
        assert_eq!(stage.peer_received(), IN_CLEAR);
        let step = stage.send_split(StarttlsSide::Peer, b"STARTTLS\r\n", &[cut.min(10)]);
        assert_eq!(step, StarttlsStep::Handshake);
        assert!(stage.peer_received().starts_with("220 "));
        assert_eq!(stage.program_received(), "QUIT\r\n");
        assert_eq!(stage.secure(), StarttlsStep::Wait);
        stage.send(StarttlsSide::Peer, "EHLO client.example\r\n");
        assert_eq!(stage.program_received(), "", "the new connection has not greeted");
        stage.send_split(StarttlsSide::Program, GREETING.as_bytes(), &[cut.min(GREETING.len())]);
        assert_eq!(stage.program_received(), "EHLO client.example\r\n");
        stage.send_split(StarttlsSide::Program, CAPABILITIES.as_bytes(), &[cut]);
        assert_eq!(stage.peer_received(), UNDER_TLS);
        let step = stage.send_split(StarttlsSide::Peer, b"MAIL FROM:<a@b>\r\nRCPT", &[cut.min(21)]);
        assert_eq!(step, StarttlsStep::Relay);
        assert_eq!(stage.program_received(), "MAIL FROM:<a@b>\r\nRCPT");
    }
}

#[test]
fn a_reply_of_one_line_and_byte_by_byte_is_edited_too() {
    let mut stage = greeted(StarttlsMode::Required);
    stage.send(StarttlsSide::Peer, "LHLO x\r\n");
    assert_eq!(stage.program_received(), "LHLO x\r\n");
    let cuts: Vec<usize> = (0..18).collect();
    stage.send_split(StarttlsSide::Program, b"250 mail.example\r\n", &cuts);
    assert_eq!(stage.peer_received(), "250-mail.example\r\n250 STARTTLS\r\n");
}

#[test]
fn what_a_client_sends_behind_starttls_never_happens() {
    let mut stage = greeted(StarttlsMode::Required);
    let step =
        stage.send(StarttlsSide::Peer, "STARTTLS\r\nMAIL FROM:<evil@x>\r\nRCPT TO:<b@y>\r\n");
    assert_eq!(step, StarttlsStep::Handshake);
    assert_eq!(stage.exchange.take_input(), b"");
    assert_eq!(stage.program_received(), "QUIT\r\n");
    stage.secure();
    stage.send(StarttlsSide::Program, GREETING);
    stage.send(StarttlsSide::Peer, "EHLO x\r\n");
    assert_eq!(stage.program_received(), "EHLO x\r\n");
}

#[test]
fn required_keeps_mail_and_passwords_from_the_server() {
    let mut stage = greeted(StarttlsMode::Required);
    for (command, reply) in [
        ("MAIL FROM:<a@b>", "530 5.7.0"),
        ("AUTH PLAIN AGEAYg==", "538 5.7.11"),
        ("VRFY root", "530 5.7.0"),
        ("BDAT 1 LAST", "530 5.7.0"),
        ("STARTTLS now", "501 5.5.4"),
        ("", "530 5.7.0"),
    ] {
        assert_eq!(
            stage.send(StarttlsSide::Peer, format!("{command}\r\n")),
            StarttlsStep::Wait,
            "{command}"
        );
        assert!(stage.peer_received().starts_with(reply), "{command}");
        assert_eq!(stage.program_received(), "", "{command}");
    }
}

#[test]
fn lines_that_two_programs_could_read_differently_do_not_pass() {
    let mut stage = greeted(StarttlsMode::Required);
    stage.send(StarttlsSide::Peer, "NOOP\nMAIL FROM:<a@b>\r\n");
    assert_eq!(stage.program_received(), "NOOP\r\n");
    stage.send(StarttlsSide::Program, "250 ok\r\n");
    assert!(stage.peer_received().contains("530 5.7.0"));
    let step = stage.send(StarttlsSide::Peer, "NOOP\rMAIL FROM:<a@b>\r\n");
    assert!(matches!(refusal(&step), StarttlsError::ProtocolViolation(StarttlsSide::Peer, _)));
}

#[test]
fn commands_wait_for_the_reply_to_the_one_before() {
    let mut stage = greeted(StarttlsMode::Required);
    stage.send(StarttlsSide::Peer, "NOOP\r\nMAIL\r\nRSET\r\n");
    assert_eq!(
        (stage.program_received().as_str(), stage.peer_received().as_str()),
        ("NOOP\r\n", "")
    );
    stage.send(StarttlsSide::Program, "250 ok\r\n");
    assert_eq!(stage.program_received(), "RSET\r\n");
    let heard = stage.peer_received();
    assert!(heard.starts_with("250 ok\r\n530 "), "{heard}");
}

#[test]
fn answers_to_many_commands_at_once_do_not_pile_up() {
    for (mut stage, from, reply) in [
        (greeted(StarttlsMode::Required), StarttlsSide::Peer, "250 ok\r\n"),
        (client(), StarttlsSide::Program, GREETING),
    ] {
        if from == StarttlsSide::Peer {
            stage.send(from, "NOOP\r\n");
        }
        for _ in 0..4 {
            stage.send(from, "\n".repeat(4096));
        }
        stage.send(from.other(), reply);
        let heard = if from == StarttlsSide::Peer {
            stage.peer_received()
        } else {
            stage.program_received()
        };
        assert_eq!(heard.lines().count(), reply.lines().count() + 4 * 4096);
        assert!(stage.longest_bytes < OUTPUT_BYTES_MAX + 100, "{}", stage.longest_bytes);
    }
}

#[test]
fn optional_passes_mail_in_clear_but_no_password() {
    let mut stage = greeted(StarttlsMode::Optional);
    stage.send(StarttlsSide::Peer, "EHLO x\r\n");
    stage.send(StarttlsSide::Program, CAPABILITIES);
    assert_eq!(stage.peer_received(), IN_CLEAR);
    stage.program_received();
    assert_eq!(stage.send(StarttlsSide::Peer, "AUTH LOGIN\r\n"), StarttlsStep::Wait);
    assert!(stage.peer_received().starts_with("538 "));
    assert_eq!(stage.send(StarttlsSide::Peer, "MAIL FROM:<a@b>\r\nRCPT"), StarttlsStep::Relay);
    assert_eq!(stage.program_received(), "MAIL FROM:<a@b>\r\nRCPT");
}

#[test]
fn under_tls_the_client_begins_again() {
    let mut stage = stage_under_tls();
    assert_eq!(stage.send(StarttlsSide::Peer, "MAIL FROM:<a@b>\r\n"), StarttlsStep::Wait);
    assert!(stage.peer_received().starts_with("503 5.5.1"));
    assert_eq!(stage.send(StarttlsSide::Peer, "STARTTLS\r\n"), StarttlsStep::Wait);
    assert!(stage.peer_received().starts_with("503 5.5.1"));
    assert_eq!(stage.program_received(), "");
    stage.send(StarttlsSide::Peer, "HELO x\r\n");
    stage.send(StarttlsSide::Program, "250 mail.example\r\n");
    assert_eq!(stage.send(StarttlsSide::Peer, "MAIL FROM:<a@b>\r\n"), StarttlsStep::Relay);
    assert_eq!(stage.program_received(), "HELO x\r\nMAIL FROM:<a@b>\r\n");
}

#[test]
fn a_client_that_leaves_before_tls_has_ended_it() {
    let mut stage = greeted(StarttlsMode::Required);
    stage.send(StarttlsSide::Peer, "QUIT\r\n");
    let step = stage.send(StarttlsSide::Program, "221 bye\r\n");
    assert_eq!(refusal(&step), &StarttlsError::Closed(StarttlsSide::Peer));
    assert_eq!(stage.peer_received(), "221 bye\r\n");
}

#[test]
fn a_client_that_closes_its_side_under_tls_is_answered_too() {
    let mut stage = greeted(StarttlsMode::Required);
    stage.send(StarttlsSide::Peer, "STARTTLS\r\n");
    stage.secure();
    stage.send(StarttlsSide::Peer, "EHLO x\r\nNOOP\r\nQUIT\r\n");
    stage.exchange.handle_eof(StarttlsSide::Peer);
    stage.peer_received();
    stage.program_received();
    assert_eq!(stage.send(StarttlsSide::Program, GREETING), StarttlsStep::Wait);
    assert_eq!(
        (stage.peer_received(), stage.program_received()),
        (String::new(), "EHLO x\r\n".into())
    );
    stage.send_split(StarttlsSide::Program, CAPABILITIES.as_bytes(), &[30]);
    assert_eq!(
        (stage.peer_received(), stage.program_received()),
        (UNDER_TLS.into(), "NOOP\r\n".into())
    );
    stage.send(StarttlsSide::Program, "250 ok\r\n");
    assert_eq!(stage.program_received(), "QUIT\r\n");
    assert_eq!(stage.send(StarttlsSide::Program, "221 bye\r\n"), StarttlsStep::Relay);
    assert_eq!(stage.peer_received(), "250 ok\r\n221 bye\r\n");
    assert!(stage.exchange.is_drained(StarttlsSide::Peer));
}

#[test]
fn a_server_that_ends_under_tls_ends_it() {
    let mut stage = greeted(StarttlsMode::Required);
    stage.send(StarttlsSide::Peer, "STARTTLS\r\n");
    stage.secure();
    stage.exchange.handle_eof(StarttlsSide::Program);
    assert_eq!(stage.next_step(), StarttlsStep::Relay);
}

#[test]
fn the_reply_of_a_busy_server_under_tls_is_relayed() {
    let mut stage = greeted(StarttlsMode::Required);
    stage.send(StarttlsSide::Peer, "STARTTLS\r\n");
    stage.secure();
    stage.peer_received();
    stage.send(StarttlsSide::Program, "421 too many connections\r\n");
    assert_eq!(stage.peer_received(), "421 too many connections\r\n");
}

#[test]
fn the_last_reply_of_a_server_is_relayed() {
    let mut stage = greeted(StarttlsMode::Required);
    assert_eq!(stage.send(StarttlsSide::Program, "421 4.4.2 timeout\r\n"), StarttlsStep::Wait);
    assert_eq!(stage.peer_received(), "421 4.4.2 timeout\r\n");
    stage.exchange.handle_eof(StarttlsSide::Program);
    assert_eq!(refusal(&stage.next_step()), &StarttlsError::Closed(StarttlsSide::Program));
}

/// A program that has received the greeting and sends its own.
fn asked(hello: &str) -> Stage {
    let mut stage = client();
    stage.send(StarttlsSide::Peer, GREETING);
    assert_eq!(stage.program_received(), GREETING);
    stage.send(StarttlsSide::Program, hello);
    stage
}

#[test]
fn a_program_that_knows_nothing_is_taken_to_tls_at_every_split() {
    for (hello, first, then, welcome, heard) in [
        ("EHLO me\r\n", "EHLO me\r\n", "EHLO me\r\n", CAPABILITIES, UNDER_TLS),
        (
            "helo me\r\n",
            "EHLO me\r\n",
            "HELO me\r\n",
            "250 mail.example\r\n",
            "250 mail.example\r\n",
        ),
        ("LHLO me\r\n", "LHLO me\r\n", "LHLO me\r\n", CAPABILITIES, UNDER_TLS),
    ] {
        for cut in 0..=CAPABILITIES.len() {
            let mut stage = asked(hello);
            assert_eq!(stage.peer_received(), first);
            stage.send_split(StarttlsSide::Peer, CAPABILITIES.as_bytes(), &[cut]);
            assert_eq!(stage.peer_received(), "STARTTLS\r\n");
            let step = stage.send_split(StarttlsSide::Peer, b"220 2.0.0 go\r\n", &[cut.min(14)]);
            assert_eq!(step, StarttlsStep::Handshake);
            assert_eq!(stage.secure(), StarttlsStep::Wait);
            assert_eq!(stage.peer_received(), then);
            assert_eq!(stage.program_received(), "", "nothing that came in clear is passed");
            let step = stage.send_split(StarttlsSide::Peer, welcome.as_bytes(), &[cut]);
            assert_eq!(step, StarttlsStep::Relay);
            assert_eq!(stage.program_received(), heard);
        }
    }
}

#[test]
fn early_bytes_of_a_program_wait_for_tls() {
    let mut stage = asked("EHLO me\r\nMAIL FROM:<a@b>\r\n");
    stage.send(StarttlsSide::Peer, CAPABILITIES);
    assert_eq!(stage.send(StarttlsSide::Peer, "220 go\r\n"), StarttlsStep::Handshake);
    assert_eq!(stage.peer_received(), "EHLO me\r\nSTARTTLS\r\n");
    stage.secure();
    assert_eq!(stage.send(StarttlsSide::Peer, CAPABILITIES), StarttlsStep::Relay);
    assert_eq!(stage.peer_received(), "EHLO me\r\nMAIL FROM:<a@b>\r\n");
}

#[test]
fn a_server_without_starttls_gets_neither_mail_nor_password() {
    for reply in ["250 mail.example\r\n", "250-mail\r\n250 AUTH PLAIN\r\n", "502 what\r\n"] {
        let mut stage = asked("EHLO me\r\nAUTH PLAIN AGEAYg==\r\n");
        stage.peer_received();
        let step = stage.send(StarttlsSide::Peer, reply);
        assert!(matches!(refusal(&step), StarttlsError::NotOffered(_)), "{step:?}");
        assert!(stage.program_received().starts_with(
            "421 4.7.0 tacit: the server does not offer \
                                                   TLS"
        ));
        assert_eq!(stage.peer_received(), "QUIT\r\n");
    }
    let mut stage = asked("EHLO me\r\n");
    stage.send(StarttlsSide::Peer, CAPABILITIES);
    let step = stage.send(StarttlsSide::Peer, "454 4.7.0 not now\r\n");
    assert!(
        matches!(refusal(&step), StarttlsError::NotOffered(said) if said.contains("454 4.7.0"))
    );
}

#[test]
fn what_a_server_sends_out_of_turn_in_clear_is_refused() {
    let mut stage = asked("EHLO me\r\n");
    stage.send(StarttlsSide::Peer, CAPABILITIES);
    let step = stage.send(StarttlsSide::Peer, "220 go\r\n250 AUTH PLAIN\r\n");
    assert_eq!(refusal(&step), &StarttlsError::ExtraData(StarttlsSide::Peer));
    let mut stage = client();
    let step = stage.send(StarttlsSide::Peer, "220 ready\r\n250 AUTH PLAIN\r\n");
    assert!(matches!(refusal(&step), StarttlsError::ProtocolViolation(StarttlsSide::Peer, _)));
    let mut stage = client();
    let step = stage.send(StarttlsSide::Peer, "554 5.7.1 go away\r\n");
    assert!(matches!(refusal(&step), StarttlsError::NotOffered(_)));
    assert_eq!(stage.program_received(), "554 5.7.1 go away\r\n");
}

#[test]
fn before_its_greeting_a_program_is_answered_here() {
    let mut stage = asked("NOOP\r\nMAIL FROM:<a@b>\r\nQUIT\r\n");
    let heard = stage.program_received();
    assert!(heard.starts_with("250 ") && heard.contains("503 ") && heard.contains("221 "));
    assert_eq!(stage.peer_received(), "QUIT\r\n");
    let mut stage = asked("EHLO me\r\n");
    stage.exchange.handshake_failed();
    stage.next_step();
    assert!(stage.program_received().starts_with("421 4.7.0 tacit"));
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "(EHLO x|HELO x|MAIL FROM:<a@b>|AUTH PLAIN AGEAYg==|NOOP|STARTTLS|DATA|QUIT)\r\n",
        "(220|250|454|502|421)[ -](STARTTLS|AUTH PLAIN|x)\r\n",
        "250-x\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n",
        "[ -~]{0,20}\r?\n",
        "[ -~\r\n]{0,20}",
    ]
}

proptest! {
    #[test]
    fn no_mail_and_no_password_passes_before_tls(
        said in proptest::collection::vec((any::<bool>(), text()), 0..12),
        is_server: bool,
    ) {
        let mut stage = if is_server { server(StarttlsMode::Required) } else { client() };
        let mut heard = String::new();
        for (from_peer, text) in said {
            stage.send(if from_peer { StarttlsSide::Peer } else { StarttlsSide::Program }, text);
            heard += &if is_server { stage.program_received() } else { stage.peer_received() };
        }
        for line in heard.lines() {
            let verb = crate::starttls::lines::verb(line.as_bytes());
            let harmless = ["EHLO", "HELO", "LHLO", "NOOP", "RSET", "QUIT", "HELP", "STARTTLS"];
            prop_assert!(harmless.contains(&verb.as_str()), "{}", line);
        }
    }

    #[test]
    fn what_is_edited_does_not_depend_on_how_it_arrives(
        cuts in proptest::collection::btree_set(0..CAPABILITIES.len(), 0..20),
        words in proptest::collection::vec("(STARTTLS|starttls|AUTH X|AUTH=X|SIZE 1|X-Y|)", 0..6),
    ) {
        let mut reply = String::from("250-me\r\n");
        for word in &words {
            reply += &format!("250-{word}\r\n");
        }
        reply += "250 HELP\r\n";
        let run = |cuts: &[usize]| {
            let mut stage = greeted(StarttlsMode::Required);
            stage.send(StarttlsSide::Peer, "EHLO x\r\n");
            stage.send_split(StarttlsSide::Program, reply.as_bytes(), cuts);
            stage.peer_received()
        };
        let whole = run(&[]);
        prop_assert_eq!(&run(&cuts.into_iter().collect::<Vec<_>>()), &whole);
        prop_assert_eq!(whole.matches("STARTTLS").count(), 1);
        prop_assert!(!whole.contains("AUTH"));
        prop_assert!(whole.ends_with("250 STARTTLS\r\n"));
    }
}
