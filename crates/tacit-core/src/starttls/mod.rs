//! Implements STARTTLS protocols as state machines without I/O. For a program without TLS, tacit
//! performs the exchange in clear that precedes TLS.
//!
//! ```text
//!   peer <──in clear, then TLS──> StarttlsExchange <──in clear──> program
//!              handle_input, take_output         handle_input, take_output
//! ```
//!
//! A [`StarttlsExchange`] does no I/O. Its driver passes received bytes to
//! [`StarttlsExchange::handle_input`], sends [`StarttlsExchange::take_output`], and calls
//! [`StarttlsExchange::next_step`] for what to do next:
//!
//! ```text
//!   Wait ──> receive more from one of the ends
//!   Handshake ──> with the peer ──> handshake_succeeded(), then Wait or Relay again, under TLS
//!        └──> it failed: handshake_failed(), which may report it to the program; close
//!   Relay ──> relay the rest unchanged, in clear or under TLS
//!   Deliver ──> send a last message to the program, then close both
//!   Listen ──> open a data listener: set_data_listener(), then Wait again (FTP only)
//!   Reject ──> close both
//! ```
//!
//! A peer may send more bytes in clear after its last message before TLS. Such bytes are never
//! treated as received under TLS. They are dropped if servers of this protocol usually drop them,
//! and rejected otherwise. Bytes that already belong to the handshake are passed to it
//! ([`StarttlsExchange::take_input`]).
//!
//! Limits: reading stops at [`INPUT_BYTES_MAX`] unparsed bytes of one end or at
//! [`OUTPUT_BYTES_MAX`] unsent bytes for one end ([`StarttlsExchange::has_room`]); one more read
//! may follow. One end may send at most [`CLEAR_BYTES_MAX`] in total before TLS. The driver limits
//! the time.

mod data;
mod exchange;
pub mod ftp;
mod lines;
mod machine;
mod postgres;
mod side;
mod smtp;
mod telnet;
#[cfg(test)]
mod testing;

pub use exchange::StarttlsExchange;
pub use machine::{
    CLEAR_BYTES_MAX, INPUT_BYTES_MAX, OUTPUT_BYTES_MAX, StarttlsError, StarttlsStep,
};
pub use side::{StarttlsRole, StarttlsSide};
