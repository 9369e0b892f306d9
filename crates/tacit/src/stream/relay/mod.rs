//! Stage 4, relay: carries the bytes between the two legs until both directions have ended.
//!
//! ```text
//!            read many     seal in place     write once
//!   clear ───────────────> slots ──────────────────────> TLS
//!   clear <────────────── payloads <──────────────────── TLS
//!            write once    open in place      read much
//! ```
//!
//! * One read and one write for each direction and batch; buffers belong to the worker and are
//!   touched only between them. A connection owns bytes only while a write is blocked or a record
//!   is incomplete: [`BATCH_RECORDS_MAX`] records at most for each direction.
//! * Backpressure: while bytes wait for one leg, the other leg's direction is not read.
//! * Ends: each direction ends alone. A clear end of file becomes `close_notify` and back.
//!   A TLS stream that ends without `close_notify` was cut: the clear leg is reset after the bytes
//!   that are good. A reset of one leg resets the other, after the bytes that are good, or after
//!   [`DELIVERY_WAIT_MAX`] without any progress. A UNIX socket has no reset: its peer reads an end.
//! * Fairness: after a read that filled the buffer the connection goes to the end of the queue.

mod clear;
pub mod controlled;
mod sealed;
mod talking;

pub use talking::{ARRIVAL_WAIT_MAX, Came, DATA_CONNECTIONS_MAX, Job, ftp_of};

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tacit_core::record::RECORD_BYTES_MAX;
use tacit_core::starttls::Refusal;
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};

use crate::log::Log;
use tacit_tls::{Keyring, SessionError};

use super::connection::Connection;
use super::leg::{DELIVERY_WAIT_MAX, Leg, Outgoing};
use super::secure::{ControlledPath, Path, Secured};

/// Records of one batch: half a megabyte of payload, which saves 6 % CPU on bulk against half of
/// it and no longer fits closer caches beyond.
pub const BATCH_RECORDS_MAX: usize = 32;
/// The same of ChaCha20-Poly1305, which takes long enough that the peer had better open what there
/// is meanwhile: a megabyte there and back takes 10 % less time for 1 to 2 % more CPU. Half of it
/// again brings nothing more.
pub const CHACHA_BATCH_RECORDS_MAX: usize = 16;
/// Bytes that wait for slow peers on one worker, all connections together, before batches shrink
/// to one record.
pub const HELD_BYTES_MAX: usize = 256 << 20;

/// Buffers for incomplete records that a worker keeps for their next use.
const SPARES_MAX: usize = 16;

/// What the relays of one worker use.
pub struct Host {
    /// The worker's buffers.
    pub scratch: Scratch,
    /// Places for connections.
    pub places: Arc<Semaphore>,
    /// Congestion control of sockets that are opened.
    pub congestion_control: Option<String>,
    /// Where events go.
    pub log: Log,
    /// Starts a data connection.
    pub start: Box<dyn Fn(Job)>,
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("scratch", &self.scratch).finish_non_exhaustive()
    }
}

/// A worker's buffers, shared by its connections one after the other.
#[derive(Debug)]
pub struct Scratch {
    buffers: RefCell<Buffers>,
    held_bytes: Cell<usize>,
}

#[derive(Debug)]
struct Buffers {
    bytes: Box<[u8]>,
    payloads: Vec<Range<usize>>,
    keys: Keyring,
    /// Empty; for the front of a record that has not arrived whole.
    spares: Vec<Vec<u8>>,
}

impl Default for Scratch {
    fn default() -> Self {
        // One more record than a batch: what was incomplete goes before what is read.
        let bytes = (BATCH_RECORDS_MAX + 1) * RECORD_BYTES_MAX;
        let buffers = Buffers {
            bytes: vec![0; bytes].into_boxed_slice(),
            payloads: Vec::with_capacity(BATCH_RECORDS_MAX),
            keys: Keyring::default(),
            spares: Vec::with_capacity(SPARES_MAX),
        };
        Self { buffers: RefCell::new(buffers), held_bytes: Cell::new(0) }
    }
}

impl Scratch {
    /// Bytes that wait for slow peers of this worker.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    fn batch_records(&self, records_max: usize) -> usize {
        if self.held_bytes.get() > HELD_BYTES_MAX { 1 } else { records_max }
    }
}

impl Buffers {
    /// Keeps `tail` in `kept`, which has memory only while there is something to keep.
    fn keep(spares: &mut Vec<Vec<u8>>, tail: &[u8], kept: &mut Vec<u8>) {
        kept.clear();
        if !tail.is_empty() {
            if kept.capacity() == 0 {
                *kept = spares.pop().unwrap_or_default();
            }
            kept.extend_from_slice(tail);
        } else if kept.capacity() > 0 {
            let spare = std::mem::take(kept);
            if spares.len() < SPARES_MAX {
                spares.push(spare);
            }
        }
    }
}

/// One connection's part of [`Scratch::held_bytes`]; given back when dropped.
#[derive(Debug)]
struct Held<'a> {
    scratch: &'a Scratch,
    bytes: usize,
}

impl<'a> Held<'a> {
    fn new(scratch: &'a Scratch) -> Self {
        Self { scratch, bytes: 0 }
    }

    fn set(&mut self, bytes: usize) {
        let others = self.scratch.held_bytes.get() - self.bytes;
        self.scratch.held_bytes.set(others + bytes);
        self.bytes = bytes;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A leg that broke while the other may still take bytes that are good.
#[derive(Debug)]
struct Broken {
    end: End,
    give_up: Pin<Box<Sleep>>,
    progress: u64,
}

impl Broken {
    fn new(clear: bool, error: io::Error) -> Box<Self> {
        let give_up = Box::pin(tokio::time::sleep(DELIVERY_WAIT_MAX));
        Box::new(Self { end: End::Broken { clear, error }, give_up, progress: 0 })
    }

    /// Whether an end of file of that leg is what remains of a reset whose error was taken by
    /// somebody else. `BrokenPipe` is not: the peer had ended its stream in order before.
    fn hides_reset(&self, of_clear: bool) -> bool {
        matches!(&self.end, End::Broken { clear, error }
            if *clear == of_clear && error.kind() != io::ErrorKind::BrokenPipe)
    }

    /// Ready when nothing has moved for too long. `progress` is any number that changes with it.
    fn poll_give_up(&mut self, progress: u64, cx: &mut Context<'_>) -> Poll<()> {
        if self.progress != progress {
            self.progress = progress;
            self.give_up.as_mut().reset(Instant::now() + DELIVERY_WAIT_MAX);
        }
        self.give_up.as_mut().poll(cx)
    }
}

/// Sees what waits for both legs delivered, as far as they take it in time. Boxed, so that a
/// connection does not carry the room for its last moments all its life.
fn deliver<'a>(
    (to_one, one): (&'a mut Outgoing, &'a Leg),
    (to_other, other): (&'a mut Outgoing, &'a Leg),
) -> Pin<Box<impl Future<Output = ()> + 'a>> {
    Box::pin(async move {
        let both = async { tokio::join!(to_one.deliver(one), to_other.deliver(other)) };
        let _ = tokio::time::timeout(DELIVERY_WAIT_MAX, both).await;
    })
}

/// What a write took; nothing if the socket is full.
fn written(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if is_passing(&error) => Ok(0),
        other => other,
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// How a connection ended.
#[derive(Debug)]
pub enum End {
    /// Both directions ended in order.
    Orderly,
    /// The TLS peer's stream was cut: it ended without `close_notify`.
    Truncated,
    /// One leg was reset, or failed otherwise.
    Broken {
        /// Whether it was the leg in clear (of two, the one that was accepted).
        clear: bool,
        /// What the kernel said.
        error: io::Error,
    },
    /// The TLS session could not go on.
    Session(SessionError),
    /// What was said under TLS was not the protocol's.
    Refused(Box<Refusal>),
    /// What the program asked for could not be done, and nothing can go on after that.
    Asked(&'static str),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Orderly => f.write_str("closed"),
            Self::Truncated => f.write_str("the TLS peer ended without close_notify"),
            Self::Broken { clear: true, error } => write!(f, "the clear leg broke: {error}"),
            Self::Broken { clear: false, error } => write!(f, "the far leg broke: {error}"),
            Self::Session(error) => write!(f, "{error}"),
            Self::Refused(refusal) => write!(f, "{refusal}"),
            Self::Asked(what) => f.write_str(what),
        }
    }
}

/// A connection that carried bytes and ended.
#[derive(Debug)]
pub struct Finished {
    /// The connection.
    pub connection: Connection,
    /// How it ended.
    pub end: End,
}

/// Carries the bytes until the connection ends. One whose program says when TLS begins is carried
/// by `in_turns`, which accounts for the end itself where it returns none.
#[expect(clippy::boxed_local, reason = "what calls holds a box and no more")]
pub fn run<'w, W: AsRef<Host>>(
    worker: &'w W,
    secured: Box<Secured>,
    in_turns: impl FnOnce(&'w W, Connection, Box<ControlledPath>) -> InTurns<'w>,
) -> impl Future<Output = Option<Finished>> {
    // Taken apart here, not in the future: there the box would live as long as that.
    let Secured { connection, path } = *secured;
    async move {
        let host = worker.as_ref();
        let scratch = &host.scratch;
        let end = match path {
            Path::Sealed(sealed) => sealed::run(scratch, sealed, &connection).await,
            // Boxed: other connections have no room for what only the dialogue needs.
            Path::Talking(path) => Box::pin(talking::run(host, path, &connection)).await,
            Path::Clear(clear) => clear::run(scratch, clear, &connection).await,
            Path::Controlled(path) => return in_turns(worker, connection, path).await,
        };
        Some(Finished { connection, end })
    }
}

/// What carries a connection in turns; boxed, because it is rare and large.
pub type InTurns<'w> = Pin<Box<dyn Future<Output = Option<Finished>> + 'w>>;
