//! What the machine of a protocol is, and what it reads and writes.

use std::fmt;
use std::net::SocketAddr;

use super::data::{ControlAddresses, DataRequest, UploadFlag};
use super::side::StarttlsSide;

/// Bytes of one end that may wait to be understood: a reply of many lines fits.
pub const INPUT_BYTES_MAX: usize = 16 * 1024;
/// Bytes that may wait for one end before nothing is read that could make more.
pub const OUTPUT_BYTES_MAX: usize = 32 * 1024;
/// Bytes that one end may send before TLS: who says more talks for ever.
pub const CLEAR_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a reply shown in a refusal.
const SHOWN_BYTES_MAX: usize = 80;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StarttlsStep {
    /// Send what there is, and wait for more.
    Wait,
    /// Send what there is, then shake hands with the peer. What it has sent already and is not
    /// taken by [`super::Dialogue::take_input`] is not part of it.
    Secure,
    /// Send what there is; the rest is nobody's business.
    Relay,
    /// Nothing need be secured any more, but the dialogue goes on to the end of the connection:
    /// send what there is, and say so by [`super::Dialogue::settle`].
    Settle,
    /// There will be no TLS: connect to the program, send it what there is, and end both when it
    /// ends. Nothing else passes, either way.
    Deliver,
    /// Open a door for a data connection, and say where it is by [`super::Dialogue::listens`].
    Listen(DataRequest),
    /// Send what there is, then end both.
    Refuse(StarttlsError),
}

/// Why a dialogue did not end in TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StarttlsError {
    /// One end closed its connection first.
    Ended(StarttlsSide),
    /// The client goes on in clear, which the rule does not allow.
    InClear,
    /// The client asks in clear for a query to be cancelled, which the rule does not allow.
    Cancel,
    /// The server offers no TLS, or refuses it; what it said instead.
    NotOffered(String),
    /// One end sent more in clear behind its last word before TLS.
    Stuffed(StarttlsSide),
    /// One end sent something of which no more than the limit is read.
    TooLong(StarttlsSide, &'static str),
    /// One end does not speak the protocol; what is wrong.
    Garbled(StarttlsSide, &'static str),
}

impl fmt::Display for StarttlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = |side: &StarttlsSide| match side {
            StarttlsSide::Peer => "the peer",
            StarttlsSide::Program => "the program",
        };
        match self {
            Self::Ended(side) => write!(f, "{} closed the connection before TLS", who(side)),
            Self::InClear => f.write_str(
                "the client continues in clear, and the rule requires TLS: configure it to use \
                 STARTTLS, or set mode = \"optional\"",
            ),
            Self::Cancel => f.write_str(
                "the client sent a cancel request in clear, and the rule requires TLS: set \
                 cancel = \"clear\" in `starttls` to forward such requests, or use a client that \
                 cancels under TLS, such as libpq 17 or later",
            ),
            Self::NotOffered(reply) => write!(
                f,
                "the server does not offer TLS, and the rule requires it ({reply}): enable TLS \
                 on the server"
            ),
            Self::Stuffed(side) => write!(
                f,
                "{} sent data in clear after its last message before TLS, as an attacker would \
                 to inject it into the TLS session",
                who(side)
            ),
            Self::TooLong(side, what) => {
                write!(f, "{} sent {what} before TLS that is longer than the limit", who(side))
            }
            Self::Garbled(side, what) => {
                write!(f, "{} does not follow the rule's `starttls` protocol: {what}", who(side))
            }
        }
    }
}

/// One protocol in one role.
pub(super) trait ProtocolMachine: fmt::Debug + Send + Sync {
    /// See [`super::Dialogue::needs_program`].
    fn needs_program(&self) -> bool {
        true
    }
    /// See [`super::Dialogue::needs_fresh_program`].
    fn needs_fresh_program(&self) -> bool {
        false
    }
    /// Goes on as far as the input allows.
    fn step(&mut self, wires: &mut ExchangeBuffers) -> Result<StarttlsStep, StarttlsError>;
    /// Whether there is anything to be looked at under TLS.
    fn goes_on(&self) -> bool {
        false
    }
    /// See [`super::Dialogue::secured`].
    fn secured(&mut self, _: &mut ExchangeBuffers) {}
    /// See [`super::Dialogue::unsecured`].
    fn unsecured(&mut self, _: &mut ExchangeBuffers) {}
    /// See [`super::Dialogue::stays`].
    fn stays(&self) -> bool {
        false
    }
    /// See [`super::Dialogue::is_over`].
    fn is_over(&self) -> bool {
        false
    }
    /// See [`super::Dialogue::required_alpn`].
    fn required_alpn(&self) -> Option<&'static str> {
        None
    }
    /// See [`super::Dialogue::uploads`].
    fn uploads(&self) -> UploadFlag {
        UploadFlag::default()
    }
    /// Whether there is something to be done yet when this end says no more.
    fn outlasts(&self, _: StarttlsSide) -> bool {
        self.stays()
    }
    /// Whether something whole that this end has said waits for its turn.
    fn holds(&self, _: StarttlsSide) -> bool {
        false
    }
    /// See [`super::Dialogue::set_ends`].
    fn set_ends(&mut self, _: ControlAddresses) {}
    /// See [`super::Dialogue::listens`].
    fn listens(&mut self, _: &mut ExchangeBuffers, _: Option<SocketAddr>) {}
}

/// What both ends have said and are to be told.
#[derive(Debug, Default)]
pub(super) struct ExchangeBuffers {
    pub(super) peer: EndBuffers,
    pub(super) program: EndBuffers,
    pub(super) is_secure: bool,
    /// It stays in clear.
    pub(super) is_settled: bool,
    /// See [`super::Dialogue::is_stalled`].
    pub(super) is_stalled: bool,
}

/// What one end has said and is to be told.
#[derive(Debug, Default)]
pub(super) struct EndBuffers {
    /// Not understood yet.
    pub(super) input: Vec<u8>,
    /// Not sent yet.
    pub(super) output: Vec<u8>,
    /// It sends no more.
    pub(super) ended: bool,
    /// How much it said before TLS.
    pub(super) clear_bytes: usize,
}

impl EndBuffers {
    pub(super) fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.output.extend_from_slice(bytes.as_ref());
    }

    pub(super) fn say_line(&mut self, line: impl AsRef<[u8]>) {
        self.say(line);
        self.say(b"\r\n");
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

    /// Whether too much waits to be sent for a command to be taken up that may make more.
    pub(super) fn stall(&mut self) -> bool {
        let is_full = |end: &EndBuffers| end.output.len() >= OUTPUT_BYTES_MAX;
        self.is_stalled = is_full(&self.peer) || is_full(&self.program);
        self.is_stalled
    }

    /// Whether all is said that comes before TLS.
    pub(super) fn is_beyond(&self) -> bool {
        self.is_secure || self.is_settled
    }

    /// Passes everything that was said.
    pub(super) fn pass_all(&mut self) {
        let Self { peer, program, .. } = self;
        program.output.append(&mut peer.input);
        peer.output.append(&mut program.input);
    }

    /// What a machine that waits cannot wait for.
    pub(super) fn outlast(&self, machine: &dyn ProtocolMachine) -> StarttlsStep {
        for side in [StarttlsSide::Peer, StarttlsSide::Program] {
            let end = self.end(side);
            match self.is_beyond() {
                false if end.clear_bytes > CLEAR_BYTES_MAX => {
                    return StarttlsStep::Refuse(StarttlsError::TooLong(side, "a dialogue"));
                }
                false if end.ended => return StarttlsStep::Refuse(StarttlsError::Ended(side)),
                // Beyond that nothing is left to be kept from anybody: what remains, passes.
                true if end.ended && (!machine.outlasts(side) || self.end(side.other()).ended) => {
                    return StarttlsStep::Relay;
                }
                _ => {}
            }
        }
        StarttlsStep::Wait
    }
}

/// Text of a peer for a log line: one line, not too long.
pub(super) fn shown(text: &[u8]) -> String {
    let cut = text.get(..SHOWN_BYTES_MAX).unwrap_or(text);
    String::from_utf8_lossy(cut).trim_end().escape_debug().to_string()
}
