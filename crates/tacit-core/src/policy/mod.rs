//! Policy: who we are, whom we believe, and what happens to each flow.
//!
//! Text goes in at [`parse`], a [`Policy`] comes out that cannot hold nonsense: every reference
//! resolves, every rule has exactly one action, every number is inside its limits. What remains to
//! be found out (do files exist, does the key fit the certificate) needs I/O and is the agent's.
//!
//! Rules are ordered; the first that matches decides, and where none matches the flow is denied.
//! [`Rule::matches`] is what that means, [`Index`] finds the rule among many, and [`explain`] says
//! why it was that one.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde::Serialize;

use crate::flow::{Address, Flow};

mod capture;
mod client_cert;
mod diagnostic;
pub mod engine;
mod explain;
mod lookup;
pub mod map;
mod parse;
pub mod selector;
mod starttls;
pub mod text;
pub mod when;

pub use capture::{BOXES_MAX, Captured, can_match_name, captured};
pub use client_cert::{Absent, Asked, ChainCheck, ClientCert, Invalid, PeerName, Preset};
pub use diagnostic::{Diagnostic, Position, Severity};
pub use engine::{Class, Engine, Placement, RelayOn};
pub use explain::{Decision, Explanation, Missed, explain};
pub use lookup::{Index, Lookup};
pub use map::Map;
pub use parse::{
    POLICY_BYTES_MAX, Parsed, RULES_MAX, parse, parse_duration, parse_size, suite_refusal,
};
pub use selector::{Mismatch, Selectors};
pub use starttls::{DataResumption, Ftp, Start, Starttls, StarttlsMode, StarttlsProtocol};
pub use when::When;

/// A whole policy, ready to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `[identity.NAME]`: who we are.
    pub identities: BTreeMap<String, Identity>,
    /// `[trust.NAME]`: whom we believe. Holds `system` too, if a rule names it.
    pub trusts: BTreeMap<String, Trust>,
    /// `[[map.NAME]]`: names for those who show certificates.
    pub maps: BTreeMap<String, Map>,
    /// `[[rule]]`, in order.
    pub rules: Vec<Rule>,
    /// `[agent]`.
    pub agent: Agent,
    /// `[engine]`; `None`: no CPU is set aside.
    pub engine: Option<Engine>,
    /// `[limits]`.
    pub limits: Limits,
}

/// A certificate with its key. Paths are absolute or relative to the policy file's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PEM file: the certificate, then the intermediates.
    pub cert: PathBuf,
    /// PEM file: PKCS#8, PKCS#1 or SEC1 key.
    pub key: PathBuf,
    /// Where the table stands in the policy text.
    pub position: Position,
}

/// Where trust anchors come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The source of the anchors.
    pub source: TrustSource,
    /// PEM or DER files of certificate revocation lists.
    pub crls: Vec<PathBuf>,
    /// Whether they are looked at.
    pub revocation: Revocation,
    /// Where the table stands in the policy text; for `system`, where it was first named.
    pub position: Position,
}

/// The file or files that hold trust anchors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource {
    /// PEM files of CA certificates.
    Files(Vec<PathBuf>),
    /// The distribution's own bundle.
    System,
}

/// What is asked about revocation; anything but off only where there are lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revocation {
    /// Nothing.
    #[default]
    Off,
    /// What a list names is refused; what no current list tells of is believed, and that is logged.
    Soft,
    /// What no current list tells of is refused too.
    Hard,
}

impl Revocation {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }
}

/// One rule: which flows, and what happens to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique; shown in every display.
    pub name: String,
    /// Which flows.
    pub selectors: Selectors,
    /// How its flows reach the agent.
    pub form: Form,
    /// What happens.
    pub action: Action,
    /// Whether each connection's start and end are logged.
    pub log: bool,
    /// Where the rule begins in the policy text.
    pub position: Position,
}

impl Rule {
    /// Whether it says the same, wherever in the text it stands.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let Self { name, selectors, form, action, log, position: _ } = self;
        *name == other.name
            && *selectors == other.selectors
            && *form == other.form
            && *action == other.action
            && *log == other.log
    }

    /// The sockets of a forwarding rule; `None` for a rule about runs.
    #[must_use]
    pub fn forward(&self) -> Option<&Forward> {
        match &self.form {
            Form::Forward(forward) => Some(forward),
            Form::Inbound(_) | Form::Outbound => None,
        }
    }

    /// The way into a run; `None` unless the rule is an inbound rule about runs.
    #[must_use]
    pub fn inbound(&self) -> Option<&Inbound> {
        match &self.form {
            Form::Inbound(inbound) => Some(inbound),
            Form::Forward(_) | Form::Outbound => None,
        }
    }

    /// Where its flows arrive; empty for a rule about what programs open.
    #[must_use]
    pub fn listens(&self) -> &[Address] {
        match &self.form {
            Form::Forward(forward) => &forward.listen,
            Form::Inbound(inbound) => &inbound.listen,
            Form::Outbound => &[],
        }
    }

    /// Whether TLS is on the leg that is accepted; without TLS, or where it is on the dialled one,
    /// that leg is in clear.
    ///
    /// TLS is on the leg away from the program, whichever role tacit takes there. A forwarding rule
    /// knows no program: there the role says the leg, a server's was accepted, a client's dialled.
    #[must_use]
    pub fn tls_arrives(&self) -> bool {
        let Action::Tls(tls) = &self.action else { return false };
        match &self.form {
            Form::Forward(_) => matches!(tls, Tls::Server(_)),
            Form::Inbound(_) => true,
            Form::Outbound => false,
        }
    }

    /// Whether the rule is about the flow; if not, what speaks against it first.
    ///
    /// This is the meaning of a rule. [`Index`] finds the same answer among many rules faster.
    ///
    /// # Errors
    /// The first selector, in the order of [`Mismatch`], that does not hold.
    pub fn matches(&self, flow: &Flow) -> Result<(), Mismatch> {
        let listens = match &flow.listen {
            Some(arrived) => self.listens().contains(arrived),
            None => self.listens().is_empty(),
        };
        if !listens {
            return Err(Mismatch::Listen);
        }
        self.selectors.matches(flow, self.action == Action::Deny)
    }
}

/// What happens to a flow. Each action owns its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly every rule is a TLS rule")]
pub enum Action {
    /// Carry the bytes as they are.
    Permit,
    /// Refuse.
    Deny,
    /// TLS on the leg away from the program.
    Tls(Tls),
}

impl Action {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
            Self::Tls(_) => "tls",
        }
    }
}

/// How the flows of a rule reach the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A forwarding rule: the agent accepts at `listen` and connects to `connect`. Its flows are
    /// inbound TCP.
    Forward(Forward),
    /// An inbound rule about runs: the agent accepts outside a run and connects to a program of it.
    Inbound(Inbound),
    /// An outbound rule about runs: the agent accepts what a program of a run opens.
    Outbound,
}

/// The sockets of a forwarding rule: accept at `listen`, connect to `connect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Where connections arrive; at least one.
    pub listen: Vec<Address>,
    /// Where they go. `None` only for a deny.
    pub connect: Option<Target>,
    /// Read a PROXY protocol v2 header before anything else, and take the client address from it.
    pub accept_proxy: bool,
    /// The PROXY protocol v2 header that is sent before anything else, if one is.
    pub send_proxy: Option<SendProxy>,
    /// How long dialling `connect` may take in all.
    pub connect_timeout: Duration,
    /// Mode and owner of UNIX sockets at `listen`.
    pub unix: UnixSocket,
}

/// What a PROXY protocol header that is sent says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProxy {
    /// Who the client is, and where it connected to.
    Addresses,
    /// And what there is to say of its TLS. Server role only.
    Tls,
}

/// The way into a run: accept at `listen` outside, carry to where the program listens inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Where connections arrive; at least one, all with an IP address.
    pub listen: Vec<Address>,
    /// Where the program listens; at least one. They say where connections go and select nothing.
    pub local_ports: Vec<RangeInclusive<u16>>,
}

/// How a UNIX socket at `listen` is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// Permission bits; default 0o600.
    pub mode: u32,
    /// `user`, `user:group` or `:group`; names or numbers. Default: who the agent is.
    pub owner: Option<String>,
    /// Whether a socket file that nobody listens on is replaced. One with a live owner never is.
    pub replace_stale: bool,
}

/// Where a rule connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// An address that needs no resolver.
    Address(Address),
    /// A host name, resolved again and again.
    Name {
        /// Lower case, no final dot.
        host: String,
        /// Its port.
        port: u16,
    },
}

impl Target {
    /// Whether bytes sent there cannot leave this host.
    #[must_use]
    pub fn stays_on_host(&self) -> bool {
        match self {
            Self::Address(address) => address.stays_on_host(),
            Self::Name { host, .. } => host == "localhost",
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// TLS by role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// tacit answers the handshake.
    Server(ServerTls),
    /// tacit opens the handshake.
    Client(ClientTls),
}

impl Tls {
    /// What both roles have.
    #[must_use]
    pub fn common(&self) -> &TlsCommon {
        match self {
            Self::Server(tls) => &tls.common,
            Self::Client(tls) => &tls.common,
        }
    }

    /// The word the policy uses for the role.
    #[must_use]
    pub fn role(&self) -> &'static str {
        match self {
            Self::Server(_) => "server",
            Self::Client(_) => "client",
        }
    }
}

/// `tls = { role = "server", … }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Names of identities, at least one; chosen by SNI, the first where none fits.
    pub identities: Vec<String>,
    /// What is asked of the client.
    pub client_cert: ClientCert,
    /// What both roles have.
    pub common: TlsCommon,
}

/// `tls = { role = "client", … }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// Name of the identity presented if the server asks; never a default.
    pub identity: Option<String>,
    /// How the server is checked.
    pub verify: Verify,
    /// Whether the server name is sent (SNI).
    pub sni: bool,
    /// What both roles have.
    pub common: TlsCommon,
}

/// How a client checks a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Chain and name.
    Full {
        /// Name of the trust.
        trust: String,
        /// The name (or IP address) the certificate must cover; `None` in a rule about runs:
        /// the name the program asked for.
        server_name: Option<String>,
    },
    /// The chain, and no name; warned about.
    Chain {
        /// Name of the trust.
        trust: String,
        /// The name for SNI and for resumption, if there is one.
        server_name: Option<String>,
    },
    /// Nothing is checked; warned about.
    None {
        /// The name for SNI and for resumption, if there is one.
        server_name: Option<String>,
    },
}

impl Verify {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Full { .. } => "full",
            Self::Chain { .. } => "chain",
            Self::None { .. } => "none",
        }
    }
}

/// What both TLS roles have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsCommon {
    /// When TLS begins.
    pub start: Start,
    /// Oldest version accepted.
    pub min_version: TlsVersion,
    /// Suites, in order of preference; never empty.
    pub suites: Vec<Suite>,
    /// Key exchange groups, in order of preference; never empty.
    pub groups: Vec<Group>,
    /// Application protocols, in order of preference; empty: the extension is not used.
    pub alpn: Vec<String>,
    /// Whether sessions may be resumed.
    pub resumption: bool,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// When to send a KeyUpdate (RFC 8446 section 4.6.3); needs `min_version` 1.3.
    pub rekey: Rekey,
    /// Which threads carry its bytes.
    pub relay: RelayOn,
}

/// When new keys are made. Both unset: only at the suite's own limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rekey {
    /// After this many bytes of plaintext, both directions together.
    pub bytes: Option<NonZeroU64>,
    /// After this long.
    pub after: Option<Duration>,
}

/// A TLS version tacit speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum TlsVersion {
    /// RFC 5246.
    #[serde(rename = "1.2")]
    V1_2,
    /// RFC 8446.
    #[serde(rename = "1.3")]
    V1_3,
}

impl TlsVersion {
    /// As policies write it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::V1_2 => "1.2",
            Self::V1_3 => "1.3",
        }
    }
}

/// A cipher suite tacit speaks; names are IANA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
pub enum Suite {
    TLS_AES_128_GCM_SHA256,
    TLS_AES_256_GCM_SHA384,
    TLS_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
}

impl Suite {
    /// Every suite, in the default order: AES-128-GCM first, whose SHA-256 is the cheaper hash.
    pub const DEFAULT: [Self; 9] = [
        Self::TLS_AES_128_GCM_SHA256,
        Self::TLS_AES_256_GCM_SHA384,
        Self::TLS_CHACHA20_POLY1305_SHA256,
        Self::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        Self::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        Self::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        Self::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        Self::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        Self::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ];

    /// IANA's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TLS_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
            Self::TLS_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
            Self::TLS_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
            Self::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => {
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
            }
            Self::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => {
                "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
            }
            Self::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => {
                "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
            }
            Self::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            Self::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            Self::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => {
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
            }
        }
    }

    /// The version the suite belongs to.
    #[must_use]
    pub fn version(self) -> TlsVersion {
        match self {
            Self::TLS_AES_128_GCM_SHA256
            | Self::TLS_AES_256_GCM_SHA384
            | Self::TLS_CHACHA20_POLY1305_SHA256 => TlsVersion::V1_3,
            _ => TlsVersion::V1_2,
        }
    }
}

/// A key exchange group tacit speaks; names are IANA's, compared without case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Group {
    X25519MLKEM768,
    X25519,
    Secp256r1,
    Secp384r1,
}

impl Group {
    /// Every group, in the default order: the hybrid post-quantum one first.
    pub const DEFAULT: [Self; 4] =
        [Self::X25519MLKEM768, Self::X25519, Self::Secp256r1, Self::Secp384r1];

    /// IANA's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::X25519MLKEM768 => "X25519MLKEM768",
            Self::X25519 => "x25519",
            Self::Secp256r1 => "secp256r1",
            Self::Secp384r1 => "secp384r1",
        }
    }
}

/// `[agent]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agent {
    /// Most data workers; `None`: one for every two CPUs, with `placement` one for each.
    pub workers: Option<usize>,
    /// Congestion control of every TCP socket; `None`: cubic where the kernel has it.
    pub congestion_control: Option<String>,
    /// Whether peers' chains that were verified are remembered.
    pub chain_cache: bool,
    /// Whether CPU time is charged to rules and components.
    pub accounting: bool,
    /// Where workers and programs of runs are put.
    pub placement: Placement,
    /// The CPUs that placement chooses from; empty: all that are not set aside for engines.
    pub placement_cpus: Vec<usize>,
    /// Where metrics are served over HTTP; `None`: nowhere.
    pub metrics: Option<Address>,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            workers: None,
            congestion_control: None,
            chain_cache: true,
            accounting: true,
            placement: Placement::None,
            placement_cpus: Vec::new(),
            metrics: None,
        }
    }
}

/// `[limits]`. Each has a default and a reason in tacit.toml(5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// Open connections; beyond, arrivals wait in the kernel's queue.
    pub connections: usize,
    /// Handshakes in flight, all rules and sources together. The last quarter is a reserve for
    /// sources that have none in flight.
    pub handshakes: usize,
    /// Handshakes in flight of one rule.
    pub handshakes_per_rule: usize,
    /// Handshakes in flight of one source address (IPv6: one /64).
    pub handshakes_per_source: usize,
    /// How long a drain may take; `None`: until the last connection ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 100_000,
            handshakes: 1024,
            handshakes_per_rule: 768,
            handshakes_per_source: 256,
            drain: None,
        }
    }
}

impl Policy {
    /// The rule of that name with its place in the order.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<(usize, &Rule)> {
        self.rules.iter().enumerate().find(|(_, rule)| rule.name == name)
    }

    /// Says which time zone the word `local` means.
    pub fn set_local_zone(&mut self, local: &TimeZone) {
        let whens = self.rules.iter_mut().filter_map(|rule| rule.selectors.when.as_mut());
        whens.for_each(|when| when.zone.set_local(local));
    }

    /// Of each rule that has windows, whether one is open at a time, in seconds since 1970: where
    /// two times differ in it, some rule came or went between them. Empty without windows.
    #[must_use]
    pub fn open_windows(&self, unix_s: i64) -> Vec<bool> {
        let whens = self.rules.iter().filter_map(|rule| rule.selectors.when.as_ref());
        whens.map(|when| when.is_open(unix_s)).collect()
    }
}
