//! Relays the datagrams of runs. Each flow has a socket inside the run, which is bound to the
//! destination's address (spoofed source), and a socket outside.
//!
//! ```text
//!            receiver ── first datagrams of a flow ──┐
//!   program                                        flow ── outside socket ──> destination
//!            spoofed socket ─── all later ones ──────┘ <─┘ replies, ICMP errors
//! ```
//!
//! The receiver reads captured datagrams with their destinations. A flow begins with its first
//! datagram, if a rule permits it. From then on the kernel delivers the program's datagrams to the
//! flow's own socket inside. The flow first sends the datagrams that the receiver has already read.
//! Both sides see real addresses: the destination sees this host, the program sees the destination.
//!
//! An ICMP error from outside is sent to the program inside. If the policy rejects a datagram, the
//! program gets "port unreachable". Broadcast and multicast datagrams are dropped. Datagrams to
//! port 53 go to the name service (`dns`).
//!
//! A flow follows the policy: after a reload, its next datagram is decided again. A flow ends after
//! the idle times of `tacit_core::datagram`, with its run, or when the program closes its socket.
//!
//! A datagram that is larger than the host's link MTU is sent in fragments. If a link on the path
//! has a smaller MTU, the program gets the ICMP error.
//!
//! Limits: [`FLOWS_MAX`] flows for each run and IP version; a new flow replaces the flow that has
//! been idle for the longest. Each flow counts as a connection of the agent. At most
//! [`EARLY_BYTES_MAX`] wait while the owner of a flow is looked up. Dropped datagrams are counted
//! and logged.

mod answer;
mod answerers;
mod flow;
mod icmp_errors;
mod receiver;
mod socket;

pub use receiver::Lane;
pub use socket::{DatagramShared, Receiver};

/// The maximum number of flows of one run and IP version. Each flow needs two descriptors.
pub const FLOWS_MAX: usize = 2048;
/// The maximum payload of one flow that waits for a decision.
pub const EARLY_BYTES_MAX: usize = 256 * 1024;
/// The number of datagrams that are read from one socket before other tasks run.
const BATCH_MAX: usize = 64;
