//! Connections whose SYN is held until the destination has answered.
//!
//! ```text
//! program ── SYN ──> held                    a copy comes to the agent, which dials
//!                    destination accepts     the SYN is released: the program is connected
//!                    destination refuses     RST or ICMP: the program gets that error
//!                    destination is silent   nothing: the program sends its SYN again
//! ```
//!
//! [`Syn`] reads the copy and writes what answers it. [`HeldFlows`] knows which flows are held.
//!
//! Limits: [`HELD_MAX`] held flows; options and headers as long as IP and TCP allow, no IPv6
//! extension headers (a program has no right to send them with a SYN, but for those that RFC 8200
//! lets a receiver ignore: such a SYN is not read, and its program gets no answer).

mod flows;
mod syn;

pub use flows::{FlowEnds, HELD_MAX, HeldFlows, SynState};
pub use syn::{HEADERS_BYTES_MAX, Syn, datagram_ends};
