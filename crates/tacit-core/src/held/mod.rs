//! Holds the SYN packet of a connection until the destination has answered.
//!
//! ```text
//! program ── SYN ──> held                    the agent gets a copy and dials the destination
//!                    destination accepts     the SYN is released: the program is connected
//!                    destination refuses     RST or ICMP: the program gets that error
//!                    destination is silent   nothing: the program's kernel sends the SYN again
//! ```
//!
//! [`Syn`] parses the copy of a SYN and builds the packets that answer it. [`HeldFlows`] is the
//! table of held flows.
//!
//! Limits: [`HELD_MAX`] held flows. The copy of a SYN contains one IP header and one TCP header
//! with their options. A SYN with IPv6 extension headers is not read, and its program gets no
//! answer. The kernel lets unprivileged programs add only extension headers that a receiver may
//! ignore (RFC 8200).

mod flows;
mod syn;

pub use flows::{FlowEnds, HELD_MAX, HeldFlows, SynState};
pub use syn::{HEADERS_BYTES_MAX, Syn, datagram_ends};
