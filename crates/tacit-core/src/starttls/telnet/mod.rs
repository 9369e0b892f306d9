//! Implements the Telnet option START_TLS, number 46 (RFC 854, RFC 855,
//! draft-altman-telnet-starttls). TN3270 and TN3270E (RFC 2355) use this option too.
//!
//! ```text
//!   server ── IAC DO START_TLS ──────────────────> client
//!   server <─ IAC WILL START_TLS ───────────────── client
//!   server ── IAC SB START_TLS FOLLOWS IAC SE ───> client
//!   server <─ IAC SB START_TLS FOLLOWS IAC SE ──── client
//!   server ══ then the TLS handshake begins ══════ client
//! ```
//!
//! Before TLS, tacit reads no input from the program. When TLS has begun, both ends negotiate all
//! Telnet options again, and tacit relays the options without parsing them.
//!
//! As a server, tacit stores the input that the client sends before TLS. If TLS begins, tacit drops
//! this input. If the client answers WONT, it declines TLS. Then the connection stays in clear, and
//! the program gets the input. If the rule requires TLS, tacit rejects the connection instead.
//!
//! As a client, tacit refuses all other options that the server offers before TLS, and rejects text
//! before START_TLS.

use super::machine::{ExchangeBuffers, ProtocolMachine, StarttlsError, StarttlsStep, shown};
use super::side::StarttlsSide;
use crate::policy::StarttlsMode;

#[cfg(test)]
mod tests;

const IAC: u8 = 255;
const DONT: u8 = 254;
const DO: u8 = 253;
const WONT: u8 = 252;
const WILL: u8 = 251;
const SB: u8 = 250;
const SE: u8 = 240;
const START_TLS: u8 = 46;
const FOLLOWS: u8 = 1;

const TLS_FOLLOWS: [u8; 6] = [IAC, SB, START_TLS, FOLLOWS, IAC, SE];

/// The largest number of bytes of a client that are stored until it answers.
const HELD_BYTES_MAX: usize = 4 * 1024;
/// The largest number of bytes in one subnegotiation.
const SUBNEGOTIATION_BYTES_MAX: usize = 512;
/// The largest number of options of a server that are refused before START_TLS.
const OPTIONS_MAX: usize = 256;

/// A token of a Telnet stream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A byte of data.
    Text,
    /// Another command.
    Command,
    /// DO, DONT, WILL or WONT, and the option.
    Option(u8, u8),
    /// A subnegotiation: the bytes between SB and SE.
    Subnegotiation(Vec<u8>),
}

/// The first token of a stream, with its length.
struct Front<T> {
    read: T,
    /// Its length in bytes.
    bytes: usize,
}

/// Parses the first token; `None` if it is incomplete.
fn first_token(input: &[u8], from: StarttlsSide) -> Result<Option<Front<Token>>, StarttlsError> {
    Ok(match input {
        [] | [IAC] | [IAC, WILL | WONT | DO | DONT] => None,
        [IAC, verb @ (WILL | WONT | DO | DONT), option, ..] => {
            Some(Front { read: Token::Option(*verb, *option), bytes: 3 })
        }
        [IAC, SB, rest @ ..] => {
            let found = subnegotiation(rest);
            if found.is_none() && rest.len() > SUBNEGOTIATION_BYTES_MAX {
                return Err(StarttlsError::TooLong(from, "a subnegotiation"));
            }
            found
                .map(|body| Front { read: Token::Subnegotiation(body.read), bytes: body.bytes + 2 })
        }
        [IAC, IAC, ..] => Some(Front { read: Token::Text, bytes: 2 }),
        [IAC, _, ..] => Some(Front { read: Token::Command, bytes: 2 }),
        [_, ..] => Some(Front { read: Token::Text, bytes: 1 }),
    })
}

/// Returns the bytes before IAC SE, with IAC IAC converted to one byte.
fn subnegotiation(bytes: &[u8]) -> Option<Front<Vec<u8>>> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        match bytes.get(at..)? {
            [IAC, SE, ..] => return Some(Front { read: body, bytes: at + 2 }),
            [IAC, byte, ..] => {
                body.push(*byte);
                at += 2;
            }
            [IAC] | [] => return None,
            [byte, ..] => {
                body.push(*byte);
                at += 1;
            }
        }
    }
}

/// The server role: tacit requests TLS from clients, for a server in clear.
#[derive(Debug)]
pub(super) struct TelnetServer {
    mode: StarttlsMode,
    requested: bool,
    /// Whether the client has sent WILL.
    agreed: bool,
    held: Vec<u8>,
}

impl TelnetServer {
    pub(super) fn new(mode: StarttlsMode) -> Self {
        Self { mode, requested: false, agreed: false, held: Vec::new() }
    }
}

impl ProtocolMachine for TelnetServer {
    fn needs_program(&self) -> bool {
        false
    }

    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        let peer = &mut buffers.peer;
        if !std::mem::replace(&mut self.requested, true) {
            peer.send([IAC, DO, START_TLS]);
        }
        while let Some(Front { read: token, bytes }) = first_token(&peer.input, StarttlsSide::Peer)?
        {
            let token_bytes: Vec<u8> = peer.input.drain(..bytes).collect();
            match token {
                Token::Option(WILL, START_TLS) if !self.agreed => {
                    self.agreed = true;
                    peer.send(TLS_FOLLOWS);
                }
                Token::Option(WONT, START_TLS) if self.agreed => {
                    return Err(StarttlsError::ProtocolViolation(
                        StarttlsSide::Peer,
                        "the peer accepted START_TLS and declined it later",
                    ));
                }
                Token::Option(WONT, START_TLS) if self.mode == StarttlsMode::Optional => {
                    self.held.append(&mut peer.input);
                    peer.input = std::mem::take(&mut self.held);
                    return Ok(StarttlsStep::Relay);
                }
                Token::Option(WONT, START_TLS) => {
                    peer.send("This server accepts only TLS connections (START_TLS).\r\n");
                    return Err(StarttlsError::InClear);
                }
                Token::Option(WILL, START_TLS) => {}
                // The bytes after it belong to the handshake.
                Token::Subnegotiation(body) if body == [START_TLS, FOLLOWS] && self.agreed => {
                    return Ok(StarttlsStep::Handshake);
                }
                Token::Subnegotiation(body) if body.first() == Some(&START_TLS) => {
                    return Err(StarttlsError::ProtocolViolation(
                        StarttlsSide::Peer,
                        "the peer sent START_TLS at the wrong time",
                    ));
                }
                _ => {
                    self.held.extend_from_slice(&token_bytes);
                    if self.held.len() > HELD_BYTES_MAX {
                        return Err(StarttlsError::TooLong(StarttlsSide::Peer, "text"));
                    }
                }
            }
        }
        Ok(StarttlsStep::Wait)
    }

    fn handshake_succeeded(&mut self, _: &mut ExchangeBuffers) {
        self.held = Vec::new();
    }
}

/// The client role: tacit answers a server that requests TLS, for a client in clear.
#[derive(Debug, Default)]
pub(super) struct TelnetClient {
    /// Whether WILL and FOLLOWS were sent.
    agreed: bool,
    options: usize,
}

fn refuse(buffers: &mut ExchangeBuffers, reason: String) -> StarttlsError {
    buffers.program.send("tacit: the server does not offer TLS, which the policy requires.\r\n");
    StarttlsError::NotOffered(reason)
}

impl ProtocolMachine for TelnetClient {
    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        let peer = &mut buffers.peer;
        while let Some(Front { read: token, bytes }) = first_token(&peer.input, StarttlsSide::Peer)?
        {
            match token {
                Token::Option(DO, START_TLS) if !self.agreed => {
                    self.agreed = true;
                    peer.send([IAC, WILL, START_TLS]);
                    peer.send(TLS_FOLLOWS);
                }
                Token::Subnegotiation(body) if body == [START_TLS, FOLLOWS] && self.agreed => {
                    if peer.input.len() > bytes {
                        return Err(StarttlsError::ExtraData(StarttlsSide::Peer));
                    }
                    peer.input.clear();
                    return Ok(StarttlsStep::Handshake);
                }
                Token::Text => {
                    let text = shown(&peer.input);
                    return Err(refuse(
                        buffers,
                        format!("the server sent the text `{text}` before START_TLS"),
                    ));
                }
                Token::Option(DONT | WONT, START_TLS) => {
                    return Err(refuse(buffers, "the server declined START_TLS".to_owned()));
                }
                // The byte after our FOLLOWS belongs to the handshake, so nothing else may be sent.
                Token::Option(verb, option) if !self.agreed => match verb {
                    DO => peer.send([IAC, WONT, option]),
                    WILL => peer.send([IAC, DONT, option]),
                    _ => {}
                },
                Token::Command | Token::Option(..) | Token::Subnegotiation(_) => {}
            }
            peer.input.drain(..bytes);
            self.options += 1;
            if self.options > OPTIONS_MAX {
                return Err(StarttlsError::TooLong(StarttlsSide::Peer, "a list of Telnet options"));
            }
        }
        Ok(StarttlsStep::Wait)
    }

    fn handshake_failed(&mut self, buffers: &mut ExchangeBuffers) {
        buffers.program.send("tacit: TLS with the server failed, and the policy requires TLS.\r\n");
    }
}
