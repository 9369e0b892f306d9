//! Defines when TLS begins: at the first byte, after a STARTTLS exchange in clear, or at the
//! request of the program.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// When a rule's TLS begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// At the first byte.
    #[default]
    Immediate,
    /// After a STARTTLS exchange in clear, which tacit performs in place of the program.
    Starttls(Box<Starttls>),
    /// When the program requests it at the query socket of its run.
    Controlled,
}

impl Start {
    /// Returns the STARTTLS settings, if any.
    #[must_use]
    pub fn starttls(&self) -> Option<&Starttls> {
        match self {
            Self::Immediate | Self::Controlled => None,
            Self::Starttls(starttls) => Some(starttls),
        }
    }
}

/// The setting `starttls`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starttls {
    /// The application protocol.
    pub protocol: StarttlsProtocol,
    /// Whether a connection may continue in clear.
    pub mode: StarttlsMode,
}

/// A protocol in which connections begin in clear.
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
    /// Returns the word in the policy.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Ftp(_) => "ftp",
            Self::Telnet => "telnet",
            Self::Smtp => "smtp",
            Self::Postgres(_) => "postgres",
        }
    }

    /// Returns its ALPN protocol name, if all implementations use one.
    #[must_use]
    pub fn alpn(&self) -> Option<&'static str> {
        match self {
            Self::Postgres(_) => Some(POSTGRES_ALPN),
            Self::Ftp(_) | Self::Telnet | Self::Smtp => None,
        }
    }
}

/// The ALPN name of PostgreSQL in the IANA registry.
pub const POSTGRES_ALPN: &str = "postgresql";

/// Settings for PostgreSQL.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostgresOptions {
    /// What happens to a CancelRequest in clear. Only for the server role, if TLS is required.
    pub cancel: Cancel,
}

/// What happens to a client's CancelRequest in clear. It is a separate connection, which many
/// clients open without TLS although the connection to cancel has TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cancel {
    /// It is rejected.
    #[default]
    Refuse,
    /// It is forwarded to the server.
    Clear,
}

/// Settings for FTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FtpOptions {
    /// Whether TLS begins at the first byte of the control connection, without AUTH.
    pub implicit: bool,
    /// The ports at which tacit listens for data connections from outside; empty: the kernel
    /// chooses.
    pub data_ports: Vec<RangeInclusive<u16>>,
    /// The address to announce outside instead of the listening address: that of a NAT device.
    pub data_address: Option<IpAddr>,
    /// Whether data connections of a client must resume the session of their control connection.
    pub data_resumption: DataResumption,
}

/// Whether data connections must resume the session of their control connection. Server role only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataResumption {
    /// They must resume it or present the same certificate as the control connection.
    #[default]
    Required,
    /// They need not. Any connection from the same address is accepted.
    Off,
}

/// Whether a connection may continue without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StarttlsMode {
    /// It must not.
    Required,
    /// A client that does not request TLS is served in clear. Server role only.
    Optional,
}

impl StarttlsMode {
    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
        }
    }
}
