//! Tests complete FTP exchanges whose bytes are split at every position, and exchanges with random
//! input.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proptest::prelude::*;

use super::*;
use crate::policy::{self, StarttlsMode, StarttlsProtocol};
use crate::starttls::StarttlsSide::{Peer, Program};
use crate::starttls::machine::{ExchangeBuffers, ProtocolMachine};
use crate::starttls::testing::{Stage, refusal};
use crate::starttls::{OUTPUT_BYTES_MAX, StarttlsError, StarttlsRole, StarttlsSide, StarttlsStep};

fn staged(mode: StarttlsMode, role: StarttlsRole) -> Stage {
    Stage::new(StarttlsProtocol::Ftp(policy::FtpOptions::default()), mode, role)
}

/// A server at 127.0.0.1 with a client at 192.0.2.9.
fn served(mode: StarttlsMode) -> Stage {
    let mut stage = staged(mode, StarttlsRole::Server);
    stage.exchange.set_addresses(ends("192.0.2.9", "127.0.0.1"));
    stage
}

/// A server at 192.0.2.7 with a program at 127.0.0.1.
fn reached() -> Stage {
    let mut stage = staged(StarttlsMode::Required, StarttlsRole::Client);
    stage.exchange.set_addresses(ends("192.0.2.7", "127.0.0.1"));
    stage
}

fn ends(peer: &str, program: &str) -> ControlAddresses {
    ControlAddresses { peer: peer.parse().ok(), program: program.parse().ok() }
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A client that has TLS and has requested protected data connections.
fn protected() -> Stage {
    let mut stage = served(StarttlsMode::Required);
    stage.send(Program, "220 ready\r\n");
    assert_eq!(stage.send(Peer, "AUTH TLS\r\n"), StarttlsStep::Handshake);
    stage.secure();
    stage.send(Peer, "PBSZ 0\r\nPROT P\r\n");
    stage.peer_received();
    stage
}

/// A program with a server that has TLS and protects its data connections.
fn open() -> Stage {
    let mut stage = reached();
    assert_eq!(stage.send(Peer, "220 ready\r\n"), StarttlsStep::Wait);
    assert_eq!(stage.send(Peer, "234 go on\r\n"), StarttlsStep::Handshake);
    stage.secure();
    stage.send(Peer, "200 size\r\n");
    stage.send(Peer, "200 level\r\n");
    stage.program_received();
    stage.peer_received();
    stage
}

/// Lets both ends send in turn, and returns what each has received at the end; the input is split
/// at every byte.
fn run_exchange(begin: fn() -> Stage, said: &[(StarttlsSide, &str)], peer: &str, program: &str) {
    let longest = said.iter().map(|(_, text)| text.len()).max().unwrap_or(0);
    for cut in 0..=longest {
        let mut stage = begin();
        for (side, text) in said {
            stage.send_split(*side, text.as_bytes(), &[cut.min(text.len())]);
        }
        assert_eq!(stage.peer_received(), peer, "cut at {cut}");
        assert_eq!(stage.program_received(), program, "cut at {cut}");
    }
}

#[test]
fn a_client_gets_tls_before_it_may_log_in() {
    run_exchange(
        || served(StarttlsMode::Required),
        &[
            (Program, "220-Welcome\r\n220 ready\r\n"),
            (Peer, "USER a\r\nPASS b\r\nPROT P\r\nPASV\r\nauth gssapi\r\nauth tls\r\nUSER c\r\n"),
        ],
        "220-Welcome\r\n220 ready\r\n\
         530 TLS is required here: send AUTH TLS first.\r\n\
         530 TLS is required here: send AUTH TLS first.\r\n\
         503 Send AUTH TLS first.\r\n\
         530 TLS is required here: send AUTH TLS first.\r\n\
         504 Use AUTH TLS.\r\n\
         234 TLS may begin.\r\n",
        "",
    );
}

#[test]
fn bytes_in_clear_after_auth_are_not_sent_under_tls() {
    let mut stage = served(StarttlsMode::Required);
    stage.send(Program, "220 ready\r\n");
    assert_eq!(
        stage.send(Peer, "AUTH TLS\r\nUSER mallory\r\nPASS m\r\nST"),
        StarttlsStep::Handshake
    );
    assert_eq!(stage.secure(), StarttlsStep::Wait);
    stage.send(Peer, "USER alice\r\n");
    assert_eq!(stage.program_received(), "USER alice\r\n");
}

#[test]
fn features_are_those_of_the_server_and_of_tacit() {
    run_exchange(
        || served(StarttlsMode::Required),
        &[
            (Peer, "FEAT\r\n"),
            (
                Program,
                "211-Features:\r\n AUTH TLS\r\n EPSV\r\n211-PBSZ\r\n PROT\r\n CCC\r\n UTF8\r\n\
                 211 End\r\n",
            ),
        ],
        "211-Features:\r\n EPSV\r\n UTF8\r\n AUTH TLS\r\n PBSZ\r\n PROT\r\n211 End\r\n",
        "FEAT\r\n",
    );
    for none in ["211 none\r\n", "500 what?\r\n", "530 log in\r\n"] {
        run_exchange(
            || served(StarttlsMode::Required),
            &[(Peer, "FEAT\r\n"), (Program, none)],
            "211-Features:\r\n AUTH TLS\r\n PBSZ\r\n PROT\r\n211 End\r\n",
            "FEAT\r\n",
        );
    }
    run_exchange(
        open,
        &[(Program, "FEAT\r\n"), (Peer, "211-F\r\n AUTH TLS\r\n MDTM\r\n PROT\r\n211 End\r\n")],
        "FEAT\r\n",
        "211-F\r\n MDTM\r\n211 End\r\n",
    );
}

#[test]
fn passive_mode_names_the_address_on_which_tacit_listens() {
    for (command, reply, wanted) in [
        (
            "PASV\r\n",
            "227 Entering Passive Mode (10,9,9,9,195,80).\r\n",
            "227 Entering Passive Mode (198,51,100,1,4,1).\r\n",
        ),
        ("epsv\r\n", "229 E (|||50000|)\r\n", "229 Entering Extended Passive Mode (|||1025|)\r\n"),
        ("EPSV 1\r\n", "229 (|||50000|)\r\n", "229 Entering Extended Passive Mode (|||1025|)\r\n"),
    ] {
        let mut stage = protected();
        stage.send(Peer, command);
        let step = stage.send(Program, reply);
        let dial = address("127.0.0.1:50000");
        assert_eq!(step, StarttlsStep::Listen(DataRequest { connects: Peer, dial, secure: true }));
        assert_eq!(stage.peer_received(), "", "{command}");
        stage.exchange.set_data_listener(Some(address("198.51.100.1:1025")));
        assert_eq!(stage.next_step(), StarttlsStep::Wait);
        assert_eq!(stage.peer_received(), wanted);
        // The same in the other role, after the server has closed.
        let mut stage = open();
        stage.send(Program, command);
        let step = stage.send(Peer, reply);
        let dial = address("192.0.2.7:50000");
        assert_eq!(
            step,
            StarttlsStep::Listen(DataRequest { connects: Program, dial, secure: true })
        );
        stage.exchange.set_data_listener(None);
        stage.next_step();
        assert_eq!(stage.program_received(), "425 Cannot open a data connection now.\r\n");
    }
}

#[test]
fn active_mode_connects_to_the_clients_own_address_alone() {
    for (command, sent) in [
        ("PORT 192,0,2,9,195,80\r\n", "PORT 127,0,0,1,4,1\r\n"),
        ("EPRT |1|192.0.2.9|50000|\r\n", "EPRT |1|127.0.0.1|1025|\r\n"),
        ("EPRT |2|::|50000|\r\n", "EPRT |1|127.0.0.1|1025|\r\n"),
    ] {
        let mut stage = protected();
        let step = stage.send(Peer, command);
        let dial = address("192.0.2.9:50000");
        assert_eq!(
            step,
            StarttlsStep::Listen(DataRequest { connects: Program, dial, secure: true })
        );
        stage.exchange.set_data_listener(Some(address("127.0.0.1:1025")));
        stage.next_step();
        stage.send(Program, "200 PORT command successful.\r\n");
        assert_eq!(stage.program_received(), sent);
        assert_eq!(stage.peer_received(), "200 PORT command successful.\r\n");
    }
    run_exchange(
        protected,
        &[(
            Peer,
            "PORT 192,0,2,10,195,80\r\nPORT 192,0,2,9,0,80\r\nPORT 1,2\r\nEPRT |3|x|5000|\r\n\
             EPRT |2|::1|5000|\r\nLPRT 4,4\r\nPORT 192,0,2,9,0,80\n",
        )],
        "501 Only this client's own address is allowed.\r\n\
         501 Ports below 1024 are not allowed.\r\n\
         501 The argument is not an address.\r\n\
         522 Use IPv4 or IPv6 (1,2).\r\n\
         501 Only this client's own address is allowed.\r\n\
         502 Not implemented: use EPSV or EPRT.\r\n\
         501 Ports below 1024 are not allowed.\r\n",
        "",
    );
}

#[test]
fn data_connections_wait_for_protection_where_tls_is_required() {
    let begin = || {
        let mut stage = served(StarttlsMode::Required);
        stage.send(Peer, "AUTH TLS\r\n");
        stage.secure();
        stage.peer_received();
        stage
    };
    run_exchange(
        begin,
        &[(
            Peer,
            "PASV\r\nPROT P\r\nPBSZ x\r\nPBSZ 0\r\nPROT S\r\nPROT C\r\nEPSV\r\nPROT P\r\nCCC\r\n\
             AUTH TLS\r\nREIN\r\n",
        )],
        "521 Data connections must be protected: send PROT P first.\r\n\
         503 Send PBSZ 0 first.\r\n\
         501 Send PBSZ 0.\r\n\
         200 PBSZ=0\r\n\
         536 TLS supports PROT P and PROT C only.\r\n\
         534 Data connections must stay protected: send PROT P.\r\n\
         521 Data connections must be protected: send PROT P first.\r\n\
         200 Data connections are protected.\r\n\
         534 The control connection must stay under TLS.\r\n\
         503 TLS is already active.\r\n\
         502 REIN is not implemented; open a new connection instead.\r\n",
        "",
    );
}

#[test]
fn a_data_connection_is_not_used_when_its_protection_has_changed() {
    let mut stage = served(StarttlsMode::Optional);
    stage.send(Program, "220 ready\r\n");
    stage.send(Peer, "AUTH TLS\r\n");
    stage.secure();
    let secure = |stage: &mut Stage| {
        stage.send(Peer, "PASV\r\n");
        let step = stage.send(Program, "227 (127,0,0,1,195,80)\r\n");
        let StarttlsStep::Listen(request) = step else { panic!("{step:?}") };
        stage.exchange.set_data_listener(Some(address("192.0.2.1:1025")));
        stage.next_step();
        stage.peer_received();
        stage.program_received();
        request.secure
    };
    assert!(!secure(&mut stage));
    stage.send(Peer, "PBSZ 0\r\nPROT P\r\nRETR a\r\n");
    assert!(stage.peer_received().contains("\r\n425 The protection"));
    assert_eq!(stage.program_received(), "");
    assert!(secure(&mut stage));
    stage.send(Peer, "RETR a\r\n");
    assert_eq!(stage.program_received(), "RETR a\r\n");
}

#[test]
fn optional_serves_clear_clients_in_clear() {
    let mut stage = served(StarttlsMode::Optional);
    stage.send(Program, "220 ready\r\n");
    assert_eq!(stage.send(Peer, "USER a\r\n"), StarttlsStep::ContinueInClear);
    stage.exchange.continue_in_clear();
    stage.send(Program, "331 password\r\n");
    stage.send(Peer, "PASS b\r\n");
    stage.send(Program, "230 welcome\r\n");
    stage.send(Peer, "PASV\r\n");
    let step = stage.send(Program, "227 (127,0,0,1,195,80)\r\n");
    let dial = address("127.0.0.1:50000");
    assert_eq!(step, StarttlsStep::Listen(DataRequest { connects: Peer, dial, secure: false }));
    assert_eq!(stage.program_received(), "USER a\r\nPASS b\r\nPASV\r\n");
    stage.exchange.set_data_listener(None);
    stage.next_step();
    stage.peer_received();
    stage.send(Peer, "AUTH TLS\r\nPROT P\r\n");
    let heard = stage.peer_received();
    assert_eq!(heard, "503 Send AUTH TLS before logging in.\r\n503 Send AUTH TLS first.\r\n");
}

#[test]
fn a_clear_session_may_last_where_it_is_allowed_to_be() {
    let mut stage = served(StarttlsMode::Optional);
    stage.send(Program, "220 ready\r\n");
    assert_eq!(stage.send(Peer, "USER a\r\n"), StarttlsStep::ContinueInClear);
    stage.exchange.continue_in_clear();
    for _ in 0..10_000 {
        stage.send(Program, "230 welcome\r\n");
        assert_eq!(stage.send(Peer, "CWD /\r\n"), StarttlsStep::Wait);
    }
    let mut stage = served(StarttlsMode::Required);
    let steps = (0..20_000).map(|_| stage.send(Peer, "USER a\r\n"));
    assert!(steps.into_iter().any(|step| step != StarttlsStep::Wait), "endless in clear");
}

#[test]
fn a_program_speaks_when_its_server_is_known() {
    for cut in 0..20 {
        let mut stage = reached();
        stage.send(Program, "USER a\r\nPASS b\r\n");
        stage.send_split(Peer, b"120 soon\r\n220-a\r\n220 b\r\n", &[cut]);
        assert_eq!(stage.peer_received(), "AUTH TLS\r\n");
        assert_eq!(stage.send_split(Peer, b"234 go\r\n", &[cut.min(8)]), StarttlsStep::Handshake);
        assert_eq!(stage.secure(), StarttlsStep::Wait);
        assert_eq!(stage.peer_received(), "PBSZ 0\r\n");
        stage.send(Peer, "200 size\r\n");
        assert_eq!(stage.peer_received(), "PROT P\r\n");
        assert_eq!(stage.program_received(), "");
        stage.send(Peer, "200 level\r\n");
        assert_eq!(stage.program_received(), "220-a\r\n220 b\r\n");
        assert_eq!(stage.peer_received(), "USER a\r\n", "one command at a time");
        stage.send(Peer, "331 password\r\n");
        assert_eq!(stage.peer_received(), "PASS b\r\n");
    }
}

#[test]
fn a_server_without_tls_receives_no_byte_of_the_program() {
    for refused in ["500 what?\r\n", "530-no\r\n530 log in\r\n", "334 more\r\n", "220 what?\r\n"] {
        let mut stage = reached();
        stage.send(Program, "USER a\r\nPASS b\r\n");
        stage.send(Peer, "220 ready\r\n");
        let step = stage.send(Peer, refused);
        assert!(matches!(refusal(&step), StarttlsError::NotOffered(_)), "{step:?}");
        assert_eq!(stage.peer_received(), "AUTH TLS\r\n");
        assert!(stage.program_received().starts_with("421 "));
    }
    let mut stage = reached();
    let step = stage.send(Peer, "421 too many\r\n");
    assert!(matches!(refusal(&step), StarttlsError::NotOffered(_)));
    assert_eq!(stage.program_received(), "421 too many\r\n");
    for (first, second) in [("534 no\r\n", None), ("200 size\r\n", Some("534 no\r\n"))] {
        let mut stage = reached();
        stage.send(Program, "USER a\r\n");
        stage.send(Peer, "220 ready\r\n");
        stage.send(Peer, "234 go\r\n");
        stage.secure();
        let mut step = stage.send(Peer, first);
        if let Some(second) = second {
            step = stage.send(Peer, second);
        }
        assert!(matches!(refusal(&step), StarttlsError::NotOffered(_)), "{step:?}");
        assert!(!stage.peer_received().contains("USER"));
    }
}

#[test]
fn a_server_that_sends_more_before_the_handshake_is_rejected() {
    let mut stage = reached();
    stage.send(Peer, "220 ready\r\n");
    let step = stage.send(Peer, "234 go\r\n200 believe me\r\n");
    assert_eq!(*refusal(&step), StarttlsError::ExtraData(Peer));
}

#[test]
fn a_program_cannot_change_what_tacit_agreed() {
    let own = ["AUTH TLS", "PBSZ 0", "PROT C", "CCC", "ADAT x", "REIN"];
    for command in own {
        let mut stage = open();
        stage.send(Program, format!("{command}\r\n"));
        assert!(stage.program_received().starts_with("502 "), "{command}");
        assert_eq!(stage.peer_received(), "");
    }
}

#[test]
fn an_unrequested_address_is_withheld() {
    for reply in ["227 (10,0,0,1,4,1)\r\n", "228 x\r\n", "229 (|||1025|)\r\n", "227-a\r\n227 b\r\n"]
    {
        let mut stage = open();
        stage.send(Program, "NOOP\r\n");
        assert_eq!(stage.send(Peer, reply), StarttlsStep::Wait);
        let heard = stage.program_received();
        assert!(heard.starts_with("425 ") && heard.lines().count() == 1, "{heard}");
    }
    let mut stage = open();
    stage.send(Program, "PASV\r\n");
    assert_eq!(stage.send(Peer, "227 here and there\r\n"), StarttlsStep::Wait);
    assert!(stage.program_received().starts_with("425 "));
}

#[test]
fn a_transfer_can_be_interrupted_and_nothing_else_overtakes() {
    let mut stage = open();
    stage.send(Program, "RETR a\r\nNOOP\r\n\u{0}");
    assert_eq!(stage.peer_received(), "RETR a\r\n");
    stage.send(Peer, "150 here\r\n");
    assert_eq!(stage.peer_received(), "NOOP\r\n");
    let mut stage = open();
    stage.send(Program, "RETR a\r\n");
    stage.send(Peer, "150 here\r\n");
    stage.exchange.handle_input(Program, b"\xff\xf4\xff\xf2ABOR\r\nPWD\r\n");
    stage.next_step();
    assert_eq!(stage.peer_received(), "RETR a\r\nABOR\r\n");
    stage.send(Peer, "426 cut\r\n");
    assert_eq!(stage.peer_received(), "PWD\r\n");
    stage.send(Peer, "226 stopped\r\n257 \"/\"\r\n");
    assert_eq!(stage.program_received(), "150 here\r\n426 cut\r\n226 stopped\r\n257 \"/\"\r\n");
}

#[test]
fn an_answer_to_abort_is_none_to_what_comes_after() {
    let mut stage = open();
    stage.send(Program, "RETR a\r\n");
    stage.send(Peer, "150 here\r\n");
    stage.send(Program, "ABOR\r\nPASV\r\n");
    stage.send(Peer, "426 cut\r\n");
    assert_eq!(stage.send(Peer, "226 stopped\r\n"), StarttlsStep::Wait);
    let step = stage.send(Peer, "227 (192,0,2,7,195,80)\r\n");
    assert!(matches!(step, StarttlsStep::Listen(_)), "{step:?}");
}

#[test]
fn whatever_a_server_answers_the_next_command_follows() {
    for (asks, continues_under_tls, reply) in [
        ("FEAT\r\n", "FEAT\r\n", "202 superfluous\r\n"),
        ("FEAT\r\n", "FEAT\r\n", "200 ok\r\n"),
        ("PASV\r\n", "PASV\r\n", "200 ok\r\n"),
        ("PASV\r\n", "PASV\r\n", "332 who pays?\r\n"),
        ("EPSV\r\n", "EPSV\r\n", "228 (long)\r\n"),
    ] {
        let mut stage = open();
        stage.send(Program, format!("{asks}NOOP\r\n"));
        assert_eq!(stage.peer_received(), continues_under_tls);
        stage.send(Peer, reply);
        assert_eq!(stage.peer_received(), "NOOP\r\n", "{asks} {reply}");
    }
    let mut stage = open();
    let step = stage.send(Program, "PORT 127,0,0,1,195,80\r\nNOOP\r\n");
    assert!(matches!(step, StarttlsStep::Listen(_)));
    stage.exchange.set_data_listener(Some(address("127.0.0.1:1025")));
    stage.next_step();
    stage.peer_received();
    stage.send(Peer, "250 port taken\r\n");
    assert_eq!(stage.peer_received(), "NOOP\r\n");
}

#[test]
fn answers_to_many_commands_at_once_do_not_pile_up() {
    let mut stage = served(StarttlsMode::Required);
    stage.send(Program, "220 ready\r\n");
    stage.send(Peer, "NOOP\r\n");
    for _ in 0..15 {
        stage.send(Peer, "\n".repeat(4096));
    }
    stage.peer_received();
    stage.send(Program, "200 ok\r\n");
    assert_eq!(stage.peer_received().lines().count(), 1 + 15 * 4096);
    assert!(stage.longest_bytes < OUTPUT_BYTES_MAX + 100, "{}", stage.longest_bytes);
}

#[test]
fn commands_before_an_end_are_passed_on_before_it() {
    let mut stage = protected();
    stage.send(Peer, "USER a\r\nPASS b\r\nNOOP\r\nhalf");
    stage.exchange.handle_eof(Peer);
    for (command, reply) in [("USER a", "331 pass?"), ("PASS b", "230 in"), ("NOOP", "200 ok")] {
        assert_eq!(stage.next_step(), StarttlsStep::Wait);
        assert_eq!(stage.program_received(), format!("{command}\r\n"));
        assert_eq!(stage.exchange.is_drained(Peer), command == "NOOP");
        stage.send(Program, format!("{reply}\r\n"));
        assert_eq!(stage.peer_received(), format!("{reply}\r\n"));
    }
    assert!(!stage.exchange.is_drained(Program));
    stage.exchange.handle_eof(Program);
    assert_eq!(stage.next_step(), StarttlsStep::Relay);
    assert!(stage.exchange.is_drained(Program));
}

#[test]
fn a_server_of_the_other_family_is_asked_in_its_own() {
    let mut stage = reached();
    stage.exchange.set_addresses(ends("2001:db8::7", "127.0.0.1"));
    for reply in ["220 ready\r\n", "234 go\r\n"] {
        stage.send(Peer, reply);
    }
    stage.secure();
    stage.send(Peer, "200 size\r\n");
    stage.send(Peer, "200 level\r\n");
    stage.peer_received();
    stage.program_received();
    stage.send(Program, "PASV\r\n");
    assert_eq!(stage.peer_received(), "EPSV\r\n");
    let step = stage.send(Peer, "229 (|||50000|)\r\n");
    let dial = address("[2001:db8::7]:50000");
    assert_eq!(step, StarttlsStep::Listen(DataRequest { connects: Program, dial, secure: true }));
    stage.exchange.set_data_listener(Some(address("127.0.0.1:1025")));
    stage.next_step();
    assert_eq!(stage.program_received(), "227 Entering Passive Mode (127,0,0,1,4,1).\r\n");
    stage.send(Program, "EPSV 2\r\nEPSV ALL\r\n");
    assert_eq!(
        stage.program_received(),
        "522 Use the address family of the control connection (1).\r\n"
    );
    assert_eq!(stage.peer_received(), "EPSV ALL\r\n");
    stage.send(Peer, "200 ok\r\n");
    stage.send(Program, "PORT 127,0,0,1,195,80\r\n");
    stage.exchange.set_data_listener(Some(address("[2001:db8::1]:1025")));
    stage.next_step();
    assert_eq!(stage.peer_received(), "EPRT |2|2001:db8::1|1025|\r\n");
}

#[test]
fn ends_without_ip_addresses_have_no_data_connections() {
    let mut stage = open();
    stage.exchange.set_addresses(ControlAddresses::default());
    stage.send(Program, "PASV\r\nPORT 127,0,0,1,195,80\r\n");
    assert!(stage.program_received().lines().all(|line| line.starts_with("425 ")));
    assert_eq!(stage.peer_received(), "");
}

#[test]
fn lines_and_greetings_have_limits() {
    let mut stage = served(StarttlsMode::Required);
    let step = stage.send(Peer, vec![b'a'; LINE_BYTES_MAX + 1]);
    assert!(matches!(refusal(&step), StarttlsError::TooLong(Peer, _)));
    let mut stage = reached();
    let mut step = StarttlsStep::Wait;
    for _ in 0..GREETING_BYTES_MAX / 100 {
        step = stage.send(Peer, format!("220-{}\r\n", "a".repeat(100)));
    }
    assert!(matches!(refusal(&step), StarttlsError::TooLong(Peer, _)));
}

#[test]
fn a_connection_is_over_when_the_server_says_so() {
    for (reply, is_over) in [("221 bye\r\n", true), ("421 late\r\n", true), ("200 ok\r\n", false)] {
        let mut stage = open();
        stage.send(Program, "QUIT\r\n");
        stage.send(Peer, reply);
        assert_eq!(stage.exchange.has_closed_orderly(), is_over, "{reply}");
    }
}

#[test]
fn a_command_is_one_line() {
    let mut stage = protected();
    stage.send(Peer, "CWD a\rDELE b\r\nCWD a\0b\r\n");
    assert_eq!(stage.program_received(), "");
    assert_eq!(stage.peer_received().lines().filter(|line| line.starts_with("500")).count(), 2);
}

#[test]
fn implicit_tls_has_no_exchange_before_it() {
    let implicit = |role| {
        let mut ftp = FtpControl::implicit(role, StarttlsMode::Required);
        let mut buffers = ExchangeBuffers::default();
        assert_eq!(
            (ftp.next_step(&mut buffers), ftp.needs_program()),
            (Ok(StarttlsStep::Handshake), false)
        );
        buffers.is_secure = true;
        ftp.handshake_succeeded(&mut buffers);
        (ftp, buffers)
    };
    let (mut ftp, mut buffers) = implicit(StarttlsRole::Client);
    buffers.peer.input.extend(b"220 ready\r\n");
    ftp.next_step(&mut buffers).unwrap();
    assert_eq!(buffers.peer.output, b"PBSZ 0\r\n");
    let (mut ftp, mut buffers) = implicit(StarttlsRole::Server);
    ftp.set_addresses(ends("192.0.2.9", "127.0.0.1"));
    buffers.peer.input.extend(b"PASV\r\n");
    ftp.next_step(&mut buffers).unwrap();
    assert_eq!(
        buffers.program.output, b"PASV\r\n",
        "its data connections are protected from the start"
    );
}

fn said() -> impl Strategy<Value = Vec<(bool, Vec<u8>)>> {
    let line = prop_oneof![
        Just(&b"220 a\r\n"[..]),
        Just(&b"234 a\r\n"[..]),
        Just(&b"200 a\r\n"[..]),
        Just(&b"227 (1,2,3,4,5,6)\r\n"[..]),
        Just(&b"229 (|||5|)\r\n"[..]),
        Just(&b"211-a\r\n"[..]),
        Just(&b"211 a\r\n"[..]),
        Just(&b"AUTH TLS\r\n"[..]),
        Just(&b"PBSZ 0\r\n"[..]),
        Just(&b"PROT P\r\n"[..]),
        Just(&b"USER secret\r\n"[..]),
        Just(&b"FEAT\r\n"[..]),
        Just(&b"PASV\r\n"[..]),
        Just(&b"PORT 192,0,2,9,9,9\r\n"[..]),
    ]
    .prop_map(<[u8]>::to_vec);
    let bytes = prop_oneof![4 => line, 1 => prop::collection::vec(any::<u8>(), 0..30)];
    prop::collection::vec((any::<bool>(), bytes), 0..40)
}

proptest! {
    #[test]
    fn nothing_secret_is_sent_on_before_tls(said in said(), is_server: bool) {
        let role = if is_server { StarttlsRole::Server } else { StarttlsRole::Client };
        let mut stage = staged(StarttlsMode::Required, role);
        stage.exchange.set_addresses(ends("192.0.2.9", "192.0.2.9"));
        for (from_peer, bytes) in said {
            match stage.send(if from_peer { Peer } else { Program }, &bytes) {
                StarttlsStep::Wait | StarttlsStep::Handshake => {}
                StarttlsStep::Reject(_) => break,
                other => prop_assert!(false, "{other:?} before TLS"),
            }
            let across = if is_server { &stage.to_program } else { &stage.to_peer };
            prop_assert!(!across.windows(6).any(|part| part == b"secret"));
        }
    }

    #[test]
    fn cuts_change_nothing(
        said in said(),
        cuts in prop::collection::btree_set(0usize..30, 0..10),
        is_server: bool,
    ) {
        let outcome = |cuts: &BTreeSet<usize>| {
            let mut stage = if is_server { protected() } else { open() };
            'all: for (from_peer, bytes) in &said {
                let side = if *from_peer { Peer } else { Program };
                for (at, byte) in bytes.iter().enumerate() {
                    stage.exchange.handle_input(side, &[*byte]);
                    if !cuts.contains(&at) && at + 1 < bytes.len() {
                        continue;
                    }
                    loop {
                        match stage.next_step() {
                            StarttlsStep::Listen(request) => {
                                assert!(request.secure);
                                stage.exchange.set_data_listener(Some(address("127.0.0.1:1025")));
                            }
                            StarttlsStep::Wait => break,
                            _ => break 'all,
                        }
                    }
                }
            }
            (stage.to_peer, stage.to_program)
        };
        prop_assert_eq!(outcome(&BTreeSet::new()), outcome(&cuts));
    }
}
