//! Dialogues in clear that end in TLS, held for programs that know nothing of it.
//!
//! ```text
//!   peer <──TLS, sooner or later──> Dialogue <──in clear──> program
//!            receive, take_output             receive, take_output
//! ```
//!
//! A [`Dialogue`] reads what both ends say and speaks to both. Whoever drives it hands it what
//! arrives, sends what it has to say, and then asks [`Dialogue::step`] what to do:
//!
//! ```text
//!   Wait ──> more from one of the ends
//!   Secure ──> a handshake with the peer ──> secured(), and Wait or Relay again, under TLS
//!        └──> it failed: unsecured(), which may tell the program why, and the end
//!   Relay ──> nothing more to look at: the relay carries the rest, in clear or under TLS
//!   Deliver ──> one last message for the program, and the end of both
//!   Listen ──> a data connection is agreed: listens(), and Wait again (FTP, which never relays)
//!   Refuse ──> the end
//! ```
//!
//! What a peer says in clear behind its last word before TLS is never taken for something said
//! under TLS: it is thrown away where the protocol's own servers do so, and refused elsewhere. The
//! bytes that are the handshake's already are left for it ([`Dialogue::take_input`]).
//!
//! Limits: [`INPUT_BYTES_MAX`] that one end said and nobody understood yet, [`OUTPUT_BYTES_MAX`]
//! that wait for one end, before nothing more is read ([`Dialogue::has_room`]), each with what one
//! read may add; and [`CLEAR_BYTES_MAX`] from one end before TLS, all together. Time is the
//! driver's to bound.

mod data;
mod dialogue;
pub mod ftp;
mod lines;
mod machine;
mod postgres;
mod side;
mod smtp;
mod telnet;
#[cfg(test)]
mod testing;

pub use dialogue::Dialogue;
pub use machine::{
    CLEAR_BYTES_MAX, INPUT_BYTES_MAX, OUTPUT_BYTES_MAX, StarttlsError, StarttlsStep,
};
pub use side::{StarttlsRole, StarttlsSide};
