//! Does the I/O of a STARTTLS exchange, before and after the TLS handshake. This module moves bytes
//! between the state machine and two sockets: one to the peer, and one to the program.
//!
//! ```text
//!   peer    <── PeerTransport ──> to_peer    ┐
//!                                            ├ StarttlsExchange
//!   program <── StreamSocket ───> to_program ┘
//! ```
//!
//! `to_peer` and `to_program` are the bytes that wait until a socket accepts them. A
//! [`PeerTransport`] is the socket to the peer, either in clear or with a TLS session.
//!
//! Limits: the state machine limits its buffers, and the caller limits the time.

use std::io;
use std::ops::Range;
use std::task::{Context, Poll};
use std::time::Instant;

use tacit_core::starttls::{OUTPUT_BYTES_MAX, StarttlsExchange, StarttlsSide, StarttlsStep};
use tacit_sys::socket;

use tacit_tls::{HotKeys, Session, SessionError};

use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::session::{Connection, Failure};

/// Bytes read at once.
const READ_BYTES: usize = 4 * 1024;

/// A STARTTLS exchange with its unsent bytes.
#[derive(Debug)]
pub(super) struct StarttlsDriver {
    /// The state machine.
    pub(super) exchange: StarttlsExchange,
    to_peer: Outgoing,
    to_program: Outgoing,
    peer: EndState,
    program: EndState,
}

/// Bytes that wait to be sent.
#[derive(Debug)]
pub(super) struct UnsentBytes {
    pub(super) to_peer: Outgoing,
    pub(super) to_program: Outgoing,
}

/// Which directions of one end have ended.
#[derive(Clone, Copy, Debug, Default)]
struct EndState {
    /// Whether this end has closed its sending direction.
    read_ended: bool,
    /// Whether the end of the other side's stream was sent to this end.
    write_ended: bool,
}

/// How [`StarttlsDriver::run`] has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExchangeOutcome {
    /// The caller must do this step, which is never [`StarttlsStep::Wait`].
    Step(StarttlsStep),
    /// Both ends have closed.
    Over,
}

/// Why an exchange failed.
#[derive(Debug)]
pub(super) enum ExchangeError {
    /// A socket was reset or failed.
    Broken(StarttlsSide, io::Error),
    /// The TLS peer's stream ended without `close_notify`.
    Truncated,
    /// The TLS session failed.
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

/// The peer's socket, in clear or with TLS.
pub(super) trait PeerTransport {
    /// Whether it has TLS.
    const IS_SECURE: bool;
    /// The socket.
    fn socket(&self) -> &StreamSocket;
    /// Reads bytes into the state machine; `false` if the peer has closed.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut StarttlsExchange,
    ) -> Poll<Result<bool, ExchangeError>>;
    /// Appends these bytes to `out` in the form for the peer, after a KeyUpdate if one is due.
    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ExchangeError>;
    /// Appends the end of the stream to `out`.
    fn write_end(&mut self, out: &mut Vec<u8>) -> Result<(), ExchangeError>;
}

impl StarttlsDriver {
    /// Continues an exchange.
    pub(super) fn new(exchange: StarttlsExchange) -> Self {
        let to_peer = Outgoing::default();
        let to_program = Outgoing::default();
        let peer = EndState::default();
        let program = EndState::default();
        Self { exchange, to_peer, to_program, peer, program }
    }

    /// Like [`Self::new`], with bytes that are sent to the peer first, unchanged.
    pub(super) fn with_initial(exchange: StarttlsExchange, initial: Vec<u8>) -> Self {
        Self { to_peer: Outgoing::new(initial), ..Self::new(exchange) }
    }

    /// Runs the exchange until a step is left to the caller and its output has been sent. Output
    /// for a program that is not connected yet is kept.
    pub(super) async fn run<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        program: Option<&StreamSocket>,
    ) -> Result<ExchangeOutcome, ExchangeError> {
        std::future::poll_fn(|cx| self.poll_run(transport, program, cx)).await
    }

    /// Sends all output, for any next step.
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

    /// The bytes that wait to be sent.
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
            let step = self.exchange.next_step();
            let is_flushed = self.poll_flush(transport, program, cx)?;
            match step {
                StarttlsStep::Wait => {}
                // The relay can read the end of a socket again, but not a `close_notify`.
                StarttlsStep::Relay if W::IS_SECURE && self.peer.read_ended => {
                    if self.program.read_ended && is_flushed {
                        return Poll::Ready(Ok(ExchangeOutcome::Over));
                    }
                }
                step if is_flushed => return Poll::Ready(Ok(ExchangeOutcome::Step(step))),
                StarttlsStep::Relay => {}
                StarttlsStep::Handshake
                | StarttlsStep::ContinueInClear
                | StarttlsStep::Deliver
                | StarttlsStep::Listen(_)
                | StarttlsStep::Reject(_) => {
                    return Poll::Pending;
                }
            }
            let read_peer = self.poll_peer(transport, cx)?;
            let read_program = match program {
                Some(program) => self.poll_program(program, cx)?,
                None => false,
            };
            let goes_on = is_flushed && self.exchange.is_stalled();
            if !read_peer && !read_program && !goes_on {
                return Poll::Pending;
            }
        }
    }

    /// Sends the output; `true` if all of it was sent.
    fn poll_flush<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        program: Option<&StreamSocket>,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        loop {
            if self.to_peer.len() < OUTPUT_BYTES_MAX {
                let mut output = self.exchange.take_output(StarttlsSide::Peer);
                if self.peer.write_ended {
                    // The stream to the peer has ended.
                    output.clear();
                }
                transport.write(&output, self.to_peer.tail())?;
            }
            if self.is_peer_done::<W>() && !std::mem::replace(&mut self.peer.write_ended, true) {
                transport.write_end(self.to_peer.tail())?;
                if self.to_peer.is_empty() {
                    // A failure is reported by the next read of the socket.
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
                // A failure is reported by the next read of the socket.
                let _ = transport.socket().shutdown_write();
            }
        }
        let is_flushed = match program {
            Some(program) => self.poll_flush_program(program, cx)?,
            None => true,
        };
        Ok(is_flushed && self.to_peer.is_empty())
    }

    /// Whether the stream to the peer ends here. A relay that follows would end it itself.
    fn is_peer_done<W: PeerTransport>(&self) -> bool {
        let no_relay = self.exchange.is_persistent() || W::IS_SECURE && self.peer.read_ended;
        no_relay && self.exchange.is_drained(StarttlsSide::Program)
    }

    fn poll_flush_program(
        &mut self,
        socket: &StreamSocket,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        loop {
            if self.to_program.is_empty() {
                self.to_program = Outgoing::new(self.exchange.take_output(StarttlsSide::Program));
            }
            if self.to_program.is_empty() {
                let is_last = self.peer.read_ended && self.exchange.is_drained(StarttlsSide::Peer);
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

    /// Reads from the peer if there is room; `true` if bytes arrived.
    fn poll_peer<W: PeerTransport>(
        &mut self,
        transport: &mut W,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        if self.peer.read_ended || !self.exchange.has_room(StarttlsSide::Peer) {
            return Ok(false);
        }
        let Poll::Ready(read) = transport.poll_read(cx, &mut self.exchange) else {
            return Ok(false);
        };
        if !read? {
            self.peer.read_ended = true;
            self.exchange.handle_eof(StarttlsSide::Peer);
        }
        Ok(true)
    }

    /// Reads from the program if there is room; `true` if bytes arrived.
    fn poll_program(
        &mut self,
        socket: &StreamSocket,
        cx: &mut Context<'_>,
    ) -> Result<bool, ExchangeError> {
        if self.program.read_ended || !self.exchange.has_room(StarttlsSide::Program) {
            return Ok(false);
        }
        let Poll::Ready(read) =
            poll_read_clear(socket, StarttlsSide::Program, None, cx, &mut self.exchange)
        else {
            return Ok(false);
        };
        if !read? {
            self.program.read_ended = true;
            self.exchange.handle_eof(StarttlsSide::Program);
        }
        Ok(true)
    }
}

fn poll_read_clear(
    socket: &StreamSocket,
    from: StarttlsSide,
    counted: Option<&Connection>,
    cx: &mut Context<'_>,
    exchange: &mut StarttlsExchange,
) -> Poll<Result<bool, ExchangeError>> {
    let mut bytes = [0; READ_BYTES];
    socket.poll_read(cx, READ_BYTES, |fd| socket::read(fd, &mut bytes)).map(|read| {
        let count = read.map_err(|error| ExchangeError::Broken(from, error))?;
        if let Some(connection) = counted {
            connection.note_sent(&bytes[..count]);
        }
        exchange.handle_input(from, &bytes[..count]);
        Ok(count > 0)
    })
}

/// The peer's socket in clear.
#[derive(Debug)]
pub(super) struct ClearTransport<'a> {
    /// The socket.
    pub(super) socket: &'a StreamSocket,
    /// Counts the bytes; `None` if they do not count as relayed.
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
        exchange: &mut StarttlsExchange,
    ) -> Poll<Result<bool, ExchangeError>> {
        poll_read_clear(self.socket, StarttlsSide::Peer, self.counted, cx, exchange)
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ExchangeError> {
        if let Some(connection) = self.counted {
            connection.note_received(bytes);
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
    /// Records that are not opened yet, or incomplete.
    pub(super) incomplete: &'a mut Vec<u8>,
    /// Counts the bytes.
    pub(super) connection: &'a Connection,
    keys: HotKeys,
    /// `incomplete` may hold whole records: it came from the handshake and is not examined yet.
    unexamined: bool,
}

impl<'a> TlsTransport<'a> {
    /// Continues after the handshake.
    pub(super) fn new(
        socket: &'a StreamSocket,
        session: &'a mut Session,
        incomplete: &'a mut Vec<u8>,
        connection: &'a Connection,
    ) -> Self {
        let unexamined = !incomplete.is_empty();
        Self { socket, session, incomplete, connection, keys: HotKeys::default(), unexamined }
    }

    /// Opens whole records; `false`: the peer sends no more.
    fn open(&mut self, exchange: &mut StarttlsExchange) -> Result<bool, ExchangeError> {
        let mut payloads: Vec<Range<usize>> = Vec::new();
        let opened = self.session.open_batch(&mut self.keys, self.incomplete, &mut payloads);
        for payload in payloads {
            let payload = &self.incomplete[payload];
            self.connection.note_received(payload);
            exchange.handle_input(StarttlsSide::Peer, payload);
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
        exchange: &mut StarttlsExchange,
    ) -> Poll<Result<bool, ExchangeError>> {
        if std::mem::take(&mut self.unexamined) {
            return Poll::Ready(self.open(exchange));
        }
        let mut bytes = [0; READ_BYTES];
        let read = self.socket.poll_read(cx, READ_BYTES, |fd| socket::read(fd, &mut bytes));
        read.map(|read| match read {
            Ok(0) => Err(ExchangeError::Truncated),
            Ok(count) => {
                self.incomplete.extend_from_slice(&bytes[..count]);
                self.open(exchange)
            }
            Err(error) => Err(ExchangeError::Broken(StarttlsSide::Peer, error)),
        })
    }

    fn write(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), ExchangeError> {
        if self.session.seal_due(Instant::now, out).map_err(ExchangeError::Session)? {
            self.connection.count_rekeys(self.session.rekeys());
        }
        if !bytes.is_empty() {
            self.connection.note_sent(bytes);
            out.append(&mut self.session.seal(bytes).map_err(ExchangeError::Session)?);
        }
        Ok(())
    }

    fn write_end(&mut self, out: &mut Vec<u8>) -> Result<(), ExchangeError> {
        self.session.seal_close(out).map_err(ExchangeError::Session)
    }
}
