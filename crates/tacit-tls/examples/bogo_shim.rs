//! Tests this crate with BoringSSL's TLS test runner, for `cargo xtask bogo`. This program connects
//! to the runner and does handshakes. Then it returns every received byte with its bits inverted.
//!
//! Exit status: 0 if all connections ended as expected; 1 if a connection failed (standard error
//! has the reason); 89 if the runner uses an option that this program does not support.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls_pki_types::UnixTime;
use tacit_core::policy::{
    Absent, ChainCheck, ClientCert, ClientCertPolicy, ClientTls, ConnectAfter, Group, Identity,
    Preset, RecheckAction, Rekey, RelayOn, ServerTls, SourcePosition, Start, Suite, TlsCommon,
    TlsVersion, Verify,
};
use tacit_tls::credentials::{LoadedIdentity, load_identity};
use tacit_tls::{
    ClientSettings, CompletedHandshake, Handshake, HandshakeProgress, HotKeys, OpenedBatch,
    ServerSettings, Session,
};

/// The exit status that the runner interprets as "not implemented".
const UNKNOWN: u8 = 89;
/// How long the runner has time to read an alert.
const LINGER: Duration = Duration::from_millis(500);
const READ_BYTES: usize = 32 * 1024;

/// The settings that the runner requests.
#[derive(Debug)]
struct Wanted {
    port: u16,
    shim_id: u64,
    ipv6: bool,
    is_server: bool,
    connections: usize,
    cert: Option<String>,
    key: Option<String>,
    host_name: Option<String>,
    asks_for_certificate: bool,
    requires_certificate: bool,
    has_tls12: bool,
    has_tls13: bool,
    groups: Vec<Group>,
    alpn: Vec<String>,
    writes_first: bool,
    shuts_down: bool,
    checks_close: bool,
    resumes: bool,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            port: 0,
            shim_id: 0,
            ipv6: false,
            is_server: false,
            connections: 1,
            cert: None,
            key: None,
            host_name: None,
            asks_for_certificate: false,
            requires_certificate: false,
            has_tls12: true,
            has_tls13: true,
            groups: Vec::new(),
            alpn: Vec::new(),
            writes_first: false,
            shuts_down: false,
            checks_close: false,
            resumes: true,
        }
    }
}

/// An option that the shim does not support.
#[derive(Debug)]
struct Unknown(String);

impl Wanted {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Unknown> {
        let mut wanted = Self::default();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| Unknown(word.clone()));
            let number = |text: String| text.parse::<u64>().map_err(|_| Unknown(text));
            let small = |text: String| text.parse::<u16>().map_err(|_| Unknown(text));
            match word.as_str() {
                "-port" => wanted.port = small(value()?)?,
                "-shim-id" => wanted.shim_id = number(value()?)?,
                "-ipv6" => wanted.ipv6 = true,
                "-server" => wanted.is_server = true,
                "-resume-count" => wanted.connections = 1 + usize::from(small(value()?)?),
                "-cert-file" => wanted.cert = Some(value()?),
                "-key-file" => wanted.key = Some(value()?),
                "-host-name" => wanted.host_name = Some(value()?),
                "-verify-peer" => wanted.asks_for_certificate = true,
                "-require-any-client-certificate" => {
                    wanted.asks_for_certificate = true;
                    wanted.requires_certificate = true;
                }
                "-no-tls12" => wanted.has_tls12 = false,
                "-no-tls13" => wanted.has_tls13 = false,
                "-min-version" => wanted.has_tls12 &= small(value()?)? < 772,
                "-max-version" => wanted.has_tls13 &= small(value()?)? >= 772,
                "-curves" => wanted.groups.push(group(&value()?)?),
                "-advertise-alpn" => wanted.alpn = protocols(&value()?)?,
                "-select-alpn" => wanted.alpn = vec![value()?],
                "-shim-writes-first" => wanted.writes_first = true,
                "-shim-shuts-down" => wanted.shuts_down = true,
                "-check-close-notify" => wanted.checks_close = true,
                "-no-ticket" => wanted.resumes = false,
                // Versions that tacit never uses, or options whose effect the runner checks itself.
                "-no-tls1"
                | "-no-tls11"
                | "-no-ssl3"
                | "-handshaker-path"
                | "-trust-cert"
                | "-expect-version"
                | "-use-old-client-cert-callback" => skip(&word, value)?,
                _ => return Err(Unknown(word)),
            }
        }
        let has_version = wanted.has_tls12 || wanted.has_tls13;
        if has_version { Ok(wanted) } else { Err(Unknown("no version".into())) }
    }

    fn common(&self) -> TlsCommon {
        let version = |suite: &Suite| match suite.version() {
            TlsVersion::V1_2 => self.has_tls12,
            TlsVersion::V1_3 => self.has_tls13,
        };
        TlsCommon {
            start: Start::Immediate,
            min_version: TlsVersion::V1_2,
            suites: Suite::DEFAULT.into_iter().filter(version).collect(),
            groups: match self.groups.as_slice() {
                [] => Group::DEFAULT.to_vec(),
                groups => groups.to_vec(),
            },
            alpn: self.alpn.clone(),
            resumption: self.resumes,
            handshake_timeout: Duration::from_secs(10),
            rekey: Rekey::default(),
            relay: RelayOn::Worker,
            recheck: RecheckAction::Log,
            max_age: None,
        }
    }

    fn identity(&self) -> Result<Option<LoadedIdentity>, Box<dyn Error>> {
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else { return Ok(None) };
        let identity = Identity {
            cert: cert.into(),
            key: key.into(),
            position: SourcePosition::default(),
            file_positions: tacit_core::policy::FilePositions::default(),
        };
        let keys = tacit_tls::signer::KeyProvider::local();
        Ok(Some(load_identity("shim", &identity, Path::new("/"), &keys)?))
    }
}

/// Skips an option that has no effect here, with its value if it has one.
fn skip(word: &str, mut value: impl FnMut() -> Result<String, Unknown>) -> Result<(), Unknown> {
    match word {
        "-handshaker-path" | "-trust-cert" | "-expect-version" => value().map(|_| ()),
        _ => Ok(()),
    }
}

fn group(number: &str) -> Result<Group, Unknown> {
    match number {
        "23" => Ok(Group::Secp256r1),
        "24" => Ok(Group::Secp384r1),
        "29" => Ok(Group::X25519),
        "4588" => Ok(Group::X25519MLKEM768),
        other => Err(Unknown(format!("curve {other}"))),
    }
}

/// Parses a list of names, each after a byte with its length.
fn protocols(list: &str) -> Result<Vec<String>, Unknown> {
    let mut names = Vec::new();
    let mut rest = list;
    while let Some(length) = rest.bytes().next() {
        let name = rest.get(1..1 + usize::from(length)).ok_or_else(|| Unknown(list.into()))?;
        names.push(name.to_owned());
        rest = &rest[1 + name.len()..];
    }
    Ok(names)
}

/// The settings of the client or of the server.
enum Settings {
    Client(Arc<ClientSettings>),
    Server(Arc<ServerSettings>),
}

impl Settings {
    fn of(wanted: &Wanted) -> Result<Self, Box<dyn Error>> {
        let common = wanted.common();
        let identity = wanted.identity()?;
        if !wanted.is_server {
            let tls = ClientTls {
                identity: None,
                verify: Verify::None { server_name: wanted.host_name.clone() },
                sni: wanted.host_name.is_some(),
                connect: ConnectAfter::Answered,
                own_tls: None,
                common,
            };
            let settings = ClientSettings::new(&tls, identity.as_ref(), None, None)?;
            return Ok(Self::Client(Arc::new(settings)));
        }
        let absent = if wanted.requires_certificate { Absent::Deny } else { Absent::Allow };
        let chain = ChainCheck::Waived;
        let requested = ClientCertPolicy { preset: Some(Preset::PassThru), absent, chain };
        let client_cert = match wanted.asks_for_certificate {
            true => ClientCert::Requested(requested),
            false => ClientCert::None,
        };
        let identities = identity.into_iter().map(Arc::new).collect::<Vec<_>>();
        let tls =
            ServerTls { identities: vec!["shim".into()], client_cert, clear_clients: None, common };
        let settings = ServerSettings::new(&tls, &identities, None, None, None)?;
        Ok(Self::Server(Arc::new(settings)))
    }

    fn begin(&self) -> Result<Handshake, Box<dyn Error>> {
        Ok(match self {
            Self::Client(settings) => Handshake::client(settings, &[])?,
            Self::Server(settings) => Handshake::server(settings)?,
        })
    }
}

/// A connection to the runner.
struct Connection {
    socket: TcpStream,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Connection {
    fn open(wanted: &Wanted) -> Result<Self, Box<dyn Error>> {
        let mut socket = match wanted.ipv6 {
            true => TcpStream::connect((Ipv6Addr::LOCALHOST, wanted.port))?,
            false => TcpStream::connect((Ipv4Addr::LOCALHOST, wanted.port))?,
        };
        socket.set_nodelay(true)?;
        socket.write_all(&wanted.shim_id.to_le_bytes())?;
        Ok(Self { socket, incoming: Vec::new(), outgoing: Vec::new() })
    }

    fn flush(&mut self) -> Result<(), Box<dyn Error>> {
        self.socket.write_all(&self.outgoing)?;
        self.outgoing.clear();
        Ok(())
    }

    /// Reads; returns 0 if the runner has closed its side.
    fn read(&mut self) -> Result<usize, Box<dyn Error>> {
        let mut bytes = vec![0; READ_BYTES];
        let count = self.socket.read(&mut bytes)?;
        self.incoming.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn handshake(&mut self, mut handshake: Handshake) -> Result<Session, Box<dyn Error>> {
        loop {
            let progress = handshake.advance(&mut self.incoming, &mut self.outgoing);
            if !matches!(progress, Ok(HandshakeProgress::Done)) {
                self.flush()?;
            }
            if progress? == HandshakeProgress::Done {
                break;
            }
            if self.read()? == 0 {
                return Err(handshake.cut_off().into());
            }
            if self.incoming.len() > tacit_tls::INCOMING_BYTES_MAX {
                let failure = handshake.too_long(&mut self.incoming, &mut self.outgoing);
                self.flush()?;
                return Err(failure.into());
            }
        }
        match handshake.finish(Rekey::default(), Instant::now(), UnixTime::now()) {
            Ok(CompletedHandshake { session, .. }) => Ok(session),
            Err(mut refused) => {
                self.outgoing.append(&mut refused.alert);
                self.flush()?;
                Err(refused.failure.into())
            }
        }
    }

    /// Sends back the received bytes until the runner closes.
    fn echo(&mut self, mut session: Session, wanted: &Wanted) -> Result<(), Box<dyn Error>> {
        let mut hot = HotKeys::default();
        if wanted.writes_first {
            self.outgoing.extend(session.seal(b"hello")?);
        }
        if wanted.shuts_down {
            session.seal_close(&mut self.outgoing)?;
        }
        loop {
            let mut payloads = Vec::new();
            let opened = session.open_batch(&mut hot, &mut self.incoming, &mut payloads);
            for payload in payloads {
                let inverted: Vec<_> = self.incoming[payload].iter().map(|byte| !byte).collect();
                if !wanted.shuts_down && !inverted.is_empty() {
                    session.seal_due(Instant::now, &mut self.outgoing)?;
                    self.outgoing.extend(session.seal(&inverted)?);
                }
            }
            let OpenedBatch { consumed, closed } = match opened {
                Ok(batch) => batch,
                Err(error) => {
                    if let Some(alert) = error.alert() {
                        session.seal_alert(alert, &mut self.outgoing)?;
                    }
                    self.flush()?;
                    return Err(error.into());
                }
            };
            self.incoming.drain(..consumed);
            session.seal_due(Instant::now, &mut self.outgoing)?;
            if closed {
                if !wanted.shuts_down {
                    session.seal_close(&mut self.outgoing)?;
                }
                return self.flush();
            }
            self.flush()?;
            if self.read()? == 0 {
                return match wanted.checks_close {
                    true => {
                        Err("the test runner closed the connection without close_notify".into())
                    }
                    false => Ok(()),
                };
            }
        }
    }

    /// Ends the connection such that the runner can read the alert before the end of the stream.
    fn linger(mut self) {
        let _ = self.socket.shutdown(Shutdown::Write);
        let _ = self.socket.set_read_timeout(Some(LINGER));
        let mut rest = [0; 4096];
        while matches!(self.socket.read(&mut rest), Ok(1..)) {}
    }
}

fn run(wanted: &Wanted) -> Result<(), Box<dyn Error>> {
    let settings = Settings::of(wanted)?;
    for _ in 0..wanted.connections {
        let mut connection = Connection::open(wanted)?;
        let handshake = settings.begin()?;
        let result =
            connection.handshake(handshake).and_then(|session| connection.echo(session, wanted));
        connection.linger();
        result?;
    }
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "-is-handshaker-supported") {
        println!("No");
        return ExitCode::SUCCESS;
    }
    let wanted = match Wanted::parse(std::env::args().skip(1)) {
        Ok(wanted) => wanted,
        Err(Unknown(word)) => {
            eprintln!("unknown option: {word}");
            return UNKNOWN.into();
        }
    };
    match run(&wanted) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
