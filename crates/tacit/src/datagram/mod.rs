//! Relays UDP datagrams of programs under `tacit run`. Each flow has two sockets: an ordinary
//! socket outside of the run's network namespace, and a *spoofed* socket inside. The spoofed socket
//! has the address of the destination.
//!
//! ```text
//!            receiver ── first datagrams of a flow ──┐
//!   program                                        flow ── outside socket ──> destination
//!            spoofed socket ─── all later datagrams ─┘ <─┘ replies, ICMP errors
//! ```
//!
//! The receiver reads the first datagrams of a flow. If a rule permits the flow, the agent creates
//! both sockets. Then the kernel delivers later datagrams to the spoofed socket. The program sees
//! the address of the destination, and the destination sees the address of this host.
//!
//! The program gets ICMP errors from outside, and "port unreachable" if the policy rejects a
//! datagram. Broadcast and multicast datagrams are dropped. The module `dns` handles port 53.
//!
//! A flow ends after an idle timeout, or when the program exits or closes its socket. A flow also
//! ends when a reload installs a policy that does not permit the flow. When a flow ends, the agent
//! sends the datagrams that wait in its sockets inside. If the current policy does not permit the
//! flow, this policy decides about these datagrams as about those of a new flow.
//!
//! Limits: [`FLOWS_MAX`] flows for each run and IP version. When this limit is reached, a new flow
//! replaces the flow that has been idle for the longest time. While the agent looks up the owner of
//! a flow, the agent stores at most [`EARLY_BYTES_MAX`] bytes of the flow's datagrams.

mod answer;
mod answerers;
mod flow;
pub(crate) mod icmp_errors;
mod receiver;
mod socket;

pub use receiver::Lane;
pub use socket::{DatagramShared, Receiver};

/// The maximum number of flows of one run and IP version. Each flow needs two descriptors.
pub const FLOWS_MAX: usize = 2048;
/// The maximum payload of one flow that waits for a decision.
pub const EARLY_BYTES_MAX: usize = 256 * 1024;
/// The maximum number of datagrams that are read from one socket of a flow when the flow ends. The
/// buffer of a socket holds fewer datagrams, even if they are empty.
const FLUSH_DATAGRAMS_MAX: usize = 16 * 1024;
/// The number of datagrams that are read from one socket before other tasks run.
const BATCH_MAX: usize = 64;
