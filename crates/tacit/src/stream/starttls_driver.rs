//! The dialogue before TLS, and what of it goes on under TLS: sockets for a [`Dialogue`].
//!
//! ```text
//!   peer <──PeerTransport──> to_peer   ┐
//!                             ├ Dialogue
//!   program <─StreamSocket─> to_program┘
//! ```
//!
//! One loop serves both phases: it asks the dialogue for its next step, sends what it has to say,
//! and reads both ends for it. What a [`PeerTransport`] is, makes the difference: the peer's socket in clear,
//! or with its session. None of this is fast, and none of it lasts: the relay carries the rest.
//!
//! Limits are the dialogue's; its time is bounded by who calls. Bytes in clear before TLS are
//! tacit's own affair and are not counted as carried.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Instant;

use tacit_core::starttls::{Dialogue, OUTPUT_BYTES_MAX, StarttlsSide, StarttlsStep};
use tacit_sys::socket;

use tacit_tls::{HotKeys, Session, SessionError};

use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::{Connection, Failure};

/// Bytes read at once.
const READ_BYTES: usize = 4 * 1024;

/// A dialogue with what waits to be sent.
#[derive(Debug)]
pub(super) struct StarttlsDriver {
    /// Who knows what to say.
    pub(super) dialogue: Dialogue,
    to_peer: Outgoing,
    to_program: Outgoing,
    peer: EndState,
    program: EndState,
}

/// What waits to be sent.
#[derive(Debug)]
pub(super) struct UnsentBytes {
    pub(super) to_peer: Outgoing,
    pub(super) to_program: Outgoing,
}

/// How far one end is.
#[derive(Clone, Copy, Debug, Default)]
struct EndState {
    /// It sends no more.
    read_ended: bool,
    /// It was told that the other end sends no more.
    write_ended: bool,
}

/// What came of a dialogue, as far as it was held here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExchangeOutcome {
    /// It wants to go on otherwise; never [`StarttlsStep::Wait`].
    Step(StarttlsStep),
    /// Both ends have ended in order.
    Over,
}

/// Why a dialogue broke off.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// A socket was reset, or failed otherwise.
    Broken(StarttlsSide, io::Error),
    /// The TLS peer's stream ended without `close_notify`.
    Truncated,
    /// The TLS session could not go on.
    Session(SessionError),
}

impl From<ExchangeError> for Failure {
    fn from(error: ExchangeError) -> Self {
        match error {
            ExchangeError::Broken(_, error) => Self::Broken(error),
            ExchangeError::Truncated => Self::Broken(io::ErrorKind::UnexpectedEof.into()),
            ExchangeError::Session(error) => Self::Session(error),
        }
    }
}

/// The peer's socket, in clear or not.
pub(super) trait PeerTransport {
    /// Whether it has TLS.
    const IS_SECURE: bool;
    /// The socket itself.
    fn socket(&self) -> &StreamSocket;
    /// Reads what is there and hands it on; `false`: the peer sends no more.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        dialogue: &mut Dialogue,
    ) -> Poll<Result<bool, ExchangeError>>;
    /// Appends what carries these bytes to the peer, and what is due besides.
    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ExchangeError>;
    /// Appends what tells the peer that no more comes.
    fn write_end(&mut self, out: &mut Vec<u8>) -> Result<(), ExchangeError>;
}

impl StarttlsDriver {
    /// Goes on with a dialogue.
    pub(super) fn new(dialogue: Dialogue) -> Self {
        let to_peer = Outgoing::default();
        let to_program = Outgoing::default();
        let peer = EndState::default();
        let program = EndState::default();
        Self { dialogue, to_peer, to_program, peer, program }
    }

    /// As [`Self::new`] with bytes that go to the peer before all others, as they are.
    pub(super) fn with_initial(dialogue: Dialogue, initial: Vec<u8>) -> Self {
        Self { to_peer: Outgoing::new(initial), ..Self::new(dialogue) }
    }

    /// Holds the dialogue until it wants to go on otherwise, and what it said has been sent. What
    /// it says to a program that is not there yet is kept.
    pub(super) async fn run<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        program: Option<&StreamSocket>,
    ) -> Result<ExchangeOutcome, ExchangeError> {
        std::future::poll_fn(|cx| self.poll_run(transport, program, cx)).await
    }

    /// Sends what the dialogue still has to say, whatever it wants next.
    pub(super) async fn flush<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        program: Option<&StreamSocket>,
    ) -> Result<(), ExchangeError> {
        std::future::poll_fn(|cx| match self.poll_flush(transport, program, cx) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        })
        .await
    }

    /// What waits to be sent to the peer and to the program.
    pub(super) fn into_unsent(self) -> UnsentBytes {
        UnsentBytes { to_peer: self.to_peer, to_program: self.to_program }
    }

    fn poll_run<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        program: Option<&StreamSocket>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ExchangeOutcome, ExchangeError>> {
        loop {
            let step = self.dialogue.step();
            let is_flushed = self.poll_flush(transport, program, cx)?;
            match step {
                StarttlsStep::Wait => {}
                // The relay would read a socket's end again, but not a `close_notify`.
                StarttlsStep::Relay if W::IS_SECURE && self.peer.read_ended => {
                    if self.program.read_ended && is_flushed {
                        return Poll::Ready(Ok(ExchangeOutcome::Over));
                    }
                }
                step if is_flushed => return Poll::Ready(Ok(ExchangeOutcome::Step(step))),
                StarttlsStep::Relay => {}
                StarttlsStep::Secure
                | StarttlsStep::Settle
                | StarttlsStep::Deliver
                | StarttlsStep::Listen(_)
                | StarttlsStep::Refuse(_) => {
                    return Poll::Pending;
                }
            }
            let read_peer = self.poll_peer(transport, cx)?;
            let read_program = match program {
                Some(program) => self.poll_program(program, cx)?,
                None => false,
            };
            let goes_on = is_flushed && self.dialogue.is_stalled();
            if !read_peer && !read_program && !goes_on {
                return Poll::Pending;
            }
        }
    }

    /// Sends what there is to be sent; `true`: nothing waits.
    fn poll_flush<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        program: Option<&StreamSocket>,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        loop {
            if self.to_peer.len() < OUTPUT_BYTES_MAX {
                let mut output = self.dialogue.take_output(StarttlsSide::Peer);
                if self.peer.write_ended {
                    // Nobody hears it any more.
                    output.clear();
                }
                transport.write(&output, self.to_peer.tail())?;
            }
            if self.is_peer_done::<W>() && !std::mem::replace(&mut self.peer.write_ended, true) {
                transport.write_end(self.to_peer.tail())?;
                if self.to_peer.is_empty() {
                    // A failure shows when the socket is read.
                    let _ = transport.socket().shutdown_write();
                }
            }
            if self.to_peer.is_empty() {
                break;
            }
            match self.to_peer.poll_flush(transport.socket(), cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    return Err(ExchangeError::Broken(StarttlsSide::Peer, error));
                }
                Poll::Pending => break,
            }
            if self.peer.write_ended {
                // A failure shows when the socket is read.
                let _ = transport.socket().shutdown_write();
            }
        }
        let is_flushed = match program {
            Some(program) => self.poll_flush_program(program, cx)?,
            None => true,
        };
        Ok(is_flushed && self.to_peer.is_empty())
    }

    /// Whether the peer has been told all that there is to tell. A relay that follows would tell it
    /// so itself.
    fn is_peer_done<W: PeerTransport>(&self) -> bool {
        let no_relay = self.dialogue.stays() || W::IS_SECURE && self.peer.read_ended;
        no_relay && self.dialogue.has_passed(StarttlsSide::Program)
    }

    fn poll_flush_program(
        &mut self,
        socket: &StreamSocket,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        loop {
            if self.to_program.is_empty() {
                *self.to_program.tail() = self.dialogue.take_output(StarttlsSide::Program);
            }
            if self.to_program.is_empty() {
                let is_last = self.peer.read_ended && self.dialogue.has_passed(StarttlsSide::Peer);
                if is_last && !std::mem::replace(&mut self.program.write_ended, true) {
                    let _ = socket.shutdown_write();
                }
                return Ok(true);
            }
            match self.to_program.poll_flush(socket, cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => {
                    return Err(ExchangeError::Broken(StarttlsSide::Program, error));
                }
                Poll::Pending => return Ok(false),
            }
        }
    }

    /// Hears the peer if there is room; `true`: there was something.
    fn poll_peer<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        if self.peer.read_ended || !self.dialogue.has_room(StarttlsSide::Peer) {
            return Ok(false);
        }
        let Poll::Ready(read) = transport.poll_read(cx, &mut self.dialogue) else {
            return Ok(false);
        };
        if !read? {
            self.peer.read_ended = true;
            self.dialogue.end(StarttlsSide::Peer);
        }
        Ok(true)
    }

    /// Hears the program if there is room; `true`: there was something.
    fn poll_program(
        &mut self,
        socket: &StreamSocket,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        if self.program.read_ended || !self.dialogue.has_room(StarttlsSide::Program) {
            return Ok(false);
        }
        let Poll::Ready(read) =
            poll_read_clear(socket, StarttlsSide::Program, None, cx, &mut self.dialogue)
        else {
            return Ok(false);
        };
        if !read? {
            self.program.read_ended = true;
            self.dialogue.end(StarttlsSide::Program);
        }
        Ok(true)
    }
}

fn poll_read_clear(
    socket: &StreamSocket,
    from: StarttlsSide,
    counted: Option<&Connection>,
    cx: &mut Context<'_>,
    dialogue: &mut Dialogue,
) -> Poll<Result<bool, ExchangeError>> {
    let mut bytes = [0; READ_BYTES];
    socket.poll_read(cx, READ_BYTES, |fd| socket::read(fd, &mut bytes)).map(|read| {
        let count = read.map_err(|error| ExchangeError::Broken(from, error))?;
        if let Some(connection) = counted {
            connection.count_sent(count);
        }
        dialogue.receive(from, &bytes[..count]);
        Ok(count > 0)
    })
}

/// The peer's socket in clear.
#[derive(Debug)]
pub(super) struct ClearTransport<'a> {
    /// The socket.
    pub(super) socket: &'a StreamSocket,
    /// Whose bytes are counted; `None`: what is said is tacit's own affair.
    pub(super) counted: Option<&'a Connection>,
}

impl PeerTransport for ClearTransport<'_> {
    const IS_SECURE: bool = false;

    fn socket(&self) -> &StreamSocket {
        self.socket
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        dialogue: &mut Dialogue,
    ) -> Poll<Result<bool, ExchangeError>> {
        poll_read_clear(self.socket, StarttlsSide::Peer, self.counted, cx, dialogue)
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ExchangeError> {
        if let Some(connection) = self.counted {
            connection.count_received(bytes.len());
        }
        out.extend_from_slice(bytes);
        Ok(())
    }

    fn write_end(&mut self, _: &mut Vec<u8>) -> Result<(), ExchangeError> {
        Ok(())
    }
}

/// The peer's socket under TLS.
pub(super) struct TlsTransport<'a> {
    /// The socket.
    pub(super) socket: &'a StreamSocket,
    /// Its session.
    pub(super) session: &'a mut Session,
    /// Records that have not been opened, or not arrived whole.
    pub(super) incomplete: &'a mut Vec<u8>,
    /// Whose bytes are counted.
    pub(super) connection: &'a Connection,
    keys: HotKeys,
    /// `incomplete` may hold whole records: it came from the handshake and was never looked at.
    unexamined: bool,
}

impl<'a> TlsTransport<'a> {
    /// Takes over where the handshake ended.
    pub(super) fn new(
        socket: &'a StreamSocket,
        session: &'a mut Session,
        incomplete: &'a mut Vec<u8>,
        connection: &'a Connection,
    ) -> Self {
        let unexamined = !incomplete.is_empty();
        Self { socket, session, incomplete, connection, keys: HotKeys::default(), unexamined }
    }

    /// Opens what has arrived whole; `false`: the peer sends no more.
    fn open(&mut self, dialogue: &mut Dialogue) -> Result<bool, ExchangeError> {
        let mut payloads: Vec<Range<usize>> = Vec::new();
        let opened = self.session.open_batch(&mut self.keys, self.incomplete, &mut payloads);
        for payload in payloads {
            self.connection.count_received(payload.len());
            dialogue.receive(StarttlsSide::Peer, &self.incomplete[payload]);
        }
        let batch = opened.map_err(ExchangeError::Session)?;
        self.incomplete.drain(..batch.consumed);
        if self.incomplete.is_empty() {
            *self.incomplete = Vec::new();
        }
        Ok(!batch.closed)
    }
}

impl PeerTransport for TlsTransport<'_> {
    const IS_SECURE: bool = true;

    fn socket(&self) -> &StreamSocket {
        self.socket
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        dialogue: &mut Dialogue,
    ) -> Poll<Result<bool, ExchangeError>> {
        if std::mem::take(&mut self.unexamined) {
            return Poll::Ready(self.open(dialogue));
        }
        let mut bytes = [0; READ_BYTES];
        let read = self.socket.poll_read(cx, READ_BYTES, |fd| socket::read(fd, &mut bytes));
        read.map(|read| match read {
            Ok(0) => Err(ExchangeError::Truncated),
            Ok(count) => {
                self.incomplete.extend_from_slice(&bytes[..count]);
                self.open(dialogue)
            }
            Err(error) => Err(ExchangeError::Broken(StarttlsSide::Peer, error)),
        })
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ExchangeError> {
        if self.session.seal_due(Instant::now, out).map_err(ExchangeError::Session)? {
            self.connection.count_rekeys(self.session.rekeys());
        }
        if !bytes.is_empty() {
            self.connection.count_sent(bytes.len());
            out.append(&mut self.session.seal(bytes).map_err(ExchangeError::Session)?);
        }
        Ok(())
    }

    fn write_end(&mut self, out: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.session.seal_close(out).map_err(ExchangeError::Session)
    }
}
