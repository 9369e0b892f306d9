//! Defines the trait that each STARTTLS protocol implements, and the buffers for its input and
//! output.

use std::fmt;
use std::net::SocketAddr;

use super::data::{ControlAddresses, DataRequest, UploadFlag};
use super::side::StarttlsSide;

/// The largest number of unparsed bytes of one end. A reply of many lines fits.
pub const INPUT_BYTES_MAX: usize = 16 * 1024;
/// The largest number of unsent bytes for one end. Above it, reading stops.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// The largest number of bytes from one end before TLS, so that an exchange in clear ends.
pub const CLEAR_BYTES_MAX: usize = 64 * 1024;
/// The largest number of bytes of a reply that an error shows.
const SHOWN_BYTES_MAX: usize = 80;

/// What the driver must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StarttlsStep {
    /// Send the output, and wait for input.
    Wait,
    /// Send the output, then do the handshake with the peer. Only the bytes from
    /// [`super::StarttlsExchange::take_input`] belong to the handshake.
    Handshake,
    /// Send the output, then relay the rest unchanged.
    Relay,
    /// The connection stays in clear, and the exchange continues to its end: send the output, then
    /// call [`super::StarttlsExchange::continue_in_clear`].
    ContinueInClear,
    /// There is no TLS: connect to the program, send it the output, and close both connections when
    /// the program closes. Nothing else is forwarded.
    Deliver,
    /// Open a listener for a data connection, and report its address with
    /// [`super::StarttlsExchange::set_data_listener`].
    Listen(DataRequest),
    /// Send the output, then close both.
    Reject(StarttlsError),
}

/// The reason why an exchange did not end in TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StarttlsError {
    /// One end closed its connection before TLS.
    Closed(StarttlsSide),
    /// The client continues in clear, which the rule does not allow.
    InClear,
    /// The client sent a cancel request in clear, which the rule does not allow.
    CancelInClear,
    /// The server does not offer TLS, or refuses it; with its reply.
    NotOffered(String),
    /// One end sent more bytes in clear after its last message before TLS.
    ExtraData(StarttlsSide),
    /// One end sent something longer than the limit.
    TooLong(StarttlsSide, &'static str),
    /// One end violated the protocol; with a description.
    ProtocolViolation(StarttlsSide, &'static str),
}

impl fmt::Display for StarttlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = |side: &StarttlsSide| match side {
            StarttlsSide::Peer => "the peer",
            StarttlsSide::Program => "the program",
        };
        match self {
            Self::Closed(side) => {
                write!(f, "{end} closed the connection before TLS began", end = who(side))
            }
            Self::InClear => f.write_str(
                "the client continues in clear, but the rule requires TLS: configure the client to \
                 use STARTTLS, or set mode = \"optional\"",
            ),
            Self::CancelInClear => f.write_str(
                "the client sent a PostgreSQL cancel request in clear, but the rule requires TLS: \
                 set cancel = \"clear\" in `starttls`, or use a client that cancels under TLS, \
                 such as libpq 17",
            ),
            Self::NotOffered(reply) => write!(
                f,
                "the rule requires TLS, but the server does not offer TLS ({reply}): enable TLS on \
                 the server"
            ),
            Self::ExtraData(side) => write!(
                f,
                "before TLS began, {end} sent extra data in clear. This may be an attempt to \
                 inject data into the TLS session",
                end = who(side)
            ),
            Self::TooLong(side, what) => {
                write!(
                    f,
                    "before TLS began, {end} sent {what} that is longer than tacit allows",
                    end = who(side)
                )
            }
            Self::ProtocolViolation(side, what) => {
                write!(
                    f,
                    "{end} does not follow the rule's `starttls` protocol: {what}",
                    end = who(side)
                )
            }
        }
    }
}

/// A STARTTLS protocol in one role.
pub(super) trait ProtocolMachine: fmt::Debug + Send + Sync {
    /// See [`super::StarttlsExchange::needs_program`].
    fn needs_program(&self) -> bool {
        true
    }
    /// See [`super::StarttlsExchange::needs_new_program_connection`].
    fn needs_new_program_connection(&self) -> bool {
        false
    }
    /// Advances as far as the input permits.
    fn next_step(&mut self, buffers: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError>;
    /// Whether it parses bytes under TLS.
    fn continues_under_tls(&self) -> bool {
        false
    }
    /// See [`super::StarttlsExchange::handshake_succeeded`].
    fn handshake_succeeded(&mut self, _: &mut ExchangeBuffers) {}
    /// See [`super::StarttlsExchange::handshake_failed`].
    fn handshake_failed(&mut self, _: &mut ExchangeBuffers) {}
    /// See [`super::StarttlsExchange::is_persistent`].
    fn is_persistent(&self) -> bool {
        false
    }
    /// See [`super::StarttlsExchange::has_closed_orderly`].
    fn has_closed_orderly(&self) -> bool {
        false
    }
    /// See [`super::StarttlsExchange::required_alpn`].
    fn required_alpn(&self) -> Option<&'static str> {
        None
    }
    /// See [`super::StarttlsExchange::upload_flag`].
    fn upload_flag(&self) -> UploadFlag {
        UploadFlag::default()
    }
    /// Whether the exchange must continue after this end has closed.
    fn continues_after_eof(&self, _: StarttlsSide) -> bool {
        self.is_persistent()
    }
    /// Whether a complete line of this end is pending.
    fn has_pending_line(&self, _: StarttlsSide) -> bool {
        false
    }
    /// See [`super::StarttlsExchange::set_addresses`].
    fn set_addresses(&mut self, _: ControlAddresses) {}
    /// See [`super::StarttlsExchange::set_data_listener`].
    fn set_data_listener(&mut self, _: &mut ExchangeBuffers, _: Option<SocketAddr>) {}
}

/// The input and output of both ends.
#[derive(Debug, Default)]
pub(super) struct ExchangeBuffers {
    pub(super) peer: EndBuffers,
    pub(super) program: EndBuffers,
    pub(super) is_secure: bool,
    /// Whether the connection stays in clear.
    pub(super) stays_in_clear: bool,
    /// See [`super::StarttlsExchange::is_stalled`].
    pub(super) is_stalled: bool,
}

/// The input and output of one end.
#[derive(Debug, Default)]
pub(super) struct EndBuffers {
    /// Received bytes that are not parsed yet.
    pub(super) input: Vec<u8>,
    /// Bytes to send.
    pub(super) output: Vec<u8>,
    /// Whether the end of its stream was received.
    pub(super) ended: bool,
    /// Bytes received before TLS.
    pub(super) clear_bytes: usize,
}

impl EndBuffers {
    pub(super) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.output.extend_from_slice(bytes.as_ref());
    }

    pub(super) fn send_line(&mut self, line: impl AsRef<[u8]>) {
        self.send(line);
        self.send(b"\r\n");
    }
}

impl ExchangeBuffers {
    pub(super) fn end(&self, side: StarttlsSide) -> &EndBuffers {
        match side {
            StarttlsSide::Peer => &self.peer,
            StarttlsSide::Program => &self.program,
        }
    }

    pub(super) fn end_mut(&mut self, side: StarttlsSide) -> &mut EndBuffers {
        match side {
            StarttlsSide::Peer => &mut self.peer,
            StarttlsSide::Program => &mut self.program,
        }
    }

    /// Checks whether so much output is pending that no further command may be taken.
    pub(super) fn check_stalled(&mut self) -> bool {
        let is_full = |end: &EndBuffers| end.output.len() >= OUTPUT_BYTES_MAX;
        self.is_stalled = is_full(&self.peer) || is_full(&self.program);
        self.is_stalled
    }

    /// Whether the exchange in clear has ended.
    pub(super) fn is_past_clear(&self) -> bool {
        self.is_secure || self.stays_in_clear
    }

    /// Forwards all input.
    pub(super) fn forward_all(&mut self) {
        let Self { peer, program, .. } = self;
        program.output.append(&mut peer.input);
        peer.output.append(&mut program.input);
    }

    /// Ends a wait that cannot succeed, because an end has closed or has sent too much.
    pub(super) fn check_waiting(&self, machine: &dyn ProtocolMachine) -> StarttlsStep {
        for side in [StarttlsSide::Peer, StarttlsSide::Program] {
            let end = self.end(side);
            match self.is_past_clear() {
                false if end.clear_bytes > CLEAR_BYTES_MAX => {
                    return StarttlsStep::Reject(StarttlsError::TooLong(
                        side,
                        "a sequence of messages",
                    ));
                }
                false if end.ended => return StarttlsStep::Reject(StarttlsError::Closed(side)),
                // After the exchange in clear, the remaining bytes may be forwarded.
                true if end.ended
                    && (!machine.continues_after_eof(side) || self.end(side.other()).ended) =>
                {
                    return StarttlsStep::Relay;
                }
                _ => {}
            }
        }
        StarttlsStep::Wait
    }
}

/// Formats text from a peer for a log line: one line of limited length.
pub(super) fn shown(text: &[u8]) -> String {
    let cut = text.get(..SHOWN_BYTES_MAX).unwrap_or(text);
    String::from_utf8_lossy(cut).trim_end().escape_debug().to_string()
}
