//! Defines a rule: its conditions, its kind (for example, a forwarding rule), and its action.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::activate::RuleActivation;
use super::diagnostic::SourcePosition;
use super::selector::{Mismatch, NamePattern, Selectors, UnknownOwner};
use super::target::Connect;
use super::tls::Tls;
use crate::flow::{Address, Flow, Protocol};

/// `path`: how a connection that a program opens may reach its destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathChoice {
    /// The agent relays it.
    Relay,
    /// The program gets a socket of the agent's network, if nothing speaks against it. Otherwise
    /// the agent relays it.
    #[default]
    Auto,
}

impl PathChoice {
    /// The words of the policy.
    pub const WORDS: [(&'static str, Self); 2] = [("auto", Self::Auto), ("relay", Self::Relay)];

    /// The word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Auto => "auto",
        }
    }
}

/// One rule of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The name, which is unique and shown in every display.
    pub name: String,
    /// Which flows the rule matches.
    pub selectors: Selectors,
    /// `names`: the names that programs may resolve because of this rule, which matches by address.
    /// They do not select flows.
    pub names: Vec<NamePattern>,
    /// How its flows reach the agent.
    pub form: RuleForm,
    /// What happens to its flows.
    pub action: Action,
    /// The action that the rule would have if it were enforced; `None`: the rule is enforced. A
    /// rule in audit mode has the action [`Action::Permit`].
    pub audited: Option<Action>,
    /// Whether each connection's start and end are logged.
    pub log: bool,
    /// How long a connection may be idle before it is closed; `None`: it is never closed.
    pub idle: Option<Duration>,
    /// Which answers to a program's datagrams reach the program. Only for rules that permit UDP.
    pub answers: Answers,
    /// How its connections may reach their destination; `None`: as the top of the policy says. Only
    /// for rules that permit TCP connections that programs open.
    pub path: Option<PathChoice>,
    /// The position of the rule in the policy text.
    pub position: SourcePosition,
}

impl Rule {
    /// Whether both are equal, apart from their position in the text.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let Self {
            name,
            selectors,
            names,
            form,
            action,
            audited,
            log,
            idle,
            answers,
            path,
            // A rule that has only moved counts as equal.
            position: _,
        } = self;
        *name == other.name
            && *selectors == other.selectors
            && *names == other.names
            && *form == other.form
            && *action == other.action
            && *audited == other.audited
            && *log == other.log
            && *idle == other.idle
            && *answers == other.answers
            && *path == other.path
    }

    /// Returns the action that applies to its flows, or that would apply outside audit mode. The
    /// flows that it matches depend on this action, so that audit mode shows what will be enforced.
    #[must_use]
    pub fn enforced(&self) -> &Action {
        self.audited.as_ref().unwrap_or(&self.action)
    }

    /// Whether the rule permits connections that programs open.
    #[must_use]
    pub fn permits_connections(&self) -> bool {
        self.action == Action::Permit
            && self.form == RuleForm::Outbound
            && self.selectors.protocol == Protocol::Tcp
    }

    /// Whether the rule is about programs of a captured host, and not only about those of runs.
    #[must_use]
    pub fn is_of_host(&self) -> bool {
        match self.form {
            RuleForm::Outbound => self.selectors.run.is_empty(),
            RuleForm::HostInbound => true,
            RuleForm::Inbound(_) | RuleForm::TunnelInbound | RuleForm::Forward(_) => false,
        }
    }

    /// Returns the same rule in audit mode: its flows pass as they would without tacit.
    #[must_use]
    pub fn in_audit_mode(self) -> Self {
        Self { action: Action::Permit, audited: Some(self.action), ..self }
    }

    /// Returns the sockets of a forwarding rule; `None` for other rules.
    #[must_use]
    pub fn forward(&self) -> Option<&ForwardRule> {
        match &self.form {
            RuleForm::Forward(forward) => Some(forward),
            RuleForm::Inbound(_)
            | RuleForm::HostInbound
            | RuleForm::TunnelInbound
            | RuleForm::Outbound => None,
        }
    }

    /// Returns the program that the connections of a forwarding rule start.
    #[must_use]
    pub fn activation(&self) -> Option<&RuleActivation> {
        self.forward()?.activate.as_ref()
    }

    /// Returns where the connections of a forwarding rule go; `None` for a rule that denies, for a
    /// rule with `activate`, and for rules for runs.
    #[must_use]
    pub fn connect(&self) -> Option<&Connect> {
        self.forward()?.connect.as_ref()
    }

    /// Returns the listening addresses and ports of an inbound rule for runs; `None` for other
    /// rules.
    #[must_use]
    pub fn inbound(&self) -> Option<&InboundRule> {
        match &self.form {
            RuleForm::Inbound(inbound) => Some(inbound),
            RuleForm::Forward(_)
            | RuleForm::HostInbound
            | RuleForm::TunnelInbound
            | RuleForm::Outbound => None,
        }
    }

    /// Returns the addresses at which its flows arrive; empty for rules for connections that
    /// programs open.
    #[must_use]
    pub fn listens(&self) -> &[Address] {
        match &self.form {
            RuleForm::Forward(forward) => &forward.listen,
            RuleForm::Inbound(inbound) => &inbound.listen,
            RuleForm::HostInbound | RuleForm::TunnelInbound | RuleForm::Outbound => &[],
        }
    }

    /// Whether the downstream socket (the accepted one) has TLS; without TLS, or with TLS on the
    /// upstream socket, it is in clear.
    ///
    /// TLS is always on the network side of the program. A forwarding rule has no program, so its
    /// role decides: TLS is downstream in the server role, and upstream in the client role.
    #[must_use]
    pub fn tls_arrives(&self) -> bool {
        let Action::Tls(tls) = &self.action else { return false };
        match &self.form {
            RuleForm::Forward(_) => matches!(tls, Tls::Server(_)),
            RuleForm::Inbound(_) | RuleForm::HostInbound => true,
            RuleForm::Outbound | RuleForm::TunnelInbound => false,
        }
    }

    /// Returns the tunnel of a rule with `ipsec`.
    #[must_use]
    pub fn ipsec(&self) -> Option<&Ipsec> {
        match &self.action {
            Action::Ipsec(ipsec) => Some(ipsec),
            Action::Permit | Action::Deny(_) | Action::Tls(_) => None,
        }
    }

    /// Whether the rule matches the flow; if not, the first selector that does not.
    ///
    /// This defines what a rule means. [`Index`](super::Index) finds the same rule faster.
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
        let unknown_owner = match self.enforced() {
            Action::Deny(_) => UnknownOwner::Matches,
            Action::Permit | Action::Tls(_) | Action::Ipsec(_) => UnknownOwner::Differs,
        };
        self.selectors.matches(flow, unknown_owner)
    }
}

/// What happens to a flow. Each action has its own keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Relay the bytes unchanged.
    Permit,
    /// Refuse.
    Deny(Deny),
    /// TLS on the network side of the program.
    Tls(Tls),
    /// The packets pass through an IPsec tunnel.
    Ipsec(Ipsec),
}

/// `ipsec = { ike = "NAME" }` or `ipsec = { sa = "NAME" }`: the tunnel of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipsec {
    /// The name of the peer. A name is in only one of the tables.
    pub peer: String,
    /// The table that has the peer.
    pub keyed_by: TunnelKeying,
}

/// Where the keys of a tunnel come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelKeying {
    /// IKE negotiates them with the peer, which is in [`Policy::ikes`](super::Policy::ikes).
    Ike,
    /// They are in files: manual SAs, which are in [`Policy::sas`](super::Policy::sas).
    Manual,
}

impl TunnelKeying {
    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ike => "ike",
            Self::Manual => "sa",
        }
    }
}

/// Where answers to datagrams may come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// From any port of the destination.
    #[default]
    Destination,
    /// From any address and port.
    Any,
}

/// The error that a program gets for a denied connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deny {
    /// Nothing listens there: `ECONNREFUSED`.
    #[default]
    Refused,
    /// A packet filter rejects it: `EHOSTUNREACH`, over IPv6 `EACCES`.
    Prohibited,
}

impl Action {
    /// Whether the action is a deny.
    #[must_use]
    pub fn is_deny(&self) -> bool {
        matches!(self, Self::Deny(_))
    }

    /// Returns the word in the policy.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny(_) => "deny",
            Self::Tls(_) => "tls",
            Self::Ipsec(_) => "ipsec",
        }
    }
}

/// How the flows of a rule reach the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleForm {
    /// A forwarding rule: the agent accepts at `listen` and connects to `connect`. Its flows are
    /// inbound TCP.
    Forward(ForwardRule),
    /// An inbound rule for runs: the agent accepts outside a run and connects to a program in it.
    Inbound(InboundRule),
    /// An inbound rule for the host. The agent accepts connections of clients to the ports of the
    /// host's programs, and connects to the programs with the clients' addresses.
    HostInbound,
    /// An inbound rule for runs whose flows arrive through a tunnel.
    TunnelInbound,
    /// An outbound rule for runs and the host: the agent accepts the connections that programs
    /// open.
    Outbound,
}

/// The sockets of a forwarding rule: accept at `listen`, connect to `connect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardRule {
    /// The addresses at which connections arrive; at least one.
    pub listen: Vec<Address>,
    /// The targets of the connections. `None` for a rule that denies or activates a program.
    pub connect: Option<Connect>,
    /// The program that its connections start.
    pub activate: Option<RuleActivation>,
    /// Whether to read a PROXY protocol v2 header before all other bytes, and to use the client
    /// address in it.
    pub accept_proxy: bool,
    /// The PROXY protocol v2 header to send before all other bytes, if any.
    pub send_proxy: Option<SendProxy>,
    /// The total time that dialling `connect` may take.
    pub connect_timeout: Duration,
    /// The mode and the owner of UNIX sockets at `listen`.
    pub unix: UnixSocket,
    /// Whether data that the rule's TLS protects may pass the network in clear, on the other side
    /// of the agent.
    pub clear: bool,
}

/// The content of the PROXY protocol header that tacit sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendProxy {
    /// The addresses of the client and of the socket that it connected to.
    Addresses,
    /// The addresses, and the TLS parameters of the client's connection. Only for the server role.
    Tls,
}

/// An inbound rule for runs: accept at `listen` outside, relay to the program's port inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboundRule {
    /// The addresses at which connections arrive; at least one, all with an IP address.
    pub listen: Vec<Address>,
    /// The ports on which the program listens; at least one. They determine the destination and do
    /// not select flows.
    pub local_ports: Vec<RangeInclusive<u16>>,
}

/// How a UNIX socket at `listen` is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixSocket {
    /// The permission bits; the default is 0o600.
    pub mode: u32,
    /// `user`, `user:group` or `:group`, as names or numbers. The default is the agent's own user
    /// and group.
    pub owner: Option<String>,
    /// Whether to replace a socket file on which no process listens. A file in use is never
    /// replaced.
    pub replace_stale: bool,
}
