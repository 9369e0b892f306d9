//! Holds the SYN packet of a program until the agent has reached the destination. So `connect`
//! returns the true result to the program.
//!
//! ```text
//! program ── SYN ──> held                    the agent gets a copy and connects to the destination
//!                    destination accepts     the SYN is released: the program is connected
//!                    destination refuses     RST or ICMP: the program gets that error
//!                    destination is silent   nothing: the program's kernel sends the SYN again
//! ```
//!
//! [`Syn`] parses the copy of a SYN and builds the packets that answer it. [`HeldFlows`] is the
//! table of held flows.
//!
//! Limits: [`HELD_MAX`] held flows. A SYN with IPv6 extension headers is not parsed, and its
//! program gets no answer.

mod flows;
mod syn;

pub use flows::{FlowEnds, HELD_MAX, HeldFlows, SynState};
pub use syn::{HEADERS_BYTES_MAX, Syn, datagram_ends};
