//! Defines links. A link lets programs in an environment without a network, such as a container,
//! use sockets of this host. The agent in that environment requests each socket over a UNIX socket
//! of this host.
//!
//! Rules with `link` match only these requests, and the requests match only these rules. So
//! [`Policy::rules`](super::Policy::rules), the list of rules for the flows of runs and of this
//! host, does not contain rules with `link`. tacit rejects requests that match no rule.

use std::path::PathBuf;

use super::diagnostic::SourcePosition;
use super::selector::Selectors;

/// `[link.NAME]`: where the other side connects, and its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The path of the UNIX socket; `None`: NAME.sock in the directory of links.
    pub listen: Option<PathBuf>,
    /// The maximum number of sockets that all runs of the other side have at the same time.
    pub sockets_max: usize,
    /// Whether the other side may use the resolvers of this host.
    pub names: LinkNames,
    /// The position of the table in the policy.
    pub position: SourcePosition,
}

impl Link {
    /// The default of `sockets`.
    pub const SOCKETS_DEFAULT: usize = 1024;
}

/// Whether the other side of a link may send DNS queries to the resolvers of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkNames {
    /// It may.
    Resolved,
    /// It may not, so its programs can use addresses only.
    Refused,
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
