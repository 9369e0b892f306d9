//! Implements STARTTLS (RFC 3207) for SMTP (RFC 5321) and LMTP (RFC 2033).
//!
//! Server role: the client uses TLS, and the server does not.
//!
//! ```text
//!   client                tacit                            server
//!   <─────────────────────220───────────────────────────── 220
//!   EHLO ──────────────────────────────────────────────────>
//!   <── 250 with STARTTLS, without AUTH ────────────────── 250
//!   MAIL ──────────────> 530: tacit's own reply
//!   STARTTLS ──────────> 220: tacit's own reply; QUIT ────>
//!   ══ handshake ══       connects again ────────────────>
//!                         drops the greeting  <────────── 220
//!   EHLO ──────────────────────────────────────────────────>
//!   <── 250 without STARTTLS ───────────────────────────── 250
//!   anything else: relayed from here on
//! ```
//!
//! Client role: the program does not use TLS, and the server does.
//!
//! ```text
//!   program               tacit                            server
//!   <─────────────────────220───────────────────────────── 220
//!   EHLO ─────────────────────────────── EHLO ────────────>
//!   <── 421 if the reply has no STARTTLS ──────────────── 250
//!                                       STARTTLS ────────> 220
//!                                       ══ handshake ══
//!                                       EHLO ────────────>
//!   <── 250 without STARTTLS ───────────────────────────── 250
//!   anything else: relayed from here on
//! ```
//!
//! tacit forwards one command at a time, and waits for the reply to this command. Until the relay
//! begins, tacit parses each line and writes it again, so that both ends see the same lines. When
//! TLS begins, tacit discards all information from replies in clear (RFC 3207 section 4.2). In the
//! server role, tacit also discards input that the client sends in clear after STARTTLS. After the
//! handshake, tacit connects to the server again, because some servers reject a second EHLO on a
//! connection.

mod client;
mod server;
#[cfg(test)]
mod tests;
mod words;

pub(super) use client::SmtpClient;
pub(super) use server::SmtpServer;
