//! Packet rules: what of a program's traffic reaches the agent, and the refusal of all else.
//!
//! ```text
//! table inet tacit
//!   sets tcp4 tcp6 udp4 udp6    address range . port range: what is captured
//!   sets own4 own6              addresses of the namespace's own, beside loopback
//!   chain prerouting            the rules, see rules.rs
//! ```
//!
//! [`install`] once, inside the namespace; from then on any process that holds the socket, also
//! one outside, changes the sets with [`change`] and [`replace_all`].
//!
//! The caller keeps its own copy of what the sets hold, and keeps the elements of one set disjoint:
//! the kernel refuses an element that overlaps another (`EEXIST`), and a refused batch costs a
//! hundred times a good one.
//!
//! Limits: [`ELEMENTS_PER_BATCH_MAX`] elements change at once; more go in several batches, and
//! between two of them the sets hold a part (what is not in them is refused, never let through).
//! Needs Linux 5.9.

mod agent;
mod batch;
mod expression;
mod install;
mod own;
mod rules;
mod sets;
#[cfg(test)]
mod tests;

pub(crate) use agent::REFUSED_PREFIX;
pub use agent::{AGENT_MARK, AGENT_PORT, Copies, HOLD_PORT, RELEASE_MARK, SYN_LOG_GROUP};
pub(super) use expression::COPIED_BYTES_MAX;
pub use install::install;
pub use own::set_own;
pub use sets::{ELEMENTS_PER_BATCH_MAX, Element, change, replace_all};
