//! Defines the TLS settings of a rule, such as versions, cipher suites and certificates.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use super::clear_clients::ClearClients;
use super::client_cert::ClientCert;
use super::engine::RelayOn;
use super::starttls::Start;
use super::suite::{Group, Suite, TlsVersion};

/// The TLS settings, by the role of tacit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// tacit is the server.
    Server(Arc<ServerTls>),
    /// tacit is the client.
    Client(Arc<ClientTls>),
}

impl Tls {
    /// Returns the settings of both roles.
    #[must_use]
    pub fn common(&self) -> &TlsCommon {
        match self {
            Self::Server(tls) => &tls.common,
            Self::Client(tls) => &tls.common,
        }
    }

    /// Returns the word for the role in the policy.
    #[must_use]
    pub fn role(&self) -> &'static str {
        match self {
            Self::Server(_) => "server",
            Self::Client(_) => "client",
        }
    }
}

/// The table `tls = { role = "server", … }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// The names of identities; at least one. An identity is chosen by SNI, and is the first one if
    /// no name matches.
    pub identities: Vec<String>,
    /// How the client is authenticated.
    pub client_cert: ClientCert,
    /// Which clients are accepted without TLS; `None`: every client needs TLS.
    pub clear_clients: Option<ClearClients>,
    /// Settings of both roles.
    pub common: TlsCommon,
}

/// The table `tls = { role = "client", … }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    /// The name of the identity that is presented if the server requests one. There is no default.
    pub identity: Option<String>,
    /// How the server is checked.
    pub verify: Verify,
    /// Whether the server name is sent (SNI).
    pub sni: bool,
    /// When the `connect` call of a program in a run succeeds.
    pub connect: ConnectAfter,
    /// What happens to a connection on which the program itself uses TLS. `None`: it is relayed
    /// like any other, because the rule is not for connections that programs open, or because TLS
    /// begins later.
    pub own_tls: Option<OwnTls>,
    /// Settings of both roles.
    pub common: TlsCommon,
}

/// The event for which the `connect` call of a program in a run waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectAfter {
    /// The destination has accepted the connection.
    #[default]
    Answered,
    /// The TLS handshake is complete too. So `connect` fails if the server is not trusted.
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
    /// The chain and the name.
    Full {
        /// The name of the trust.
        trust: String,
        /// The name or the IP address that the certificate must match. `None`: in a rule for runs,
        /// the name that the program resolved; in a forwarding rule, the host of the dialled
        /// target.
        server_name: Option<String>,
    },
    /// The chain, but not the name. This causes a warning.
    Chain {
        /// The name of the trust.
        trust: String,
        /// The name for SNI and for resumption, if there is one.
        server_name: Option<String>,
    },
    /// Nothing is checked. This causes a warning.
    None {
        /// The name for SNI and for resumption, if there is one.
        server_name: Option<String>,
    },
}

impl Verify {
    /// Returns the name of the trust against which certificates are checked, if they are checked.
    #[must_use]
    pub fn trust(&self) -> Option<&str> {
        match self {
            Self::Full { trust, .. } | Self::Chain { trust, .. } => Some(trust),
            Self::None { .. } => None,
        }
    }

    /// Returns the word in the policy.
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
    /// The oldest accepted version.
    pub min_version: TlsVersion,
    /// The cipher suites, in order of preference; never empty.
    pub suites: Vec<Suite>,
    /// The key exchange groups, in order of preference; never empty.
    pub groups: Vec<Group>,
    /// The application protocols, in order of preference; empty: the extension is not used. If the
    /// policy sets none, this is the protocol name of the `starttls` protocol, if it has one.
    pub alpn: Vec<String>,
    /// Whether sessions may be resumed.
    pub resumption: bool,
    /// The longest time that a handshake may take.
    pub handshake_timeout: Duration,
    /// When to send a KeyUpdate (RFC 8446 section 4.6.3). This requires `min_version` 1.3.
    pub rekey: Rekey,
    /// Which threads relay its bytes.
    pub relay: RelayOn,
    /// What happens to an open connection when its peer is no longer trusted.
    pub recheck: RecheckAction,
    /// The largest age of a connection; `None`: there is no limit.
    pub max_age: Option<Duration>,
}

/// What happens to an open connection when the peer's certificate is no longer trusted: it has
/// expired, was revoked, or its CA was removed from the trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecheckAction {
    /// The agent logs and displays it, and the connection stays open.
    #[default]
    Log,
    /// The connection is closed.
    Close,
}

/// When keys are updated. If neither is set, keys are updated only at the limit of the cipher
/// suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rekey {
    /// After this number of bytes of plaintext, in both directions together.
    pub bytes: Option<NonZeroU64>,
    /// After this time.
    pub after: Option<Duration>,
}
