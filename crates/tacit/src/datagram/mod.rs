//! Datagrams of runs: each flow carried between a socket inside, which stands in for the
//! destination, and one outside.
//!
//! ```text
//!            receiver ── first datagrams of a flow ──┐
//!   program                                        flow ── dialled socket ──> destination
//!            stand-in socket ── all later ones ──────┘ <─┘ replies, ICMP errors
//! ```
//!
//! The receiver takes whatever is captured and says where it was sent to. A flow begins with its
//! first datagram and the rule that permits it; then the kernel gives the program's datagrams to
//! the flow's own socket inside. Those that came to the receiver before are sent first. Both
//! sockets see true addresses: the destination sees this host, the program the destination.
//!
//! What ICMP says of a datagram outside is told to the program by ICMP inside; so is a refusal by
//! policy, as a port that nobody has. What is for many at once (broadcast, multicast) is dropped.
//! Port 53 is the name service's.
//!
//! A flow follows the policy: under a new one, its next datagram asks again. Over, it is after the
//! times that `tacit_core::datagram` has; when its run ends; and when the program's socket is gone.
//!
//! What is longer than the host's own link carries goes out in fragments, as it would for a program
//! that lets its kernel do that: whether it did is not seen from here. A narrower link further on
//! says so, and the program hears it.
//!
//! Limits: [`FLOWS_MAX`] a run and family, the one that was silent the longest is closed; each
//! has a place among the agent's connections. [`EARLY_BYTES_MAX`] wait while the owner of a flow
//! is looked up. What is dropped is counted and logged.

mod flow;
mod receiver;
mod socket;
mod tell;

pub use receiver::Lane;
pub use socket::{Receiver, Shared};

/// Flows of one run and family: two descriptors each.
pub const FLOWS_MAX: usize = 2048;
/// Payload of one flow that waits for its verdict.
pub const EARLY_BYTES_MAX: usize = 256 * 1024;
/// Datagrams taken from one socket before others have their turn.
const BATCH_MAX: usize = 64;
