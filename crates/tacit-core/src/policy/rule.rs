//! One rule: which flows, how they reach the agent, and what happens to them.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::diagnostic::SourcePosition;
use super::selector::{Mismatch, NamePattern, Selectors, UnknownOwner};
use super::target::Connect;
use super::tls::Tls;
use crate::flow::{Address, Flow};

/// One rule: which flows, and what happens to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Unique; shown in every display.
    pub name: String,
    /// Which flows.
    pub selectors: Selectors,
    /// Names that programs may ask for although `remote` says addresses: `names`. They select no
    /// flow.
    pub names: Vec<NamePattern>,
    /// How its flows reach the agent.
    pub form: RuleForm,
    /// What happens.
    pub action: Action,
    /// Whether each connection's start and end are logged.
    pub log: bool,
    /// A connection without a byte for so long is closed; `None`: never.
    pub idle: Option<Duration>,
    /// Where the rule begins in the policy text.
    pub position: SourcePosition,
}

impl Rule {
    /// Whether it says the same, wherever in the text it stands.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let Self { name, selectors, names, form, action, log, idle, position: _ } = self;
        *name == other.name
            && *selectors == other.selectors
            && *names == other.names
            && *form == other.form
            && *action == other.action
            && *log == other.log
            && *idle == other.idle
    }

    /// The sockets of a forwarding rule; `None` for a rule about runs.
    #[must_use]
    pub fn forward(&self) -> Option<&ForwardRule> {
        match &self.form {
            RuleForm::Forward(forward) => Some(forward),
            RuleForm::Inbound(_) | RuleForm::Outbound => None,
        }
    }

    /// Where the connections of a forwarding rule go; `None` for a deny and for a rule about runs.
    #[must_use]
    pub fn connect(&self) -> Option<&Connect> {
        self.forward()?.connect.as_ref()
    }

    /// The way into a run; `None` unless the rule is an inbound rule about runs.
    #[must_use]
    pub fn inbound(&self) -> Option<&InboundRule> {
        match &self.form {
            RuleForm::Inbound(inbound) => Some(inbound),
            RuleForm::Forward(_) | RuleForm::Outbound => None,
        }
    }

    /// Where its flows arrive; empty for a rule about what programs open.
    #[must_use]
    pub fn listens(&self) -> &[Address] {
        match &self.form {
            RuleForm::Forward(forward) => &forward.listen,
            RuleForm::Inbound(inbound) => &inbound.listen,
            RuleForm::Outbound => &[],
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
            RuleForm::Forward(_) => matches!(tls, Tls::Server(_)),
            RuleForm::Inbound(_) => true,
            RuleForm::Outbound => false,
        }
    }

    /// Whether the rule is about the flow; if not, what speaks against it first.
    ///
    /// This is the meaning of a rule. [`Index`](super::Index) finds the same answer among many
    /// rules faster.
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
        let unknown_owner = match self.action {
            Action::Deny(_) => UnknownOwner::Matches,
            Action::Permit | Action::Tls(_) => UnknownOwner::Differs,
        };
        self.selectors.matches(flow, unknown_owner)
    }
}

/// What happens to a flow. Each action owns its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Carry the bytes as they are.
    Permit,
    /// Refuse.
    Deny(Deny),
    /// TLS on the leg away from the program.
    Tls(Tls),
}

/// What a program reads as the reason of a refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deny {
    /// Nothing serves there: `ECONNREFUSED`.
    #[default]
    Refused,
    /// A filter does not let it through: `EHOSTUNREACH`, over IPv6 `EACCES`.
    Prohibited,
}

impl Action {
    /// Whether it refuses.
    #[must_use]
    pub fn is_deny(&self) -> bool {
        matches!(self, Self::Deny(_))
    }

    /// The word the policy uses for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny(_) => "deny",
            Self::Tls(_) => "tls",
        }
    }
}

/// How the flows of a rule reach the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleForm {
    /// A forwarding rule: the agent accepts at `listen` and connects to `connect`. Its flows are
    /// inbound TCP.
    Forward(ForwardRule),
    /// An inbound rule about runs: the agent accepts outside a run and connects to a program of it.
    Inbound(InboundRule),
    /// An outbound rule about runs: the agent accepts what a program of a run opens.
    Outbound,
}

/// The sockets of a forwarding rule: accept at `listen`, connect to `connect`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardRule {
    /// Where connections arrive; at least one.
    pub listen: Vec<Address>,
    /// Where they go. `None` only for a deny.
    pub connect: Option<Connect>,
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
pub struct InboundRule {
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
