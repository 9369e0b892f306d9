//! Holds the read and write buffers of a worker thread. The connections of the thread use these
//! buffers one after the other.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::task::{Poll, ready};

use tacit_core::record::RECORD_BYTES_MAX;
use tacit_sys::socket;

use tacit_tls::ExpandedKeyCache;

use crate::log::Log;
use crate::net::stream_socket::StreamSocket;

use super::bulk::BulkTurns;

/// The number of records in a batch: half a megabyte of payload. Bulk transfers use 6 % less CPU
/// time than with half of it; larger batches do not fit into the inner caches.
pub const BATCH_RECORDS_MAX: usize = 32;
/// The limit of bytes that wait for slow peers on one worker, in all connections together. Above
/// it, batches have one record.
pub const HELD_BYTES_MAX: usize = 256 << 20;

/// Bytes read at once during a handshake.
const HANDSHAKE_READ_BYTES: usize = 16 * 1024;
/// The maximum number of unused buffers for incomplete records that a worker keeps.
const SPARES_MAX: usize = 16;

/// A worker's buffers, shared by its connections one after the other.
#[derive(Debug)]
pub struct Scratch {
    pub(super) buffers: RefCell<Buffers>,
    held_bytes: Cell<usize>,
    pub(super) bulk: BulkTurns,
    pub(super) log: Log,
}

#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) bytes: Box<[u8]>,
    pub(super) payloads: Vec<Range<usize>>,
    pub(super) keys: ExpandedKeyCache,
    /// Empty buffers for records that have not arrived completely.
    pub(super) spares: Vec<Vec<u8>>,
}

impl Scratch {
    /// Buffers of a worker whose events go to `log`.
    #[must_use]
    pub fn new(log: Log) -> Self {
        // One more record than a batch, because an incomplete record precedes the bytes of a read.
        let bytes = (BATCH_RECORDS_MAX + 1) * RECORD_BYTES_MAX;
        let buffers = Buffers {
            bytes: vec![0; bytes].into_boxed_slice(),
            payloads: Vec::with_capacity(BATCH_RECORDS_MAX),
            keys: ExpandedKeyCache::default(),
            spares: Vec::with_capacity(SPARES_MAX),
        };
        let buffers = RefCell::new(buffers);
        Self { buffers, held_bytes: Cell::new(0), bulk: BulkTurns::default(), log }
    }

    /// The number of bytes that wait for slow peers of this worker.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.held_bytes.get()
    }

    /// Reads the available data of a socket, at most 16 KB, and appends it to `onto`. The data is
    /// first in the thread's buffer, so `onto` gets little more memory than the data needs. Larger
    /// buffers, each for the time of a handshake, would leave holes between the connections.
    ///
    /// # Errors
    /// The error of the read.
    pub(super) async fn read_onto(
        &self,
        socket: &StreamSocket,
        onto: &mut Vec<u8>,
    ) -> io::Result<usize> {
        poll_fn(|cx| {
            let mut buffers = self.buffers.borrow_mut();
            let space = &mut buffers.bytes[..HANDSHAKE_READ_BYTES];
            let read = socket.poll_read(cx, space.len(), |fd| socket::read(fd, space));
            let read = ready!(read)?;
            onto.extend_from_slice(&space[..read]);
            Poll::Ready(Ok(read))
        })
        .await
    }

    pub(super) fn batch_records(&self, records_max: usize) -> usize {
        if self.held_bytes.get() > HELD_BYTES_MAX { 1 } else { self.bulk.records(records_max) }
    }
}

impl Buffers {
    /// Stores `tail` in `kept`, which has memory only while there is something to store.
    pub(super) fn keep(spares: &mut Vec<Vec<u8>>, tail: &[u8], kept: &mut Vec<u8>) {
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

/// The share of one connection in [`Scratch::held_bytes`], which is subtracted when it is dropped.
#[derive(Debug)]
pub(super) struct HeldBytes<'a> {
    pub(super) scratch: &'a Scratch,
    pub(super) bytes: usize,
}

impl<'a> HeldBytes<'a> {
    pub(super) fn new(scratch: &'a Scratch) -> Self {
        Self { scratch, bytes: 0 }
    }

    pub(super) fn set(&mut self, bytes: usize) {
        let others = self.scratch.held_bytes.get() - self.bytes;
        self.scratch.held_bytes.set(others + bytes);
        self.bytes = bytes;
    }
}

impl Drop for HeldBytes<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}
