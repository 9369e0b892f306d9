//! Implements STARTTLS protocols as state machines without I/O. tacit uses these state machines for
//! programs that do not support TLS. For such a program, tacit sends and receives all messages that
//! precede the TLS handshake. These messages are in clear.
//!
//! ```text
//!   peer <──in clear, then TLS──> StarttlsExchange <──in clear──> program
//!              handle_input, take_output         handle_input, take_output
//! ```
//!
//! The caller, called the driver, does the I/O. The driver passes received bytes to
//! [`StarttlsExchange::handle_input`], and sends the bytes from [`StarttlsExchange::take_output`].
//! The function [`StarttlsExchange::next_step`] returns what the driver does next:
//!
//! ```text
//!   Wait ──> receive more from the peer or the program
//!   Handshake ──> with the peer; success: handshake_succeeded(), then Wait or Relay, under TLS
//!        └──> failure: handshake_failed(), which may return an error reply for the program; close
//!   Relay ──> relay the rest unchanged, in clear or under TLS
//!   ContinueInClear ──> call continue_in_clear(), then continue the exchange in clear
//!   Deliver ──> send a last message to the program, then close both connections
//!   Listen ──> open a data listener: set_data_listener(), then Wait again (FTP only)
//!   Reject ──> close both connections
//! ```
//!
//! Bytes that the peer sends in clear never count as bytes under TLS. This module drops or rejects
//! bytes that the peer sends in clear between its last STARTTLS message and the handshake. If the
//! received bytes already contain the beginning of the handshake, the driver takes these bytes with
//! [`StarttlsExchange::take_input`]. The driver then passes these bytes to the TLS session.
//!
//! Limits: the driver stops reading at [`INPUT_BYTES_MAX`] unparsed bytes or [`OUTPUT_BYTES_MAX`]
//! unsent bytes ([`StarttlsExchange::has_room`]). Peer and program may each send at most
//! [`CLEAR_BYTES_MAX`] before TLS. The driver limits the duration of the exchange.

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
