//! Holds the SYN of a connection until the destination has answered.
//!
//! ```text
//! program ── SYN ──> held                    a copy comes to the agent, which dials
//!                    destination accepts     the SYN is released: the program is connected
//!                    destination refuses     RST or ICMP: the program gets that error
//!                    destination is silent   nothing: the program sends its SYN again
//! ```
//!
//! [`Syn`] parses the copy and writes the answers. [`HeldFlows`] is the table of held flows.
//!
//! Limits: [`HELD_MAX`] held flows; options and headers as long as IP and TCP allow, no IPv6
//! extension headers (a program has no right to send them with a SYN, but for those that RFC 8200
//! lets a receiver ignore: such a SYN is not read, and its program gets no answer).

mod flows;
mod syn;

pub use flows::{FlowEnds, HELD_MAX, HeldFlows, SynState};
pub use syn::{HEADERS_BYTES_MAX, Syn, datagram_ends};
