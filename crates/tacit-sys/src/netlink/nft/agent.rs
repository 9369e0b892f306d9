//! Defines the fwmarks and the ports of the agent's own sockets, for use in nftables rules.

/// The agent's port inside a run. Its sockets get connections and datagrams with their original
/// destination.
pub const AGENT_PORT: u16 = 15001;

/// The port of the sockets that receive a held SYN and drop it.
pub const HOLD_PORT: u16 = 15002;

/// The agent's port on a captured host for clients of the host's programs.
pub const INBOUND_PORT: u16 = 15003;

/// The mark on packets of the agent's own sockets inside a run. Packets with this mark pass all
/// rules.
pub const AGENT_MARK: u32 = 0x7ac1;

/// The mark on a SYN that the agent releases: it goes to the agent's listener.
pub const RELEASE_MARK: u32 = 0x7ac2;

/// The log group in which the kernel copies each held SYN to the agent.
pub const SYN_LOG_GROUP: u16 = 0x7ac1;

/// The marks by which the nftables rules recognise the agent's own packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketMarks {
    /// The mark of packets that pass all rules.
    pub agent: u32,
    /// The mark of a SYN that the agent releases.
    pub release: u32,
}

impl SocketMarks {
    /// The marks in the namespaces of runs.
    pub const OF_RUNS: Self = Self { agent: AGENT_MARK, release: RELEASE_MARK };
}

/// The prefix that the kernel puts before the copy of a packet that it has refused.
pub(crate) const REFUSED_PREFIX: &str = "refused";

/// The prefix before the copy of a packet that a filter rule logs; the name of the rule follows.
pub(crate) const FILTERED_PREFIX: &str = "filter:";

/// The source of the agent's copies of SYNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// A nftables rule makes the copies.
    OfRule,
    /// A packet socket on the interface receives the SYNs.
    OfInterface,
}
