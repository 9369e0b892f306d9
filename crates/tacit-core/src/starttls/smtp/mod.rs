//! SMTP (RFC 5321) and LMTP (RFC 2033) with STARTTLS (RFC 3207).
//!
//! Server role, a client that speaks TLS before a server in clear:
//!
//! ```text
//!   client                tacit                            server
//!   <─────────────────────220───────────────────────────── 220
//!   EHLO ──────────────────────────────────────────────────>
//!   <── 250 with STARTTLS, without AUTH ────────────────── 250
//!   MAIL ──────────────> 530, from tacit itself
//!   STARTTLS ──────────> 220; what stood behind it is gone; QUIT ──>
//!   ══ handshake ══                                       dialled anew
//!                         its greeting goes no further <── 220
//!   EHLO ──────────────────────────────────────────────────>
//!   <── 250 without STARTTLS ───────────────────────────── 250
//!   anything else: the relay carries the rest
//! ```
//!
//! Client role, a program in clear before a server that speaks TLS:
//!
//! ```text
//!   program               tacit                            server
//!   <─────────────────────220───────────────────────────── 220
//!   EHLO ─────────────────────────────── EHLO ────────────>
//!                         STARTTLS in it, or 421 <──────── 250
//!                                       STARTTLS ────────> 220
//!                                       ══ handshake ══
//!                                       EHLO ────────────>
//!   <── 250 without STARTTLS ───────────────────────────── 250
//!   anything else: the relay carries the rest
//! ```
//!
//! Commands are taken one after the other: the next is read when the reply to the last has passed.
//! What passes before the relay is written anew from what was read, so that both ends see the same
//! lines. Nothing of a reply that came in clear is believed under TLS (RFC 3207 section 4.2).

mod client;
mod server;
#[cfg(test)]
mod tests;
mod words;

pub(super) use client::SmtpClient;
pub(super) use server::SmtpServer;
