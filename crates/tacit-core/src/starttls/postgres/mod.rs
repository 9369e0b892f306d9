//! PostgreSQL: a client asks for TLS by an SSLRequest, and the server answers with one byte.
//!
//! ```text
//!   client ──SSLRequest──> server        00 00 00 08 04 d2 16 2f
//!   client <─────S──────── server        N: no TLS; anything else is older than TLS here
//!   client ══ handshake ══ server, and a StartupMessage under it
//! ```
//!
//! The first four bytes of every message before the StartupMessage are its length, the next four
//! say what it is. A client may also begin with the handshake itself ("direct" TLS): its first byte
//! is 0x16, which begins no message, because none is that long. Its handshake must agree on the
//! application protocol, as PostgreSQL wants it: nothing else shows that the client was not led
//! here from a server of another protocol.
//!
//! A CancelRequest is a connection of its own: it has 16 bytes, and the server acts on it and ends
//! the connection without an answer. Clients that have TLS send it in clear all the same, but for
//! those of libpq 17 and later.
//!
//! In the server role an SSLRequest is answered `S` and a GSSENCRequest `N`. In the client role
//! tacit asks the server, and answers `N` to the program, which has its encryption from tacit.
//! Under TLS nothing is looked at.
//!
//! RFCs there are none; the protocol is chapter "Frontend/Backend Protocol" of PostgreSQL's
//! documentation, sections "SSL Session Encryption" and "Message Formats".

use std::cmp::Ordering;

use super::machine::{ExchangeBuffers, ProtocolMachine, StarttlsError, StarttlsStep, shown};
use super::side::StarttlsSide;
use crate::policy::{Cancel, POSTGRES_ALPN, StarttlsMode};

#[cfg(test)]
mod tests;

const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const GSS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];
const CANCEL_REQUEST_CODE: [u8; 4] = [0x04, 0xd2, 0x16, 0x2e];
/// What a cancel request begins with; the number of the server's process and its secret key follow.
const CANCEL_REQUEST: [u8; 8] = [0, 0, 0, 16, 0x04, 0xd2, 0x16, 0x2e];
const CANCEL_REQUEST_BYTES: usize = 16;
/// The longest StartupMessage that servers take.
const STARTUP_BYTES_MAX: u32 = 10_000;
/// The first byte of a TLS handshake record (RFC 8446 section 5.1).
const HANDSHAKE_RECORD: u8 = 0x16;

/// What a client begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// It asks for TLS.
    Ssl,
    /// It asks for encryption by Kerberos.
    Gss,
    /// It wants a query of another connection cancelled.
    Cancel,
    /// It says who it is.
    Startup,
}

/// What a client's message is, by its first eight bytes.
fn opening(input: &[u8], from: StarttlsSide) -> Result<Option<Opening>, StarttlsError> {
    // The length tells before the rest has come: something else is not waited for.
    if let Some(length) = input.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes))
        && !(8..=STARTUP_BYTES_MAX).contains(&length)
    {
        return Err(StarttlsError::Garbled(from, "its first message has an invalid length"));
    }
    let Some(&[_, _, _, _, code @ ..]) = input.first_chunk::<8>() else { return Ok(None) };
    Ok(Some(match input.first_chunk::<8>() {
        Some(&SSL_REQUEST) => Opening::Ssl,
        Some(&GSS_REQUEST) => Opening::Gss,
        _ if code == CANCEL_REQUEST_CODE => Opening::Cancel,
        _ => Opening::Startup,
    }))
}

/// The ErrorResponse that ends a connection before it began.
fn error_response(message: &str) -> Vec<u8> {
    // 28000: invalid_authorization_specification, as where pg_hba.conf wants hostssl.
    let fields = format!("SFATAL\0VFATAL\0C28000\0M{message}\0\0");
    let length = u32::try_from(fields.len() + 4).unwrap_or(u32::MAX);
    let mut response = vec![b'E'];
    response.extend_from_slice(&length.to_be_bytes());
    response.extend_from_slice(fields.as_bytes());
    response
}

/// tacit answers clients for a server in clear.
#[derive(Debug)]
pub(super) struct PostgresServer {
    mode: StarttlsMode,
    cancel: Cancel,
    is_gss_declined: bool,
    /// The client began with the handshake.
    is_direct: bool,
}

impl PostgresServer {
    pub(super) fn new(mode: StarttlsMode, cancel: Cancel) -> Self {
        Self { mode, cancel, is_gss_declined: false, is_direct: false }
    }

    /// Gives the program a cancel request once it is whole, if nothing else comes with it.
    fn cancel(&self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        if self.cancel == Cancel::Refuse {
            // Nobody waits for an answer to it.
            return Err(StarttlsError::Cancel);
        }
        let ExchangeBuffers { peer, program, .. } = wires;
        if !peer.input.starts_with(&CANCEL_REQUEST) {
            return Err(StarttlsError::Garbled(
                StarttlsSide::Peer,
                "its cancel request has another length",
            ));
        }
        match peer.input.len().cmp(&CANCEL_REQUEST_BYTES) {
            Ordering::Less => Ok(StarttlsStep::Wait),
            Ordering::Equal => {
                program.say(std::mem::take(&mut peer.input));
                Ok(StarttlsStep::Deliver)
            }
            Ordering::Greater => Err(StarttlsError::Garbled(
                StarttlsSide::Peer,
                "it sends more than its cancel request",
            )),
        }
    }
}

impl ProtocolMachine for PostgresServer {
    fn needs_program(&self) -> bool {
        false
    }

    fn step(&mut self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        let peer = &mut wires.peer;
        if peer.input.first() == Some(&HANDSHAKE_RECORD) {
            self.is_direct = true;
            return Ok(StarttlsStep::Secure);
        }
        loop {
            let Some(opening) = opening(&peer.input, StarttlsSide::Peer)? else {
                return Ok(StarttlsStep::Wait);
            };
            match opening {
                Opening::Ssl | Opening::Gss if peer.input.len() > SSL_REQUEST.len() => {
                    return Err(StarttlsError::Stuffed(StarttlsSide::Peer));
                }
                Opening::Ssl => {
                    peer.input.clear();
                    peer.say(b"S");
                    return Ok(StarttlsStep::Secure);
                }
                Opening::Gss if self.is_gss_declined => {
                    return Err(StarttlsError::Garbled(
                        StarttlsSide::Peer,
                        "it asks for Kerberos twice",
                    ));
                }
                Opening::Gss => {
                    self.is_gss_declined = true;
                    peer.input.clear();
                    peer.say(b"N");
                }
                Opening::Startup | Opening::Cancel if self.mode == StarttlsMode::Optional => {
                    return Ok(StarttlsStep::Relay);
                }
                Opening::Startup => {
                    peer.say(error_response("this server takes connections with TLS only"));
                    return Err(StarttlsError::InClear);
                }
                Opening::Cancel => return self.cancel(wires),
            }
        }
    }

    fn required_alpn(&self) -> Option<&'static str> {
        self.is_direct.then_some(POSTGRES_ALPN)
    }
}

/// tacit asks a server for a client in clear.
#[derive(Debug)]
pub(super) struct PostgresClient {
    server: Answer,
    is_gss_declined: bool,
    is_ssl_declined: bool,
}

/// What the server says to our SSLRequest.
#[derive(Debug)]
enum Answer {
    /// It was not asked.
    Unasked,
    /// Nothing yet.
    Outstanding,
    /// It takes TLS.
    Yes,
    /// It does not; the program hears of it when it listens.
    No(String),
}

impl PostgresClient {
    pub(super) fn new() -> Self {
        let server = Answer::Unasked;
        Self { server, is_gss_declined: false, is_ssl_declined: false }
    }

    fn ask(&mut self, wires: &mut ExchangeBuffers) -> Result<(), StarttlsError> {
        let peer = &mut wires.peer;
        match (&self.server, peer.input.as_slice()) {
            (Answer::Unasked, []) => {
                peer.say(SSL_REQUEST);
                self.server = Answer::Outstanding;
            }
            (Answer::Outstanding, [b'S']) => {
                peer.input.clear();
                self.server = Answer::Yes;
            }
            (_, []) => {}
            (Answer::Outstanding, [b'N' | b'E', ..]) => {
                self.server = Answer::No(format!("it answers `{}`", shown(&peer.input)));
                peer.input.clear();
            }
            (Answer::No(_), _) => peer.input.clear(),
            (Answer::Outstanding, [b'S', ..]) | (Answer::Yes, _) => {
                return Err(StarttlsError::Stuffed(StarttlsSide::Peer));
            }
            (Answer::Outstanding, _) => {
                return Err(StarttlsError::Garbled(
                    StarttlsSide::Peer,
                    "it answers neither `S` nor `N`",
                ));
            }
            (Answer::Unasked, _) => {
                return Err(StarttlsError::Garbled(
                    StarttlsSide::Peer,
                    "it sends data before a request",
                ));
            }
        }
        Ok(())
    }

    /// Answers the program until it says who it is, or what to cancel.
    fn hear_program(
        &mut self,
        wires: &mut ExchangeBuffers,
    ) -> Result<Option<Opening>, StarttlsError> {
        let program = &mut wires.program;
        loop {
            let declined = match opening(&program.input, StarttlsSide::Program)? {
                Some(Opening::Ssl) => &mut self.is_ssl_declined,
                Some(Opening::Gss) => &mut self.is_gss_declined,
                other => return Ok(other),
            };
            if std::mem::replace(declined, true) {
                return Err(StarttlsError::Garbled(
                    StarttlsSide::Program,
                    "it asks for the same twice",
                ));
            }
            program.input.drain(..SSL_REQUEST.len());
            program.say(b"N");
        }
    }
}

impl ProtocolMachine for PostgresClient {
    fn step(&mut self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        self.ask(wires)?;
        let Some(opening) = self.hear_program(wires)? else { return Ok(StarttlsStep::Wait) };
        match &self.server {
            Answer::Unasked | Answer::Outstanding => Ok(StarttlsStep::Wait),
            Answer::Yes => Ok(StarttlsStep::Secure),
            Answer::No(said) => {
                if opening == Opening::Startup {
                    let message = "tacit: the server does not offer TLS, which the policy requires";
                    wires.program.say(error_response(message));
                }
                Err(StarttlsError::NotOffered(said.clone()))
            }
        }
    }

    fn unsecured(&mut self, wires: &mut ExchangeBuffers) {
        if let Ok(Some(Opening::Startup)) = opening(&wires.program.input, StarttlsSide::Program) {
            let message = "tacit: the TLS handshake with the server failed; see the log of tacit";
            wires.program.say(error_response(message));
        }
    }
}
