//! Defines the TLS settings of a rule.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::clear_clients::ClearClients;
use super::client_cert::ClientCert;
use super::engine::RelayOn;
use super::starttls::Start;
use super::suite::{Group, Suite, TlsVersion};

/// TLS by role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// tacit answers the handshake.
    Server(Arc<ServerTls>),
    /// tacit opens the handshake.
    Client(Arc<ClientTls>),
}

impl Tls {
    /// Settings of both roles.
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
    /// Names of identities, at least one; chosen by SNI; the first if none matches.
    pub identities: Vec<String>,
    /// How the client is authenticated.
    pub client_cert: ClientCert,
    /// Clients that are accepted without TLS; `None`: every client needs TLS.
    pub clear_clients: Option<ClearClients>,
    /// Settings of both roles.
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
    /// When the `connect` call of a run's program succeeds.
    pub connect: ConnectAfter,
    /// What happens to a connection on which the program itself uses TLS; `None`: it is relayed
    /// like any other, because the rule is not for connections that programs open or TLS begins
    /// later.
    pub own_tls: Option<OwnTls>,
    /// Settings of both roles.
    pub common: TlsCommon,
}

/// What the `connect` call of a run's program waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectAfter {
    /// The destination has accepted the connection.
    #[default]
    Answered,
    /// The TLS handshake is complete too: `connect` fails if the server is not trusted.
    Verified,
}

/// What happens to a connection on which the program itself uses TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnTls {
    /// The agent closes it.
    #[default]
    Refuse,
    /// The agent connects again without the rule's TLS and relays the program's TLS unchanged.
    Pass,
}

/// How a client checks a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Chain and name.
    Full {
        /// Name of the trust.
        trust: String,
        /// The name (or IP address) the certificate must cover. `None`: in a rule about runs the
        /// name the program resolved, in a forwarding rule the host of the dialled target.
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
    /// Name of the trust that certificates are checked against, if they are checked.
    #[must_use]
    pub fn trust(&self) -> Option<&str> {
        match self {
            Self::Full { trust, .. } | Self::Chain { trust, .. } => Some(trust),
            Self::None { .. } => None,
        }
    }

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

/// Settings of both TLS roles.
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
    /// Application protocols, in order of preference; empty: the extension is not used. If the
    /// policy gives none, that of the `starttls` protocol, if it has one.
    pub alpn: Vec<String>,
    /// Whether sessions may be resumed.
    pub resumption: bool,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// When to send a KeyUpdate (RFC 8446 section 4.6.3); needs `min_version` 1.3.
    pub rekey: Rekey,
    /// Which threads relay its bytes.
    pub relay: RelayOn,
    /// What happens to an open connection when its peer is no longer trusted.
    pub recheck: RecheckAction,
    /// How old a connection may become; `None`: any age.
    pub max_age: Option<Duration>,
}

/// What happens to an open connection when the peer's certificate is no longer trusted: it expired,
/// was revoked, or its CA was removed from the trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecheckAction {
    /// The agent logs and displays it, and the connection stays open.
    #[default]
    Log,
    /// The connection is closed.
    Close,
}

/// When keys are updated. With both unset: only at the limit of the cipher suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rekey {
    /// After this many bytes of plaintext, both directions together.
    pub bytes: Option<NonZeroU64>,
    /// After this long.
    pub after: Option<Duration>,
}
