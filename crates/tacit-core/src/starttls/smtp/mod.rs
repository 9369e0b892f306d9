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

use super::lines::{Reply, argument};

mod client;
mod server;
#[cfg(test)]
mod tests;

pub(super) use client::Client;
pub(super) use server::Server;

/// The reply to EHLO, once with STARTTLS and once never with it.
fn write_capabilities(reply: &Reply, keep: impl Fn(&str) -> bool, add: &str, out: &mut Vec<u8>) {
    let mut texts: Vec<&[u8]> = reply.texts().take(1).collect();
    texts.extend(reply.texts().skip(1).filter(|text| keep(&keyword(text))));
    if !add.is_empty() {
        texts.push(add.as_bytes());
    }
    let last = texts.len() - 1;
    for (at, text) in texts.into_iter().enumerate() {
        let separator = if at == last { ' ' } else { '-' };
        out.extend_from_slice(format!("{}{separator}", reply.code).as_bytes());
        out.extend_from_slice(text);
        out.extend_from_slice(b"\r\n");
    }
}

/// Whether the reply offers STARTTLS.
fn offers_starttls(reply: &Reply) -> bool {
    reply.texts().skip(1).any(|text| keyword(text) == STARTTLS)
}

/// What a capability is called; `AUTH=LOGIN` is an old way to say `AUTH LOGIN`.
fn keyword(text: &[u8]) -> String {
    let end = text.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'-');
    String::from_utf8_lossy(text.get(..end.unwrap_or(text.len())).unwrap_or_default())
        .to_ascii_uppercase()
}

/// A command line, written anew.
fn write_command(verb: &str, line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(verb.as_bytes());
    let argument = argument(line);
    if !argument.is_empty() {
        out.push(b' ');
        out.extend_from_slice(argument);
    }
    out.extend_from_slice(b"\r\n");
}

const STARTTLS: &str = "STARTTLS";
const AUTH: &str = "AUTH";
