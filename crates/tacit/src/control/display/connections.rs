//! Defines the content of `tacit show connections`, as types that are serialised to JSON.

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Weak;
use std::time::SystemTime;

use serde::{Deserialize, Serialize, Serializer};
use tacit_core::flow::{Address, Protocol};
use tacit_core::query::ConnectionState;
use tacit_sys::socket;
use tacit_tls::PeerCheck;
use tacit_tls::facts::CertificateFacts;
use tacit_tls::verify::{PeerIdentity, identity};

use crate::clock::Rfc3339;
use crate::live::Live;
use crate::run::protocol::SocketOwner;
use crate::session::{ConnectionPath, ConnectionRecord, ConnectionTable, TlsFacts};

use super::{VERSION, client_cert, owners, role};

/// The `path` of connections with a socket of the agent's network.
pub const HANDED: &str = "handed";

/// The open connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionsDisplay {
    /// The version of this format.
    pub version: u32,
    /// The connections, the oldest first.
    pub connections: Vec<ConnectionDisplay>,
}

/// One connection. `in` counts what was read from the downstream (accepted) socket, `out` what was
/// written to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionDisplay {
    /// The number of the connection, from 1 since the agent started.
    pub id: u64,
    /// The connection that negotiated this one, such as the control connection of FTP.
    pub parent: Option<u64>,
    /// The rule that it opened with.
    pub rule: String,
    /// The run that it belongs to.
    pub run: Option<ConnectionRun>,
    /// The role of tacit in TLS, `server` or `client`; `None` without TLS.
    pub role: Option<String>,
    /// The transport protocol.
    pub protocol: Protocol,
    /// How its bytes are relayed.
    pub path: String,
    /// The STARTTLS exchange before its TLS.
    pub starttls: Option<StarttlsState>,
    /// Whether TLS is on, if the program decides when it begins.
    pub controlled: Option<ConnectionState>,
    /// `setting-up`, `waiting` for the first message that starts a program, or `open`.
    pub state: String,
    /// `current`, or `stale` if its rule was changed or removed.
    pub policy: String,
    /// The address that connected.
    pub remote: Address,
    /// The client that a PROXY header names.
    pub client: Option<Address>,
    /// The address at which the agent accepted the connection.
    pub local: Address,
    /// The address that the agent connected to.
    pub connect: Option<Address>,
    /// Payload bytes from the client.
    pub bytes_in: u64,
    /// Payload bytes to the client.
    pub bytes_out: u64,
    /// Messages from the client: bytes without a byte in the other direction in between.
    pub messages_in: u32,
    /// Messages to the client.
    pub messages_out: u32,
    /// CPU time of the agent, in microseconds.
    pub cpu_us: f64,
    /// When the connection was accepted.
    pub since: Rfc3339,
    /// The age of the connection, in seconds.
    pub age_s: u64,
    /// The results of the TLS handshake.
    pub tls: Option<TlsState>,
    /// The downstream (accepted) socket, if it is a TCP socket.
    pub accepted_tcp: Option<TcpState>,
    /// The upstream (connected) socket, if it is a TCP socket.
    pub connected_tcp: Option<TcpState>,
}

/// The run of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionRun {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The process number of its launcher.
    pub pid: u32,
    /// Its user.
    pub user: String,
    /// Whether another user's launcher reported pid, user and program, unchecked.
    pub claimed: bool,
    /// `inbound` or `outbound`.
    pub direction: String,
    /// The DNS names that the program looked up to get the remote address.
    pub names: Vec<String>,
    /// The alias that the program connected to instead of the remote address.
    pub alias: Option<IpAddr>,
    /// The program, if the run's helper answered in time.
    pub program: Option<ConnectionProgram>,
}

/// The program of a connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ConnectionProgram {
    /// Its process.
    pub pid: u32,
    /// Its executable.
    pub path: Option<PathBuf>,
    /// The file name of the executable.
    pub name: Option<String>,
}

/// A STARTTLS exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StarttlsState {
    /// `ftp`, `smtp`, ….
    pub protocol: String,
    /// `required` or `optional`.
    pub mode: String,
    /// `exchange`, then `tls` or `clear`.
    pub state: String,
}

/// The results of a TLS handshake.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TlsState {
    /// The version: `1.2` or `1.3`.
    pub version: String,
    /// The IANA name of the cipher suite.
    pub suite: String,
    /// The IANA name of the key exchange group; absent if a TLS 1.2 session was resumed.
    pub group: Option<String>,
    /// The application protocol (ALPN).
    pub alpn: Option<String>,
    /// The server name (SNI).
    pub server_name: Option<String>,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
    /// The number of KeyUpdate messages sent.
    pub rekeys: u32,
    /// The result of the verification of the peer's certificate.
    pub check: PeerCheck,
    /// `client-cert` of the rule.
    pub client_cert: Option<String>,
    /// The identity of the peer.
    pub peer: PeerIdentity,
    /// The certificate of the peer.
    pub certificate: Option<CertificateState>,
    /// The chain that a trusted peer sent, the peer's own certificate first.
    pub chain: Vec<CertificateState>,
}

/// The fields of a certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CertificateState {
    /// Its subject.
    pub subject: String,
    /// Its issuer.
    pub issuer: String,
    /// Its serial number, hexadecimal.
    pub serial: String,
    /// The names in subjectAltName.
    pub sans: Vec<String>,
    /// When it becomes valid.
    pub not_before: Rfc3339,
    /// When it expires.
    pub not_after: Rfc3339,
    /// The version of X.509.
    pub version: u32,
    /// The kind and size of its key.
    pub key: String,
    /// Whether issuer and subject are the same name.
    pub is_self_signed: bool,
    /// Whether it is the certificate of a CA.
    pub is_ca: bool,
    /// Extended key usages; empty: any.
    pub usages: Vec<String>,
    /// SHA-256 of its DER form, hexadecimal.
    pub sha256: String,
}

/// The state of a TCP socket as the kernel reports it (`TCP_INFO`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TcpState {
    /// The state of the connection, as in `ss`.
    pub state: String,
    /// Smoothed round-trip time.
    pub rtt_us: u32,
    /// Its mean deviation.
    pub rtt_deviation_us: u32,
    /// The smallest round-trip time.
    pub rtt_min_us: u32,
    /// Retransmission timeout.
    pub rto_us: u32,
    /// Congestion window.
    pub cwnd_segments: u32,
    /// Slow start threshold; absent before the first loss.
    pub ssthresh_segments: Option<u32>,
    /// Largest segment that is sent.
    pub mss_bytes: u32,
    /// Largest segment that was received, as the kernel estimates it.
    pub receive_mss_bytes: u32,
    /// Path MTU.
    pub path_mtu_bytes: u32,
    /// The window that the peer advertises; 0 where the kernel does not report it.
    pub send_window_bytes: u32,
    /// The window that is advertised to the peer; 0 where the kernel does not report it.
    pub receive_window_bytes: u32,
    /// Segments sent.
    pub segments_out: u32,
    /// Segments received.
    pub segments_in: u32,
    /// Segments sent again.
    pub retransmits: u32,
    /// Segments that the kernel considers lost.
    pub lost_segments: u32,
    /// Bytes sent that are not acknowledged.
    pub unacknowledged_bytes: Option<usize>,
    /// Bytes written that are not sent.
    pub unsent_bytes: u32,
    /// Bytes received that are not read.
    pub unread_bytes: Option<usize>,
    /// Size of the send buffer.
    pub send_buffer_bytes: Option<usize>,
    /// Size of the receive buffer.
    pub receive_buffer_bytes: Option<usize>,
    /// Time since data was last sent.
    pub last_sent_ms: u32,
    /// Time since data was last received.
    pub last_received_ms: u32,
    /// The congestion control algorithm.
    pub congestion_control: Option<String>,
}

impl ConnectionDisplay {
    /// The client: the one that a PROXY header names, or the address that connected.
    #[must_use]
    pub fn origin(&self) -> &Address {
        self.client.as_ref().unwrap_or(&self.remote)
    }

    /// The network-side socket.
    #[must_use]
    pub fn network_tcp(&self) -> Option<&TcpState> {
        match self.role.as_deref() {
            Some("server") => self.accepted_tcp.as_ref(),
            _ => self.connected_tcp.as_ref(),
        }
    }

    /// The program, as `NAME[PID]`.
    #[must_use]
    pub fn program(&self) -> Option<String> {
        let run = self.run.as_ref()?;
        let program = run.program.as_ref()?;
        let name = program.name.as_deref().unwrap_or("-");
        let claim = if run.claimed { " (claimed)" } else { "" };
        Some(format!("{name}[{}]{claim}", program.pid))
    }
}

/// All connections. Asks the helpers of runs which programs own their connections.
pub async fn connections(table: &ConnectionTable, live: &Live) -> ConnectionsDisplay {
    let records = table.snapshot();
    let owners = owners(&records).await;
    let now = SystemTime::now();
    let shown = records.iter().map(|record| connection(record, live, now, owners.get(&record.id)));
    ConnectionsDisplay { version: VERSION, connections: shown.collect() }
}

/// The connection of that number, if it is open.
pub async fn one_connection(
    table: &ConnectionTable,
    live: &Live,
    id: u64,
) -> Option<ConnectionsDisplay> {
    let record = table.find(id)?;
    let records = [record];
    let owners: HashMap<_, _> = owners(&records).await;
    let [record] = &records;
    let shown = connection(record, live, SystemTime::now(), owners.get(&id));
    Some(ConnectionsDisplay { version: VERSION, connections: vec![shown] })
}

fn connection(
    record: &ConnectionRecord,
    live: &Live,
    now: SystemTime,
    owner: Option<&SocketOwner>,
) -> ConnectionDisplay {
    let sockets = record.sockets.get();
    let tls = record.tls.get();
    let starttls = record.rule.starttls().map(|starttls| StarttlsState {
        protocol: starttls.protocol.word().to_owned(),
        mode: starttls.mode.word().to_owned(),
        state: match tls {
            Some(_) => "tls",
            None if record.is_open() => "clear",
            None => "exchange",
        }
        .to_owned(),
    });
    ConnectionDisplay {
        id: record.id,
        parent: record.parent().map(std::num::NonZero::get),
        rule: record.rule.name().to_owned(),
        run: run_of(record, owner),
        role: role(&record.rule).map(str::to_owned),
        protocol: record.protocol,
        path: path_of(record),
        starttls,
        controlled: record.tls_control().map(|_| record.state()),
        state: state_of(record).to_owned(),
        policy: if live.is_current(&record.rule) { "current" } else { "stale" }.to_owned(),
        remote: record.remote.clone(),
        client: record.proxied().map(|proxied| proxied.client.clone()),
        local: record.local.clone(),
        connect: sockets.map(|sockets| sockets.target.clone()),
        bytes_in: record.sent_bytes(),
        bytes_out: record.received_bytes(),
        messages_in: record.sent_messages(),
        messages_out: record.received_messages(),
        cpu_us: record.cpu_ns() as f64 / 1000.0,
        since: Rfc3339(record.accepted.system_time()),
        age_s: now.duration_since(record.accepted.system_time()).unwrap_or_default().as_secs(),
        tls: tls.map(|tls| tls_state(record, &tls)),
        accepted_tcp: sockets.and_then(|sockets| tcp(&sockets.downstream)),
        connected_tcp: sockets.and_then(|sockets| tcp(&sockets.upstream)),
    }
}

fn state_of(record: &ConnectionRecord) -> &'static str {
    if record.is_waiting() {
        "waiting"
    } else if record.is_open() {
        "open"
    } else {
        "setting-up"
    }
}

/// How its bytes reach the destination: `relay`, with the reason if the rule allows another path,
/// or `handed`.
fn path_of(record: &ConnectionRecord) -> String {
    let Some(facts) = &record.scope else { return "relay".to_owned() };
    match &facts.path {
        ConnectionPath::Handed(_) => HANDED.to_owned(),
        ConnectionPath::Relay(Some(reason)) => {
            // What applies to the whole run may become known later than the first connection.
            let of_run = || facts.scope.run().why_all_relayed();
            match reason.get().copied().or_else(of_run) {
                Some(reason) => format!("relay ({})", reason.word()),
                None => "relay".to_owned(),
            }
        }
        ConnectionPath::Relay(None) => "relay".to_owned(),
    }
}

fn run_of(record: &ConnectionRecord, owner: Option<&SocketOwner>) -> Option<ConnectionRun> {
    let facts = record.scope.as_ref()?;
    let run = facts.scope.run();
    let name = |path: &PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    Some(ConnectionRun {
        id: run.id,
        name: run.name.clone(),
        pid: run.pid,
        user: run.user.clone(),
        claimed: run.claimed,
        direction: if facts.is_inbound { "inbound" } else { "outbound" }.to_owned(),
        names: facts.names.clone(),
        alias: facts.alias,
        program: owner.or_else(|| record.handed_to()).and_then(|owner| {
            let name = owner.program.as_ref().and_then(name);
            Some(ConnectionProgram { pid: owner.pid?, path: owner.program.clone(), name })
        }),
    })
}

fn tls_state(record: &ConnectionRecord, tls: &TlsFacts) -> TlsState {
    let agreed = &tls.agreed;
    let chain = tls.trusted.as_ref().map(|trusted| trusted.chain.certificates());
    let facts = chain.into_iter().flatten().filter_map(|one| CertificateFacts::from_der(one).ok());
    TlsState {
        version: agreed.version.word().to_owned(),
        suite: agreed.suite.to_owned(),
        group: agreed.group.map(str::to_owned),
        alpn: agreed.alpn.clone(),
        server_name: agreed.server_name.clone(),
        resumed: agreed.resumed,
        rekeys: record.rekeys(),
        check: tls.check.clone(),
        client_cert: client_cert(&record.rule),
        peer: identity(&tls.check, &tls.named, tls.peer.as_deref()),
        certificate: tls.peer.as_deref().map(CertificateState::of),
        chain: facts.map(|facts| CertificateState::of(&facts)).collect(),
    }
}

impl CertificateState {
    /// Serialises the fields of a certificate, for serde's `serialize_with`.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize_facts<S: Serializer>(
        facts: &CertificateFacts,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Self::of(facts).serialize(serializer)
    }

    /// The fields of this certificate.
    #[must_use]
    pub fn of(facts: &CertificateFacts) -> Self {
        Self {
            subject: facts.subject.clone(),
            issuer: facts.issuer.clone(),
            serial: facts.serial.clone(),
            sans: facts.sans.clone(),
            not_before: Rfc3339::of_unix_s(facts.not_before),
            not_after: Rfc3339::of_unix_s(facts.not_after),
            version: facts.version,
            key: facts.key.clone(),
            is_self_signed: facts.is_self_signed,
            is_ca: facts.is_ca,
            usages: facts.usages.clone(),
            sha256: facts.sha256.clone(),
        }
    }
}

fn tcp(socket: &Weak<OwnedFd>) -> Option<TcpState> {
    let socket = socket.upgrade()?;
    let socket = socket.as_fd();
    let info = socket::tcp_info(socket).ok()?;
    let buffers = socket::buffer_bytes(socket).ok();
    Some(TcpState {
        state: info.state_word().to_owned(),
        rtt_us: info.rtt_us,
        rtt_deviation_us: info.rtt_deviation_us,
        rtt_min_us: info.rtt_min_us,
        rto_us: info.rto_us,
        cwnd_segments: info.congestion_window_segments,
        ssthresh_segments: info.slow_start_threshold_segments,
        mss_bytes: info.segment_bytes_max,
        receive_mss_bytes: info.received_segment_bytes_max,
        path_mtu_bytes: info.path_mtu_bytes,
        send_window_bytes: info.send_window_bytes,
        receive_window_bytes: info.receive_window_bytes,
        segments_out: info.segments_out,
        segments_in: info.segments_in,
        retransmits: info.retransmits,
        lost_segments: info.lost_segments,
        unacknowledged_bytes: socket::unacknowledged_bytes(socket).ok(),
        unsent_bytes: info.unsent_bytes,
        unread_bytes: socket::unread_bytes(socket).ok(),
        send_buffer_bytes: buffers.map(|buffers| buffers.send),
        receive_buffer_bytes: buffers.map(|buffers| buffers.receive),
        last_sent_ms: info.last_sent_ms,
        last_received_ms: info.last_received_ms,
        congestion_control: socket::congestion_control(socket).ok(),
    })
}

/// A connection for tests.
#[cfg(test)]
pub(crate) fn example(id: u64) -> ConnectionDisplay {
    let here = Address::Unnamed;
    ConnectionDisplay {
        id,
        parent: None,
        rule: "web".to_owned(),
        run: None,
        role: None,
        protocol: Protocol::Tcp,
        path: "relay".to_owned(),
        starttls: None,
        controlled: None,
        state: "open".to_owned(),
        policy: "current".to_owned(),
        remote: here.clone(),
        client: None,
        local: here,
        connect: None,
        bytes_in: 0,
        bytes_out: 0,
        messages_in: 0,
        messages_out: 0,
        cpu_us: 0.0,
        since: Rfc3339(SystemTime::UNIX_EPOCH),
        age_s: 0,
        tls: None,
        accepted_tcp: None,
        connected_tcp: None,
    }
}
