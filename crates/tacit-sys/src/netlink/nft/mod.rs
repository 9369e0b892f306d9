//! Installs the nftables rules for a program under `tacit run`. These nftables rules send captured
//! traffic to the agent and reject all other traffic.
//!
//! ```text
//! table inet tacit
//!   sets tcp4 tcp6 udp4 udp6    address range . port range: the captured destinations
//!   sets own4 own6              addresses of the namespace itself, apart from loopback
//!   chain prerouting            contains the nftables rules, and calls the other chains
//!   chains tunnels own own-rest hold send    see rules.rs
//! ```
//!
//! [`install`] is called once, inside the network namespace. After that, any process that holds the
//! netlink socket can change the sets with [`change`] and [`replace_all`].
//!
//! The caller stores a copy of the elements of the sets, and ensures that no elements overlap. The
//! kernel rejects overlapping elements (`EEXIST`).
//!
//! Limits: [`ELEMENTS_PER_BATCH_MAX`] elements change at once; a larger change needs several
//! batches. Until the kernel has applied the last batch, the kernel rejects traffic to destinations
//! that are not yet in the sets. Needs Linux 5.9.

mod agent;
mod batch;
mod expression;
mod filter_expression;
mod flow_expression;
pub mod host;
mod host_expression;
mod install;
mod own;
mod primitive;
mod rules;
mod sets;
#[cfg(test)]
mod tests;

pub use agent::{
    AGENT_MARK, AGENT_PORT, Copies, HOLD_PORT, INBOUND_PORT, RELEASE_MARK, SYN_LOG_GROUP,
    SocketMarks,
};
pub(crate) use agent::{FILTERED_PREFIX, REFUSED_PREFIX};
pub use install::install;
pub use own::{change_own, set_own};
pub(super) use primitive::COPIED_BYTES_MAX;
pub use sets::{ELEMENTS_PER_BATCH_MAX, Element, change, replace_all};
