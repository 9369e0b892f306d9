//! Defines a flow: a TCP connection, or the datagrams between two addresses. The rules of a policy
//! match flows.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The direction of a connection, as seen from the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// The program accepts it.
    Inbound,
    /// The program opens it.
    Outbound,
}

/// Transport protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// A stream. UNIX stream sockets count as TCP.
    Tcp,
    /// Datagrams.
    Udp,
    /// ICMP for IPv4, ICMPv6 for IPv6. It has no ports; only tunnels transfer it.
    Icmp,
}

impl Protocol {
    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

/// A socket address of either family, as policy and displays write it.
///
/// `192.0.2.1:443`, `[2001:db8::1]:443`, `unix:/run/x.sock`, `unix:@abstract-name`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Address {
    /// IPv4 or IPv6 with a port.
    Inet(SocketAddr),
    /// A UNIX socket with a path in the file system.
    Path(PathBuf),
    /// A UNIX socket in the abstract namespace, without the leading NUL.
    Abstract(String),
    /// A UNIX socket without a name. Most clients have one.
    Unnamed,
}

impl Address {
    /// The address without its port; a UNIX socket has none.
    #[must_use]
    pub fn host(&self) -> String {
        self.ip().map_or_else(|| self.to_string(), |ip| ip.to_string())
    }

    /// The IP address, if any.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Inet(address) => Some(address.ip().to_canonical()),
            Self::Path(_) | Self::Abstract(_) | Self::Unnamed => None,
        }
    }

    /// The port, if any.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Inet(address) => Some(address.port()),
            Self::Path(_) | Self::Abstract(_) | Self::Unnamed => None,
        }
    }

    /// Whether bytes sent to this address cannot leave this host: it is a UNIX socket or a loopback
    /// address.
    #[must_use]
    pub fn stays_on_host(&self) -> bool {
        self.ip().is_none_or(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => write!(f, "{address}"),
            Self::Path(path) => write!(f, "unix:{}", path.display()),
            Self::Abstract(name) => write!(f, "unix:@{name}"),
            Self::Unnamed => f.write_str("unix:"),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some("") => Ok(Self::Unnamed),
            Some(name) => match name.strip_prefix('@') {
                Some(name) => Ok(Self::Abstract(name.to_owned())),
                None => Ok(Self::Path(PathBuf::from(name))),
            },
            None => text
                .parse()
                .map(Self::Inet)
                .map_err(|_| format!("`{text}` is not an address with a port")),
        }
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Inet(address)
    }
}

/// One connection or datagram exchange, with what rules can match.
///
/// For a forwarding rule the flow is the one that arrives at `listen`: `local` is the listening
/// address and `remote` the client's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Flow {
    /// Its direction.
    pub direction: Direction,
    /// The transport protocol.
    pub protocol: Protocol,
    /// The listening address at which the flow arrived; `None` for a connection that a program of a
    /// run opens. Rules with `listen` match only flows with this address, and rules without
    /// `listen` only flows without it.
    pub listen: Option<Address>,
    /// The near end.
    pub local: Address,
    /// The far end.
    pub remote: Address,
    /// Whether the far end is an address of this host. Then only a rule that names this address may
    /// match.
    pub to_own_host: bool,
    /// The names that the program resolved to the remote address, in lower case and without a final
    /// dot.
    pub remote_names: Vec<String>,
    /// The alias address that the program used instead of the remote address, if any. It stands for
    /// one name and the remote address.
    pub alias: Option<IpAddr>,
    /// Whether DNS returned the remote address for a name although another name owns it.
    pub is_shared: bool,
    /// The executable of the program, if known.
    pub program: Option<PathBuf>,
    /// The user of the program, if known.
    pub user: Option<String>,
    /// The group of the program, if known.
    pub group: Option<String>,
    /// The control group that the program's socket belongs to, if known: its path below the root
    /// of the hierarchy, without a slash at either end.
    pub cgroup: Option<String>,
    /// The name of the program's run, if known.
    pub run: Option<String>,
    /// When the flow began, in seconds since 1970.
    pub at_unix_s: i64,
}

impl Flow {
    /// Whether a program of a captured host opens it, outside every run.
    #[must_use]
    pub fn is_of_host(&self) -> bool {
        self.run.as_deref() == Some("")
    }
}
