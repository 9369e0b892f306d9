//! What is fuzzed: one entry a parser of input that others send.
//!
//! A target takes any bytes and returns an outcome: the same number for inputs that went the same
//! way, so far as it can tell cheaply. Beside not panicking, it asserts what must always hold.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tacit_core::dns;
use tacit_core::icmp;
use tacit_core::policy;
use tacit_core::proxy_protocol::{self, Parsed, ProxyError};
use tacit_core::query;
use tacit_core::record::{self, ContentType, KeyRefused, Open, Opener, Protection, Seal, Sealer};
use tacit_import::{self as import, attls};

use super::starttls;

/// One parser.
pub(crate) struct Target {
    /// As typed after `cargo xtask fuzz`, and the folder under `fuzz/seeds`.
    pub(crate) name: &'static str,
    /// Runs it on one input.
    pub(crate) run: fn(&[u8]) -> u64,
    /// Inputs to start from, beside the files.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// How often `smoke` runs it: some seconds.
    pub(crate) smoke_runs: u64,
    /// Pieces that mean something to it.
    pub(crate) words: &'static [&'static [u8]],
}

const PARSER_RUNS: u64 = 30_000;

/// All of them; `smoke` runs each. Those that need the feature come last: their outcomes hang on
/// random numbers of a handshake too, and the first is the one that is run twice to compare.
pub(crate) const TARGETS: &[Target] = &[
    Target {
        name: "proxy-protocol",
        run: proxy_protocol,
        seeds: proxy_protocol_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\r\n\r\n\0\r\nQUIT\n", b"PROXY ", b"\x21\x11\0\x0c", b"\x04\0\0"],
    },
    Target {
        name: "record",
        run: record,
        seeds: record_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\x17\x03\x03\0\x11", b"\x15\x03\x03\0\x13", b"\x16\x03\x03\x40\x11"],
    },
    Target {
        name: "dns",
        run: dns,
        seeds: dns_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\x07example", b"\xc0\x0c", b"\0\x01\0\x01", b"\0\x05\0\x01", b"\0\x1c"],
    },
    Target {
        name: "dns-stream",
        run: dns_stream,
        seeds: dns_stream_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\0\x0c", b"\0\x1d", b"\xff\xff"],
    },
    Target {
        name: "dns-files",
        run: dns_files,
        seeds: dns_files_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"nameserver ", b"search ", b"\n", b"#", b"%", b"::1", b"10.0.0.1 "],
    },
    Target {
        name: "icmp",
        run: icmp,
        seeds: icmp_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\x03\x04", b"\x02\0\x01", b"\x0b\0", b"\x01\x04\x01"],
    },
    Target {
        name: "query",
        run: query,
        seeds: || query::Question::WORDS.map(|(word, _)| word.as_bytes().to_vec()).to_vec(),
        smoke_runs: PARSER_RUNS,
        words: &[b"query", b"start", b"stop", b"rekey", b"\n", b"\0"],
    },
    Target {
        name: "policy",
        run: policy,
        seeds: Vec::new,
        smoke_runs: PARSER_RUNS,
        words: &[
            b"version = 1\n",
            b"[[rule]]\n",
            b"[[map.m]]\n",
            b"subject = ",
            b"\"CN=*, O=\\*\"",
            b"name = ",
            b"listen = ",
            b"connect = ",
            b"direction = ",
            b"local-ports = ",
            b"remote = ",
            b"when = {",
            b"tls = {",
            b"role = ",
            b"trust = ",
            b"rekey = {",
            b"permit = true\n",
            b"deny = true\n",
            b"\"",
            b"\"\"\"",
            b"[",
            b"]",
            b"{",
            b"}",
            b"=",
            b"\n",
            b"#",
            b"\xef\xbb\xbf",
            b"\xc3\xa9",
            b"0x",
            b"1e9",
            b"-1",
            b"::",
            b"/33",
            b"GiB",
            b"remote = ",
            b"direction = ",
        ],
    },
    Target {
        name: "filters",
        run: filters,
        seeds: filters_seeds,
        smoke_runs: 10_000,
        words: &[
            b"\n{\n",
            b"\n}\n",
            b"IpFilterRule ",
            b"IpFilterGroupRef ",
            b"IpSourceAddr ",
            b"IpDestAddr 10.0.0.0/8\n",
            b"SourcePortRange 22\n",
            b"Protocol udp\n",
            b"Direction bidirectional InboundConnect\n",
            b"IpFilterAction deny\n",
            b"IpTimeConditionRef ",
        ],
    },
    Target {
        name: "stunnel",
        run: stunnel,
        seeds: stunnel_seeds,
        smoke_runs: 3_000,
        words: &[
            b"[s]\n",
            b"client = yes\n",
            b"accept = ",
            b"connect = ",
            b"cert = ",
            b"CApath = /d\n",
            b"include = /d\n",
            b"sni = s:",
            b"ciphers = HIGH:!",
            b"options = NO_TLSv1_3\n",
            b"verify = 1\n",
        ],
    },
    Target {
        name: "attls",
        run: attls,
        seeds: Vec::new,
        smoke_runs: 10_000,
        words: &[
            b"\n{\n",
            b"\n}\n",
            b" # ",
            b"TTLSRule ",
            b"Ref ",
            b"TTLSEnvironmentAction ",
            b"TTLSEnvironmentAdvancedParms",
            b"HandshakeRole ",
            b"Direction Both\n",
            b"LocalAddr ",
            b"RemotePortRange ",
            b"10.0.0.0/8",
            b"1 - 2",
            b"0-65535",
            b"V3CipherSuites4Char ",
            b"C02F1301",
            b"?x?",
            b"{{",
            b"\xe3\xe3\xd3\xe2\x15",
            b"\xa9",
        ],
    },
    Target {
        name: "starttls-ftp",
        run: starttls::ftp,
        seeds: starttls::ftp_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[
            b"AUTH TLS\r\n",
            b"PBSZ 0\r\n",
            b"PROT P\r\n",
            b"PASV\r\n",
            b"EPSV",
            b"PORT 127,0,0,1,195,80\r\n",
            b"EPRT |1|127.0.0.1|50000|\r\n",
            b"227 (127,0,0,1,195,80)\r\n",
            b"229 (|||50000|)\r\n",
            b"234 \r\n",
            b"200 \r\n",
            b"211-",
            b"\xff\xf4\xff\xf2ABOR\r\n",
        ],
    },
    Target {
        name: "starttls-postgres",
        run: starttls::postgres,
        seeds: starttls::postgres_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\0\0\0\x08\x04\xd2\x16\x2f", b"\x01S", b"\x01N", b"\0\0\0\x10\0\x03\0\0"],
    },
    Target {
        name: "starttls-smtp",
        run: starttls::smtp,
        seeds: starttls::smtp_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"STARTTLS\r\n", b"EHLO x\r\n", b"250-", b"220 ", b"\r\n", b"\n", b"AUTH PLAIN"],
    },
    Target {
        name: "starttls-telnet",
        run: starttls::telnet,
        seeds: starttls::telnet_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\xff\xfd\x2e", b"\xff\xfb\x2e", b"\xff\xfa\x2e\x01\xff\xf0", b"\xff\xff"],
    },
    #[cfg(feature = "tls")]
    Target {
        name: "certificate",
        run: tacit_tls::fuzz::certificate,
        seeds: tacit_tls::fuzz::certificate_seeds,
        smoke_runs: PARSER_RUNS,
        words: &[b"\x06\x03\x55\x04\x03", b"\x30\x81", b"\x82\x04", b"\x06\x03\x55\x1d\x11"],
    },
    #[cfg(feature = "tls")]
    Target {
        name: "handshake",
        run: tacit_tls::fuzz::handshake,
        seeds: tacit_tls::fuzz::handshake_seeds,
        smoke_runs: 30_000,
        words: &[b"\x16\x03\x03\0\x04", b"\x15\x03\x03\0\x02", b"\x14\x03\x03\0\x01\x01"],
    },
    #[cfg(feature = "tls")]
    Target {
        name: "session",
        run: tacit_tls::fuzz::session,
        seeds: tacit_tls::fuzz::session_seeds,
        smoke_runs: 10_000,
        words: &[b"\x01\x05\x18\0\0\x01\x01", b"\0\0", b"\x02\x02\x01\0", b"\x01\x04\0\0\0\0"],
    },
];

/// Not one of them: it has a fault, which must be found.
pub(crate) const CANARY: Target = Target {
    name: "canary",
    run: canary,
    seeds: || vec![b"a quite ordinary input, longer than it needs to be".to_vec()],
    smoke_runs: PARSER_RUNS,
    words: &[b"?!"],
};

/// A message as a query, and as the answer to the question it holds or to another one.
fn dns(input: &[u8]) -> u64 {
    let question = dns::question(input).ok();
    let refused = dns::refuse(input, dns::Refusal::Refused);
    assert!(question.is_none() || refused.is_some(), "a question that cannot be refused");
    if let (Some(question), Some(refused)) = (&question, &refused) {
        assert!(dns::is_answer_to(refused, input) && dns::is_refusal(refused));
        // Of a type that the reader of answers does not know, it is none.
        assert!(dns::answers(refused, question).map_or(true, |found| found.is_empty()));
    }
    let asked = dns::Question { name: "db.example".into(), kind: 1, class: 1 };
    let answers = dns::answers(input, &asked).map(|answers| answers.len());
    let kind = question.map(|question| question.kind);
    outcome(&(kind, refused.is_some(), answers.ok(), dns::is_truncated(input)))
}

/// What a program sends over TCP: messages, one behind the other.
fn dns_stream(input: &[u8]) -> u64 {
    let mut rest = input;
    let mut messages = 0_u32;
    loop {
        match dns::next_message(rest) {
            Ok(Some(dns::Framed { message, consumed })) => {
                assert_eq!(dns::framed(message).as_deref(), rest.get(..consumed));
                rest = rest.get(consumed..).unwrap_or_default();
                messages += 1;
            }
            other => return outcome(&(messages, other.is_err())),
        }
    }
}

/// The two files that say which names there are and whom to ask.
fn dns_files(input: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(input);
    let hosts = dns::hosts(&text);
    assert!(hosts.len() <= dns::HOSTS_MAX && hosts.iter().all(|host| !host.name.contains(' ')));
    let read = dns::Configuration::read(&text);
    assert!((1..=dns::NAMESERVERS_MAX).contains(&read.nameservers.len()));
    outcome(&(hosts.len(), read.nameservers.len(), read.search.len()))
}

/// The first bytes choose what happened to a datagram, the rest is what a program sent.
fn icmp(input: &[u8]) -> u64 {
    let Some((&[kind, code, v6, a, b], payload)) = input.split_first_chunk::<5>() else { return 0 };
    let (program, server): (IpAddr, IpAddr) = match v6 & 1 {
        0 => (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into()),
        _ => (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::from([0xff; 16]).into()),
    };
    let info = u32::from_be_bytes([0, 0, a, b]);
    let read = |kind, code| match v6 & 1 {
        0 => icmp::Cause::from_icmp(kind, code, info),
        _ => icmp::Cause::from_icmpv6(kind, code, info),
    };
    let Some(cause) = read(kind, code) else { return 1 };
    let sent = icmp::Sent {
        source: SocketAddr::new(program, u16::from(a)),
        destination: SocketAddr::new(server, u16::from(b)),
        payload,
    };
    let packet = icmp::error(cause, sent, server).unwrap_or_default();
    assert!(packet.len() <= icmp::PACKET_BYTES_MAX);
    let message = packet.get(if v6 & 1 == 0 { 20 } else { 40 }..).unwrap_or_default();
    let again = message.first_chunk::<2>().and_then(|&[kind, code]| read(kind, code));
    assert_eq!(again, Some(cause), "what is told reads back");
    outcome(&(std::mem::discriminant(&cause), v6 & 1))
}

/// What a program sends to its query socket.
fn query(input: &[u8]) -> u64 {
    match query::Question::parse(input) {
        Ok(question) => {
            let word = question.word().as_bytes();
            let rest = input.strip_prefix(word);
            assert!(rest.is_some_and(|rest| rest.is_empty() || rest == b"\n"), "more was taken");
            word.len() as u64
        }
        Err(fault) => {
            assert!(!fault.to_string().is_empty());
            u64::MAX
        }
    }
}

fn icmp_seeds() -> Vec<Vec<u8>> {
    vec![b"\x03\x03\0\x05\0ping".to_vec(), b"\x01\x04\x01\x05\0ping".to_vec()]
}

fn dns_stream_seeds() -> Vec<Vec<u8>> {
    dns_seeds().iter().filter_map(|message| dns::framed(message)).collect()
}

fn dns_files_seeds() -> Vec<Vec<u8>> {
    vec![
        b"127.0.0.1 localhost\n10.7.0.5 db.example db # it\n".to_vec(),
        b"search a.example b.example\nnameserver fe80::1%eth0\nnameserver 127.0.0.53\n".to_vec(),
    ]
}

fn dns_seeds() -> Vec<Vec<u8>> {
    let asked = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x02db\x07example\0\0\x01\0\x01".to_vec();
    let mut answer = asked.clone();
    answer[2] = 0x81;
    answer[7] = 1;
    answer.extend(b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x07\0\x05");
    vec![asked, answer]
}

fn proxy_protocol(input: &[u8]) -> u64 {
    let parsed = proxy_protocol::parse(input);
    if let Ok(Some(Parsed { header, consumed })) = &parsed {
        assert!(*consumed <= input.len().min(proxy_protocol::HEADER_BYTES_MAX));
        let mut again = Vec::new();
        assert_eq!(proxy_protocol::encode(header, &mut again), Ok(()), "what came can be sent on");
        let whole = Parsed { header: header.clone(), consumed: again.len() };
        assert_eq!(proxy_protocol::parse(&again), Ok(Some(whole)));
    }
    match parsed {
        Ok(None) => outcome(&"more"),
        Ok(Some(Parsed { header, consumed })) => {
            outcome(&(std::mem::discriminant(&header), consumed))
        }
        // How far it got; the numbers in other errors are only what the input said.
        Err(ProxyError::NotProxy { offset, .. }) => outcome(&offset),
        Err(error) => outcome(&std::mem::discriminant(&error)),
    }
}

fn proxy_protocol_seeds() -> Vec<Vec<u8>> {
    let addresses = [
        ("192.0.2.1:1", "192.0.2.2:443"),
        ("[2001:db8::1]:1", "[2001:db8::2]:443"),
        ("unix:/run/client.sock", "unix:@server"),
    ];
    let header = |(source, destination): (&str, &str)| {
        let source = source.parse().ok()?;
        let destination = destination.parse().ok()?;
        let mut bytes = Vec::new();
        let header = proxy_protocol::Header::Proxy { source, destination };
        proxy_protocol::encode(&header, &mut bytes).ok().map(|()| bytes)
    };
    addresses.into_iter().filter_map(header).collect()
}

/// The first byte chooses the protection, the rest is what a peer sends. Its key takes every tag
/// for right, so that what lies behind the authentication is reached too.
fn record(input: &[u8]) -> u64 {
    let Some((choice, wire)) = input.split_first() else { return 0 };
    let protection = PROTECTIONS[usize::from(*choice) % PROTECTIONS.len()];
    let mut opener = Opener::new(protection, NONCE, 0);
    let mut wire = wire.to_vec();
    let mut seen = BTreeSet::new();
    loop {
        match opener.open_record(&mut AnyTag, &mut wire) {
            Ok(None) => return outcome(&(protection.is_tls13(), seen, "more")),
            Err(error) => {
                return outcome(&(protection.is_tls13(), seen, std::mem::discriminant(&error)));
            }
            Ok(Some(opened)) => {
                assert!(opened.consumed <= wire.len().min(record::RECORD_BYTES_MAX));
                assert!(opened.payload.end <= opened.consumed);
                assert!(opened.payload.len() <= record::PAYLOAD_BYTES_MAX);
                // What was opened can be sealed, and opens again to the same.
                let payload = wire.get(opened.payload).unwrap_or_default().to_vec();
                let mut again = Vec::new();
                let sealed = Sealer::new(protection, NONCE, 0).seal_message(
                    &mut AnyTag,
                    opened.content,
                    &payload,
                    &mut again,
                );
                assert_eq!(sealed, Ok(()));
                let mut fresh = Opener::new(protection, NONCE, 0);
                let reopened = fresh.open_record(&mut AnyTag, &mut again).map(|opened| {
                    opened.map(|o| (o.content, again.get(o.payload).map(<[u8]>::to_vec)))
                });
                assert_eq!(reopened, Ok(Some((opened.content, Some(payload)))));
                seen.insert(opened.content as u8);
                wire.drain(..opened.consumed);
            }
        }
    }
}

const PROTECTIONS: [Protection; 4] =
    [Protection::Tls13Gcm, Protection::Tls13ChaCha, Protection::Tls12Gcm, Protection::Tls12ChaCha];
const NONCE: record::Nonce = [0; 12];

/// A key that changes nothing and believes everything.
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

/// For each protection: data, an alert, an empty record.
fn record_seeds() -> Vec<Vec<u8>> {
    let messages: [(ContentType, &[u8]); 4] = [
        (ContentType::ApplicationData, b"data"),
        (ContentType::Handshake, &[24, 0, 0, 1, 0]),
        (ContentType::ApplicationData, b""),
        (ContentType::Alert, &[1, 0]),
    ];
    let seed = |(choice, protection): (u8, Protection)| {
        let mut sealer = Sealer::new(protection, NONCE, 0);
        let mut wire = vec![choice];
        for (content, message) in messages {
            sealer.seal_message(&mut AnyTag, content, message, &mut wire).ok()?;
        }
        Some(wire)
    };
    (0..).zip(PROTECTIONS).filter_map(seed).collect()
}

/// Whatever the text, each finding has its place in it and reads as one line, and there is a policy
/// exactly if there is no error.
fn policy(input: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(input);
    let parsed = policy::parse(&text);
    let lines = text.split('\n').count();
    for finding in &parsed.diagnostics {
        assert!((1..=lines).contains(&finding.position.line), "{finding:?}");
        assert!(finding.position.column >= 1, "{finding:?}");
        for line in [Some(&finding.message), finding.fix.as_ref()].into_iter().flatten() {
            assert!(!line.contains(char::is_control), "{finding:?}");
        }
    }
    let errors = parsed.diagnostics.iter().any(|f| f.severity == policy::Severity::Error);
    assert_eq!(parsed.policy.is_none(), errors, "{:?}", parsed.diagnostics);
    // The words of the first finding, without what it quotes and counts.
    let first = parsed.diagnostics.first().map(|finding| {
        let said = finding.message.split('`').step_by(2).collect::<String>();
        said.replace(|c: char| c.is_ascii_digit(), "")
    });
    outcome(&(first, parsed.diagnostics.len().min(4), parsed.policy.map(|p| p.rules.len())))
}

/// A policy with a map file of all that its seeds name, so that some of them are imported whole.
/// Filters beside TLS rules; what comes of both is taken by our own parser, or an error is told.
fn filters(input: &[u8]) -> u64 {
    const TLS: &str = "TTLSRule t\n{\nLocalPortRange 22\nDirection Both\nTTLSGroupActionRef g\n}\n\
        TTLSGroupAction g\n{\nTTLSEnabled Off\n}\n";
    let mut findings = import::Findings::default();
    let tls = import::Input { file: "p", bytes: TLS.as_bytes() };
    let file = import::Input { file: "i", bytes: input };
    let request = attls::Request {
        policies: &["p".to_owned()],
        filters: &["i".to_owned()],
        ..attls::Request::default()
    };
    let imported = attls::import(&request, &import::InMemory(&[tls, file]), &mut findings);
    imported_outcome(imported.policy.is_some(), findings)
}

fn filters_seeds() -> Vec<Vec<u8>> {
    let text = "IpFilterPolicy\n{\nIpFilterRuleRef a\nIpFilterGroupRef g\n}\n\
        IpFilterGroup g\n{\nIpFilterRule b\n{\nIpSourceAddr All\nIpDestAddr 10.0.0.0/8\n\
        IpService\n{\nProtocol all\nDirection bidirectional\n}\n\
        IpGenericFilterActionRef deny\n}\n}\n\
        IpFilterRule a\n{\nIpSourceAddr 192.0.2.1\nIpDestAddr All\nIpServiceRef s\n\
        IpTimeConditionRef t\nIpGenericFilterAction\n{\nIpFilterAction permit\n}\n}\n\
        IpService s\n{\nProtocol tcp\nSourcePortRange 22\nDirection bidirectional\n}\n\
        IpTimeCondition t\n{\nDayOfWeekMask 0111110\n}\n\
        IpGenericFilterAction deny\n{\nIpFilterAction deny\n}\n";
    vec![text.as_bytes().to_vec()]
}

/// A file that may name itself and a directory of it.
fn stunnel(input: &[u8]) -> u64 {
    struct One<'i>(&'i [u8]);
    impl import::Files for One<'_> {
        fn read(&self, _: &str) -> Result<Vec<u8>, String> {
            Ok(self.0.to_vec())
        }
        fn names(&self, _: &str) -> Result<Vec<String>, String> {
            Ok(vec!["0a1b2c3d.0".to_owned()])
        }
    }
    let mut findings = import::Findings::default();
    let options = import::stunnel::Options::default();
    let policy = import::stunnel::import(&["f".to_owned()], &One(input), &options, &mut findings);
    imported_outcome(policy.is_some(), findings)
}

fn stunnel_seeds() -> Vec<Vec<u8>> {
    let text = "cert = /c.pem\nsslVersionMin = TLSv1.2\n[s]\naccept = 993\nconnect = 143\n\
        CAfile = /ca.pem\nverifyChain = yes\ncheckHost = a.example\n\
        [c]\nclient = yes\naccept = /run/c.sock\nconnect = b.example:993\n\
        ciphers = ECDHE+AESGCM:!AES128\ncurves = X25519\nTIMEOUTconnect = 3\n\
        [n]\nsni = s:n.example\ncert = /n.pem\n";
    vec![text.as_bytes().to_vec()]
}

/// All or nothing, and every finding is one line.
#[expect(clippy::fn_params_excessive_bools, reason = "it is an outcome")]
fn imported_outcome(is_imported: bool, findings: import::Findings) -> u64 {
    assert_eq!(is_imported, !findings.has_errors());
    let found = findings.finish();
    for finding in &found {
        assert!(!finding.message.contains(char::is_control), "{finding:?}");
    }
    let first = found.first().map(|finding| {
        let said = finding.message.split('`').step_by(2).collect::<String>();
        said.replace(|c: char| c.is_ascii_digit(), "")
    });
    outcome(&(first, found.len().min(16), is_imported))
}

fn attls(input: &[u8]) -> u64 {
    const MAP: &str = "[job]\n\"CICS*\" = { any = true }\n[user]\n\"WEBSRV\" = \"web\"\n\
        [keyring.\"WEB/RING\"]\ncert = \"a\"\nkey = \"b\"\nca = \"c\"\n";
    let mut findings = import::Findings::default();
    let file = import::Input { file: "p", bytes: input };
    let map = import::Input { file: "m", bytes: MAP.as_bytes() };
    let policies = ["p".to_owned()];
    let request = attls::Request { policies: &policies, map: Some(map), ..Default::default() };
    let imported = attls::import(&request, &import::InMemory(&[file]), &mut findings);
    assert_eq!(imported.policy.is_none(), findings.has_errors());
    let found = findings.finish();
    let ends = input.iter().filter(|b| matches!(b, b'\n' | 0x15 | 0x25)).count();
    // Or records of 80 bytes.
    let lines = ends.max(input.len() / 80) + 1;
    for finding in &found {
        assert!((1..=lines).contains(&finding.line), "{}", finding.render());
        assert!(!finding.message.contains(char::is_control), "{finding:?}");
    }
    let first = found.first().map(|finding| {
        let said = finding.message.split('`').step_by(2).collect::<String>();
        said.replace(|c: char| c.is_ascii_digit(), "")
    });
    outcome(&(first, found.len().min(16), imported.policy.is_some()))
}

/// Believes a length without looking, after a word that must stand first and a byte to be guessed:
/// it takes words, mutations and the growth of the corpus to get there.
fn canary(input: &[u8]) -> u64 {
    match input {
        [b'?', b'!', length, rest @ ..] => {
            let length = usize::from(*length);
            assert!(length < 200 || length < rest.len() || rest.is_empty(), "the canary sings");
            2
        }
        [b'?', ..] => 1,
        _ => 0,
    }
}

pub(super) fn outcome(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
