//! Parses and writes SMTP commands and capabilities, for clients and servers.

use crate::starttls::lines::{ServerReply, argument};

/// Writes the reply to EHLO with some capabilities removed or added.
pub(super) fn write_capabilities(
    reply: &ServerReply,
    keep: impl Fn(&str) -> bool,
    add: &str,
    out: &mut Vec<u8>,
) {
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
pub(super) fn offers_starttls(reply: &ServerReply) -> bool {
    reply.texts().skip(1).any(|text| keyword(text) == STARTTLS)
}

/// Returns the keyword of a capability; `AUTH=LOGIN` is an old form of `AUTH LOGIN`.
fn keyword(text: &[u8]) -> String {
    let end = text.iter().position(|byte| !byte.is_ascii_alphanumeric() && *byte != b'-');
    String::from_utf8_lossy(text.get(..end.unwrap_or(text.len())).unwrap_or_default())
        .to_ascii_uppercase()
}

/// Writes a command line.
pub(super) fn write_command(verb: &str, line: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(verb.as_bytes());
    let argument = argument(line);
    if !argument.is_empty() {
        out.push(b' ');
        out.extend_from_slice(argument);
    }
    out.extend_from_slice(b"\r\n");
}

pub(super) const STARTTLS: &str = "STARTTLS";
pub(super) const AUTH: &str = "AUTH";
