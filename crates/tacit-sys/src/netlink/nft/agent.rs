//! How the agent's own sockets inside are known to the packet rules.

/// The agent's port inside; the sockets there see the original destination.
pub const AGENT_PORT: u16 = 15001;

/// The mark on packets of the agent's own sockets inside: they pass all rules.
pub const AGENT_MARK: u32 = 0x7ac1;
