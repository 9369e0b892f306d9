//! Implements the TLS negotiation of PostgreSQL: a client sends an SSLRequest, and the server
//! answers with one byte.
//!
//! ```text
//!   client ──SSLRequest──> server        00 00 00 08 04 d2 16 2f
//!   client <─────S──────── server        N: no TLS; other answers are rejected
//!   client ══ handshake ══ server, then a StartupMessage under TLS
//! ```
//!
//! A client may also begin with the handshake ("direct" TLS, first byte 0x16). In that handshake,
//! the client must negotiate PostgreSQL's ALPN protocol.
//!
//! A CancelRequest is the only message of its connection, and has no answer. Most clients send this
//! message in clear, even if they use TLS on all other connections.
//!
//! As a server, tacit answers an SSLRequest with `S`. As a client, tacit sends an SSLRequest. After
//! the handshake, tacit parses no messages.
//!
//! PostgreSQL's documentation describes the protocol in "Frontend/Backend Protocol", sections "SSL
//! Session Encryption" and "Message Formats".

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use super::machine::{ExchangeBuffers, ProtocolMachine, StarttlsError, StarttlsStep, shown};
use super::side::StarttlsSide;
use crate::policy::{Cancel, POSTGRES_ALPN, StarttlsMode};

#[cfg(test)]
mod tests;

const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];
const GSS_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x30];
const CANCEL_REQUEST_CODE: [u8; 4] = [0x04, 0xd2, 0x16, 0x2e];
/// The possible lengths of a CancelRequest: length, type, process ID, and a key of 4 to 256 bytes.
const CANCEL_REQUEST_BYTES: RangeInclusive<usize> = 16..=268;
/// The longest StartupMessage that servers accept.
const STARTUP_BYTES_MAX: u32 = 10_000;
/// The first byte of a TLS handshake record (RFC 8446 section 5.1).
const HANDSHAKE_RECORD: u8 = 0x16;

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// A request for TLS.
    Ssl,
    /// A request for GSSAPI encryption.
    Gss,
    /// A CancelRequest.
    Cancel,
    /// A StartupMessage.
    Startup,
}

/// Classifies a client's message by its first eight bytes.
fn opening(input: &[u8], from: StarttlsSide) -> Result<Option<Opening>, StarttlsError> {
    // The length already shows that a message is invalid before the rest arrives.
    if let Some(length) = message_length(input)
        && !(8..=STARTUP_BYTES_MAX).contains(&length)
    {
        return Err(StarttlsError::ProtocolViolation(
            from,
            "the first message has an invalid length",
        ));
    }
    let Some(&[_, _, _, _, code @ ..]) = input.first_chunk::<8>() else { return Ok(None) };
    Ok(Some(match input.first_chunk::<8>() {
        Some(&SSL_REQUEST) => Opening::Ssl,
        Some(&GSS_REQUEST) => Opening::Gss,
        _ if code == CANCEL_REQUEST_CODE => Opening::Cancel,
        _ => Opening::Startup,
    }))
}

/// Returns the length that a message declares.
fn message_length(input: &[u8]) -> Option<u32> {
    input.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

/// Builds the ErrorResponse that rejects a connection.
fn error_response(message: &str) -> Vec<u8> {
    // 28000: invalid_authorization_specification, as with hostssl in pg_hba.conf.
    let fields = format!("SFATAL\0VFATAL\0C28000\0M{message}\0\0");
    let length = u32::try_from(fields.len() + 4).unwrap_or(u32::MAX);
    let mut response = vec![b'E'];
    response.extend_from_slice(&length.to_be_bytes());
    response.extend_from_slice(fields.as_bytes());
    response
}

/// The server role: tacit offers TLS to clients, for a server in clear.
#[derive(Debug)]
pub(super) struct PostgresServer {
    mode: StarttlsMode,
    cancel: Cancel,
    is_gss_declined: bool,
    /// Whether the client began with a TLS handshake.
    is_direct: bool,
}

impl PostgresServer {
    pub(super) fn new(mode: StarttlsMode, cancel: Cancel) -> Self {
        Self { mode, cancel, is_gss_declined: false, is_direct: false }
    }

    /// Forwards a CancelRequest when it is complete, if no bytes follow it.
    fn cancel(&self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        if self.cancel == Cancel::Refuse {
            // The client does not expect an answer.
            return Err(StarttlsError::CancelInClear);
        }
        let ExchangeBuffers { peer, program, .. } = buffers;
        let length = message_length(&peer.input)
            .and_then(|length| usize::try_from(length).ok())
            .filter(|length| CANCEL_REQUEST_BYTES.contains(length))
            .ok_or(StarttlsError::ProtocolViolation(
                StarttlsSide::Peer,
                "the cancel request has an invalid length",
            ))?;
        match peer.input.len().cmp(&length) {
            Ordering::Less => Ok(StarttlsStep::Wait),
            Ordering::Equal => {
                program.send(std::mem::take(&mut peer.input));
                Ok(StarttlsStep::Deliver)
            }
            Ordering::Greater => Err(StarttlsError::ProtocolViolation(
                StarttlsSide::Peer,
                "the client sent data after the PostgreSQL cancel request",
            )),
        }
    }
}

impl ProtocolMachine for PostgresServer {
    fn needs_program(&self) -> bool {
        false
    }

    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        let peer = &mut buffers.peer;
        if peer.input.first() == Some(&HANDSHAKE_RECORD) {
            self.is_direct = true;
            return Ok(StarttlsStep::Handshake);
        }
        loop {
            let Some(opening) = opening(&peer.input, StarttlsSide::Peer)? else {
                return Ok(StarttlsStep::Wait);
            };
            match opening {
                Opening::Ssl | Opening::Gss if peer.input.len() > SSL_REQUEST.len() => {
                    return Err(StarttlsError::ExtraData(StarttlsSide::Peer));
                }
                Opening::Ssl => {
                    peer.input.clear();
                    peer.send(b"S");
                    return Ok(StarttlsStep::Handshake);
                }
                Opening::Gss if self.is_gss_declined => {
                    return Err(StarttlsError::ProtocolViolation(
                        StarttlsSide::Peer,
                        "the client requested Kerberos encryption twice",
                    ));
                }
                Opening::Gss => {
                    self.is_gss_declined = true;
                    peer.input.clear();
                    peer.send(b"N");
                }
                Opening::Startup | Opening::Cancel if self.mode == StarttlsMode::Optional => {
                    return Ok(StarttlsStep::Relay);
                }
                Opening::Startup => {
                    peer.send(error_response("this server accepts only TLS connections"));
                    return Err(StarttlsError::InClear);
                }
                Opening::Cancel => return self.cancel(buffers),
            }
        }
    }

    fn required_alpn(&self) -> Option<&'static str> {
        self.is_direct.then_some(POSTGRES_ALPN)
    }
}

/// The client role: tacit requests TLS from a server, for a client in clear.
#[derive(Debug)]
pub(super) struct PostgresClient {
    server: Answer,
    is_gss_declined: bool,
    is_ssl_declined: bool,
}

/// The server's answer to our SSLRequest.
#[derive(Debug)]
enum Answer {
    /// The request was not sent yet.
    Unasked,
    /// There is no answer yet.
    Outstanding,
    /// The server accepts TLS.
    Yes,
    /// The server refuses TLS. The program gets an error when it reads.
    No(String),
}

impl PostgresClient {
    pub(super) fn new() -> Self {
        let server = Answer::Unasked;
        Self { server, is_gss_declined: false, is_ssl_declined: false }
    }

    fn ask(&mut self, buffers: &mut ExchangeBuffers) -> Result<(), StarttlsError> {
        let peer = &mut buffers.peer;
        match (&self.server, peer.input.as_slice()) {
            (Answer::Unasked, []) => {
                peer.send(SSL_REQUEST);
                self.server = Answer::Outstanding;
            }
            (Answer::Outstanding, [b'S']) => {
                peer.input.clear();
                self.server = Answer::Yes;
            }
            (_, []) => {}
            (Answer::Outstanding, [b'N' | b'E', ..]) => {
                self.server = Answer::No(format!("the answer was `{}`", shown(&peer.input)));
                peer.input.clear();
            }
            (Answer::No(_), _) => peer.input.clear(),
            (Answer::Outstanding, [b'S', ..]) | (Answer::Yes, _) => {
                return Err(StarttlsError::ExtraData(StarttlsSide::Peer));
            }
            (Answer::Outstanding, _) => {
                return Err(StarttlsError::ProtocolViolation(
                    StarttlsSide::Peer,
                    "the server did not answer with `S` or `N`",
                ));
            }
            (Answer::Unasked, _) => {
                return Err(StarttlsError::ProtocolViolation(
                    StarttlsSide::Peer,
                    "the server sent data before tacit requested TLS",
                ));
            }
        }
        Ok(())
    }

    /// Answers the program until it sends a StartupMessage or CancelRequest.
    fn read_program(
        &mut self,
        buffers: &mut ExchangeBuffers,
    ) -> Result<Option<Opening>, StarttlsError> {
        let program = &mut buffers.program;
        loop {
            let declined = match opening(&program.input, StarttlsSide::Program)? {
                Some(Opening::Ssl) => &mut self.is_ssl_declined,
                Some(Opening::Gss) => &mut self.is_gss_declined,
                other => return Ok(other),
            };
            if std::mem::replace(declined, true) {
                return Err(StarttlsError::ProtocolViolation(
                    StarttlsSide::Program,
                    "the client sent the same request twice",
                ));
            }
            program.input.drain(..SSL_REQUEST.len());
            program.send(b"N");
        }
    }
}

impl ProtocolMachine for PostgresClient {
    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError> {
        self.ask(buffers)?;
        let Some(opening) = self.read_program(buffers)? else { return Ok(StarttlsStep::Wait) };
        match &self.server {
            Answer::Unasked | Answer::Outstanding => Ok(StarttlsStep::Wait),
            Answer::Yes => Ok(StarttlsStep::Handshake),
            Answer::No(reason) => {
                if opening == Opening::Startup {
                    let message = "tacit: the server does not offer TLS, which the policy requires";
                    buffers.program.send(error_response(message));
                }
                Err(StarttlsError::NotOffered(reason.clone()))
            }
        }
    }

    fn handshake_failed(&mut self, buffers: &mut ExchangeBuffers) {
        if let Ok(Some(Opening::Startup)) = opening(&buffers.program.input, StarttlsSide::Program) {
            let message = "tacit: the TLS handshake with the server failed; see the log of tacit";
            buffers.program.send(error_response(message));
        }
    }
}
