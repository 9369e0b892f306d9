//! Defines the marks and ports by which packet rules recognise the agent's own sockets.

/// The agent's port inside; the sockets there see the original destination.
pub const AGENT_PORT: u16 = 15001;

/// The port of the sockets that take a SYN and drop it, until the agent releases it.
pub const HOLD_PORT: u16 = 15002;

/// The agent's port on a captured host for clients of the host's programs.
pub const INBOUND_PORT: u16 = 15003;

/// The mark on packets of the agent's own sockets inside: they pass all rules.
pub const AGENT_MARK: u32 = 0x7ac1;

/// The mark on a SYN that the agent releases: it goes to the agent's listener.
pub const RELEASE_MARK: u32 = 0x7ac2;

/// The log group in which the kernel copies each held SYN to the agent.
pub const SYN_LOG_GROUP: u16 = 0x7ac1;

/// How the packet rules know the agent's own packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMarks {
    /// They pass all rules.
    pub agent: u32,
    /// A SYN that the agent releases.
    pub release: u32,
}

impl SocketMarks {
    /// Those in the namespaces of runs.
    pub const OF_RUNS: Self = Self { agent: AGENT_MARK, release: RELEASE_MARK };
}

/// What the kernel puts before the copy of a packet that it refuses.
pub(crate) const REFUSED_PREFIX: &str = "refused";

/// Where the agent's copies of SYNs come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// From a packet rule.
    OfRule,
    /// From the interface.
    OfInterface,
}
