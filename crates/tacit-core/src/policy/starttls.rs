//! When TLS begins: at the first byte, or after a dialogue in clear that asks for it.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// When a rule's TLS begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the first byte.
    #[default]
    Immediate,
    /// After a dialogue in clear, which tacit holds for a program that knows nothing of it.
    Starttls(Box<Starttls>),
    /// When the program asks for it, at the query socket of its run.
    Controlled,
}

impl Start {
    /// The dialogue, if there is one.
    #[must_use]
    pub fn starttls(&self) -> Option<&Starttls> {
        match self {
            Self::Immediate | Self::Controlled => None,
            Self::Starttls(starttls) => Some(starttls),
        }
    }
}

/// `starttls = …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starttls {
    /// What the two ends speak.
    pub protocol: StarttlsProtocol,
    /// Whether they may go on in clear.
    pub mode: StarttlsMode,
}

/// A protocol whose connections begin in clear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StarttlsProtocol {
    /// RFC 4217, with its data connections.
    Ftp(FtpOptions),
    /// The START_TLS option, 46; TN3270 too.
    Telnet,
    /// RFC 3207.
    Smtp,
    /// SSLRequest.
    Postgres(PostgresOptions),
}

impl StarttlsProtocol {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ftp(_) => "ftp",
            Self::Telnet => "telnet",
            Self::Smtp => "smtp",
            Self::Postgres(_) => "postgres",
        }
    }

    /// The name that TLS under it has in ALPN, where it has one that both ends may count on.
    #[must_use]
    pub fn alpn(&self) -> Option<&'static str> {
        match self {
            Self::Postgres(_) => Some(POSTGRES_ALPN),
            Self::Ftp(_) | Self::Telnet | Self::Smtp => None,
        }
    }
}

/// PostgreSQL in the registry of ALPN.
pub const POSTGRES_ALPN: &str = "postgresql";

/// What PostgreSQL needs beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostgresOptions {
    /// What becomes of a request in clear to cancel a query. Server role with TLS required only.
    pub cancel: Cancel,
}

/// What becomes of a client's CancelRequest in clear. It is a connection of its own, which many
/// clients open without TLS although the connection that it is about has TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cancel {
    /// It is refused.
    #[default]
    Refuse,
    /// It alone is sent on to the server.
    Clear,
}

/// What FTP needs beside.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FtpOptions {
    /// Whether TLS begins at the first byte of the control connection, without AUTH.
    pub implicit: bool,
    /// Where tacit listens for data connections from outside; empty: the kernel chooses.
    pub data_ports: Vec<RangeInclusive<u16>>,
    /// The address that is told outside instead of the one that tacit listens at: a translator's.
    pub data_address: Option<IpAddr>,
    /// Whether a client's data connections must resume the session of their control connection.
    pub data_resumption: DataResumption,
}

/// Whether data connections must resume the session of their control connection. Server role only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataResumption {
    /// They must, unless they show the certificate that was shown there.
    #[default]
    Required,
    /// They may be whoever's who connects from the same address.
    Off,
}

/// Whether a connection may go on without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StarttlsMode {
    /// It may not.
    Required,
    /// A client that does not ask for TLS is served in clear. Server role only.
    Optional,
}

impl StarttlsMode {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
        }
    }
}
