//! Defines the settings of links. A link lets programs in an environment without a network, such as
//! a container, use sockets of this host. A tacit agent in that environment requests each socket
//! over a UNIX socket of this host.
//!
//! If the environment has its own kernel (a virtual machine or another host), a link server also
//! runs in the environment. The agent sends its requests to that link server, which forwards the
//! requests to a link server of this host. The two servers communicate over TCP with TLS, over
//! vsock, or over a UNIX socket that the hypervisor creates.
//!
//! Rules with the key `link` apply only to requests over a link. No other rules apply to these
//! requests. The list [`Policy::rules`](super::Policy::rules) contains the rules for programs under
//! `tacit run` and for `tacit agent --host`. The list does not contain rules with `link`. tacit
//! rejects a request over a link if no rule with `link` matches the request.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use super::diagnostic::SourcePosition;
use super::selector::Selectors;
use super::tls::{ClientTls, ServerTls};

/// `[link.NAME]`: where the other side connects, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The path of the UNIX socket; `None`: NAME.sock in the directory of links.
    pub listen: Option<PathBuf>,
    /// Where servers of links of other hosts connect, in addition.
    pub tcp: Option<LinkTcp>,
    /// Where the server of links of a virtual machine connects, in addition.
    pub vsock: Option<LinkVsock>,
    /// The server of links that opens the sockets; `None`: this host opens them.
    pub connect: Option<LinkConnect>,
    /// The local addresses of its sockets, at most one of each IP version; empty: any.
    pub local: Vec<IpAddr>,
    /// The maximum number of sockets that all runs of the other side have at the same time.
    pub sockets_max: usize,
    /// The maximum number of runs that use it at the same time.
    pub runs_max: usize,
    /// The maximum number of sockets that the runs of one host with a certificate have at the same
    /// time; `None`: all.
    pub sockets_per_host: Option<usize>,
    /// Whether the other side may use the resolvers of this host.
    pub names: LinkNames,
    /// When the connections of a run are closed.
    pub sharing: LinkSharing,
    /// Which runs with this policy use it.
    pub selection: LinkSelection,
    /// The position of the table in the policy.
    pub position: SourcePosition,
}

impl Link {
    /// The default of `sockets`.
    pub const SOCKETS_DEFAULT: usize = 1024;
    /// The default of `runs`, and its largest value.
    pub const RUNS_MAX: usize = 1024;

    /// Whether its sockets may have this address, or connect to this address from one of its local
    /// ones.
    #[must_use]
    pub fn has_local_like(&self, address: IpAddr) -> bool {
        self.local.is_empty() || self.local.iter().any(|one| one.is_ipv4() == address.is_ipv4())
    }

    /// The local address of sockets that connect to an address; `None`: the kernel chooses. Only
    /// addresses of loopback reach addresses of loopback.
    #[must_use]
    pub fn local_for(&self, remote: IpAddr) -> Option<IpAddr> {
        let of_version = |one: &&IpAddr| one.is_ipv4() == remote.is_ipv4();
        self.local.iter().find(of_version).filter(|_| !remote.is_loopback()).copied()
    }
}

/// A TCP address at which servers of links of other hosts connect, with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTcp {
    /// The address.
    pub address: SocketAddr,
    /// TLS 1.3, with the certificates of both sides.
    pub tls: Arc<ServerTls>,
}

/// A context of vsock, and a port at which its server of links connects. The kernel reports the
/// context of a peer, so no other one can connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkVsock {
    /// The context of the virtual machine; 1 is this kernel itself.
    pub cid: u32,
    /// The port of this kernel.
    pub port: u32,
}

impl fmt::Display for LinkVsock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vsock:{}:{}", self.cid, self.port)
    }
}

/// The server of links on the side that has the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkConnect {
    /// Another host.
    Tcp {
        /// Its name or address.
        host: String,
        /// Its port.
        port: u16,
        /// TLS 1.3, with the certificates of both sides.
        tls: Arc<ClientTls>,
    },
    /// The host of this virtual machine (context 2), or another context of vsock.
    Vsock(LinkVsock),
    /// A process that listens at this path, and passes the bytes on.
    Unix(PathBuf),
}

impl fmt::Display for LinkConnect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port, .. } => write!(f, "{host}:{port}"),
            Self::Vsock(at) => at.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Whether the other side of a link may send DNS queries to the resolvers of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkNames {
    /// It may.
    Resolved,
    /// It may not, so its programs can use addresses only.
    Refused,
}

/// When the connections of a run that uses a link are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSharing {
    /// With the run, even if another program has got the socket.
    Isolated,
    /// When the last program closes them, also after the end of the run.
    Shared,
}

/// Which runs use a link of their policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkSelection {
    /// Those whose command line or environment names it.
    Named,
    /// All those that name no other.
    Default,
}

/// A rule with `link`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkRule {
    /// Its name.
    pub name: String,
    /// The links to which it applies.
    pub links: Vec<String>,
    /// The requests that it matches.
    pub selectors: Selectors,
    /// The decision.
    pub verdict: LinkVerdict,
    /// The position of the rule in the policy.
    pub position: SourcePosition,
}

/// The decision of a rule with `link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkVerdict {
    /// The other side gets the socket.
    Permit,
    /// It does not.
    Deny,
}
