//! Holds the SYN packet of a program until the agent has reached the destination. In this way, the
//! program's `connect` call returns the true result.
//!
//! ```text
//! program ── SYN ──> held                    the agent gets a copy and connects to the destination
//!                    destination accepts     the SYN is released: the program is connected
//!                    destination refuses     the agent sends RST or ICMP, so `connect` fails
//!                    destination is silent   the program's kernel sends the SYN again
//! ```
//!
//! [`Syn`] parses the copy of a SYN and builds the packets that answer it. [`HeldFlows`] is the
//! table of held flows.
//!
//! Limits: [`HELD_MAX`] held flows. The agent does not parse a SYN with IPv6 extension headers, so
//! it does not answer this SYN.

mod flows;
mod syn;

pub use flows::{FlowEnds, HELD_MAX, HeldFlows, SynState};
pub use syn::{HEADERS_BYTES_MAX, Syn, datagram_ends};
