//! Runs the thread of a trace. Workers copy bytes into a queue. The thread converts these bytes
//! into packets, and writes the packets to the capture file.
//!
//! If the file accepts no bytes (for example a full pipe whose reader has stopped), the thread
//! waits. After the end of the trace, the thread waits at most [`LAST_BYTES_WAIT_MAX`]. If the
//! queue is full, workers do not copy further bytes, and these bytes are missing from the trace.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tacit_core::flow::Address;
use tacit_core::pcapng::{self, CaptureHeader, CaptureStatistics, SyntheticStream};
use tacit_core::printable::printable;
use tacit_tls::KeyLogLine;

use crate::session::record::ConnectionRecord;

use super::active::{ConnectionEvent, Trace, TraceCounts, TraceEvent, TraceMessage};
use super::report::{TraceEndReason, TraceReport};
use super::{TraceFiles, TraceOptions, TraceSelection};

/// Bytes of packets that are written together.
const WRITE_BYTES: usize = 256 * 1024;
/// The maximum size of the end of a capture.
const END_BYTES: usize = 128;
/// The maximum number of streams of one trace at a time; packets of further streams are dropped.
const STREAMS_MAX: usize = 16_384;
/// The size of one write: a pipe that is ready accepts this many bytes (`PIPE_BUF`) without
/// blocking.
const READY_BYTES: usize = 4096;
/// How often the thread checks, while it waits for a file, whether the trace has ended.
const FULL_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// How long the thread waits after the end of the trace for a file that accepts no bytes.
const LAST_BYTES_WAIT_MAX: Duration = Duration::from_secs(2);
/// The port that a capture shows for an accepted UNIX socket. No protocol uses this port.
const UNIX_SERVER_PORT: u16 = 49_151;
/// The first of the ports that a capture shows for connected UNIX sockets.
const UNIX_CLIENT_PORT: u16 = 49_152;

/// The settings with which tshark uses the keys of tunnels.
const TUNNEL_SETTINGS: [&str; 2] =
    ["esp.enable_encryption_decode:TRUE", "esp.enable_authentication_check:TRUE"];

/// Writes the files of a trace.
#[derive(Debug)]
pub(super) struct Writer {
    trace: Arc<Trace>,
    messages: Receiver<TraceMessage>,
    files: TraceFiles,
    until: Instant,
    streams: HashMap<u64, OpenStream>,
    /// Packets that are not written yet.
    out: Vec<u8>,
}

/// A connection that the capture shows as open.
#[derive(Debug)]
struct OpenStream {
    stream: SyntheticStream,
    record: Arc<ConnectionRecord>,
}

impl Writer {
    pub(super) fn new(
        trace: Arc<Trace>,
        messages: Receiver<TraceMessage>,
        files: TraceFiles,
    ) -> Self {
        let until = Instant::now() + trace.options.duration;
        Self { trace, messages, files, until, streams: HashMap::new(), out: Vec::new() }
    }

    /// Writes until the trace has ended, and reports what it did.
    pub(super) fn run(mut self) -> TraceReport {
        let written = self.begin().and_then(|()| self.work());
        let written = written.and_then(|()| self.finish());
        if written.is_err() {
            self.trace.end(TraceEndReason::WriteFailed);
            self.drop_waiting();
        }
        self.report(written.err())
    }

    fn begin(&mut self) -> io::Result<()> {
        if self.files.capture.is_some() {
            let of = self.trace.options.of.to_string();
            let of = printable(&of);
            let comment = format!(
                "tacit decrypted the traffic of {of}. The TCP headers are synthetic. The comment \
                 of the first packet of each connection contains the id of the connection, the \
                 rule and the TLS version"
            );
            let header = CaptureHeader {
                application: concat!("tacit ", env!("CARGO_PKG_VERSION")),
                interface: &of,
                comment: &comment,
            };
            pcapng::begin(&mut self.out, header);
        }
        if matches!(self.trace.options.of, TraceSelection::Ike(_)) {
            self.take_keys(&TUNNEL_SETTINGS.map(|line| KeyLogLine::of_text(line.to_owned())))?;
        }
        self.flush()
    }

    fn work(&mut self) -> io::Result<()> {
        while self.trace.end_reason().is_none() {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.trace.end(TraceEndReason::Time);
                break;
            }
            match self.messages.recv_timeout(left) {
                Ok(message) => self.take(message)?,
                // The trace holds the other end.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => continue,
            }
            while self.out.len() < WRITE_BYTES {
                let Ok(message) = self.messages.try_recv() else { break };
                self.take(message)?;
            }
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the waiting packets and the end of the capture.
    fn finish(&mut self) -> io::Result<()> {
        while let Ok(message) = self.messages.try_recv() {
            self.take(message)?;
            if self.out.len() >= WRITE_BYTES {
                self.flush()?;
            }
        }
        if self.files.capture.is_some() {
            let counts = &self.trace.counts;
            let dropped = TraceCounts::read(&counts.dropped);
            let statistics = CaptureStatistics {
                started_ns: unix_ns(self.trace.started),
                ended_ns: unix_ns(SystemTime::now()),
                received: TraceCounts::read(&counts.packets) + dropped,
                dropped,
            };
            pcapng::end(&mut self.out, statistics);
        }
        self.flush()
    }

    /// Counts the waiting packets as dropped.
    fn drop_waiting(&self) {
        while let Ok(message) = self.messages.try_recv() {
            match message {
                TraceMessage::Connection(ConnectionEvent { event, .. }) => {
                    self.trace.note_taken(&event);
                    TraceCounts::add(&self.trace.counts.dropped, event.packets());
                }
                TraceMessage::Keys(lines) => {
                    TraceCounts::add(&self.trace.counts.keys_dropped, lines.len());
                }
                TraceMessage::Wake => {}
            }
        }
    }

    fn report(self, error: Option<io::Error>) -> TraceReport {
        let TraceOptions { of, user, pid, .. } = &self.trace.options;
        let counts = &self.trace.counts;
        TraceReport {
            of: of.to_string(),
            user: user.clone(),
            pid: *pid,
            reason: self.trace.end_reason().unwrap_or(TraceEndReason::Requested),
            error: error.map(|error| error.to_string()),
            connections: TraceCounts::read(&counts.connections),
            packets: TraceCounts::read(&counts.packets),
            dropped: TraceCounts::read(&counts.dropped),
            keys: TraceCounts::read(&counts.keys),
            keys_dropped: TraceCounts::read(&counts.keys_dropped),
            bytes: TraceCounts::read(&counts.bytes),
        }
    }

    fn take(&mut self, message: TraceMessage) -> io::Result<()> {
        match message {
            TraceMessage::Connection(event) => self.take_event(event),
            TraceMessage::Keys(lines) => self.take_keys(&lines)?,
            TraceMessage::Wake => {}
        }
        Ok(())
    }

    fn take_event(&mut self, happened: ConnectionEvent) {
        let ConnectionEvent { record, time, positions, event } = happened;
        self.trace.note_taken(&event);
        let time_ns = unix_ns(time);
        let id = record.id;
        if !self.streams.contains_key(&id) && !self.open(record, time_ns, positions) {
            TraceCounts::add(&self.trace.counts.dropped, event.packets());
            return;
        }
        let packets = match event {
            TraceEvent::Opened => Vec::new(),
            TraceEvent::Bytes { from, bytes } => {
                let [of_client, of_server] = positions;
                let position = match from {
                    pcapng::Side::Client => of_client,
                    pcapng::Side::Server => of_server,
                };
                let data = |open: &mut OpenStream| open.stream.data(from, position, &bytes);
                self.streams.get_mut(&id).map(data).unwrap_or_default()
            }
            TraceEvent::Ended(end) => {
                let ended = self.streams.remove(&id);
                ended.map(|open| open.stream.end(end, positions)).unwrap_or_default()
            }
        };
        packets.iter().for_each(|packet| self.put(time_ns, packet, None));
    }

    /// Opens the stream of a connection; `false`: there are too many.
    fn open(&mut self, record: Arc<ConnectionRecord>, time_ns: u64, positions: [u64; 2]) -> bool {
        if self.streams.len() >= STREAMS_MAX {
            // The trace may have dropped the ends of some connections.
            self.streams.retain(|_, open| Arc::strong_count(&open.record) > 1);
        }
        if self.streams.len() >= STREAMS_MAX {
            return false;
        }
        let [client, server] = ends(&record);
        let number = u32::try_from(record.id & u64::from(u32::MAX)).unwrap_or_default();
        let stream = SyntheticStream::new(client, server, positions, number);
        let comment = comment(&record, positions);
        let mut comment = Some(comment.as_str());
        stream.open().iter().for_each(|packet| self.put(time_ns, packet, comment.take()));
        TraceCounts::add(&self.trace.counts.connections, 1);
        self.streams.insert(record.id, OpenStream { stream, record });
        true
    }

    /// Adds a packet to the capture, or ends the trace at its limit.
    fn put(&mut self, time_ns: u64, packet: &[u8], comment: Option<&str>) {
        let before = self.out.len();
        let is_full = self.trace.end_reason() == Some(TraceEndReason::MaxBytes);
        if !is_full {
            pcapng::packet(&mut self.out, time_ns, packet, comment);
        }
        if is_full || !self.has_room(END_BYTES) {
            self.out.truncate(before);
            self.trace.end(TraceEndReason::MaxBytes);
            TraceCounts::add(&self.trace.counts.dropped, 1);
        } else {
            TraceCounts::add(&self.trace.counts.packets, 1);
        }
    }

    fn take_keys(&mut self, lines: &[KeyLogLine]) -> io::Result<()> {
        let text: String = lines.iter().map(KeyLogLine::text).collect();
        let end_bytes = if self.files.capture.is_some() { END_BYTES } else { 0 };
        let has_room = self.has_room(text.len() + end_bytes);
        let Some(file) = &mut self.files.key_log else { return Ok(()) };
        if !has_room {
            self.trace.end(TraceEndReason::MaxBytes);
            TraceCounts::add(&self.trace.counts.keys_dropped, lines.len());
            return Ok(());
        }
        write_all(file, text.as_bytes(), &self.trace, self.until)?;
        TraceCounts::add(&self.trace.counts.bytes, text.len());
        TraceCounts::add(&self.trace.counts.keys, lines.len());
        Ok(())
    }

    /// Whether the limit permits this number of bytes in addition to those that wait to be written.
    fn has_room(&self, bytes: usize) -> bool {
        let waiting = (self.out.len() + bytes) as u64;
        TraceCounts::read(&self.trace.counts.bytes) + waiting <= self.trace.options.bytes_max
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.files.capture else { return Ok(()) };
        write_all(file, &self.out, &self.trace, self.until)?;
        TraceCounts::add(&self.trace.counts.bytes, self.out.len());
        self.out.clear();
        Ok(())
    }
}

/// Writes all bytes, and waits while the file accepts none.
fn write_all(file: &mut File, mut bytes: &[u8], trace: &Trace, until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        wait_until_ready(file, trace, until)?;
        let part = bytes.get(..READY_BYTES).unwrap_or(bytes);
        match file.write(part) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error)
                if [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock]
                    .contains(&error.kind()) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits until a file accepts bytes. Ends the trace at its time; a file that accepts none for a
/// while after the end is an error.
fn wait_until_ready(file: &File, trace: &Trace, until: Instant) -> io::Result<()> {
    let mut last = None;
    loop {
        let mut polled = [PollFd::new(file, PollFlags::OUT)];
        match poll(&mut polled, Some(&FULL_PAUSE)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let now = Instant::now();
        if now >= until {
            trace.end(TraceEndReason::Time);
        }
        if trace.end_reason().is_some()
            && now >= *last.get_or_insert_with(|| now + LAST_BYTES_WAIT_MAX)
        {
            let why =
                "the file accepts no more bytes: the program that reads it has stopped reading";
            return Err(io::Error::new(io::ErrorKind::TimedOut, why));
        }
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The addresses of a stream: the client's, and the one that the client connected to.
fn ends(record: &ConnectionRecord) -> [SocketAddr; 2] {
    let [client, server] = addresses(record);
    let number = u16::try_from(record.id % 16_384).unwrap_or_default();
    let placeholder = |other: Option<SocketAddr>, port| {
        let ip = match other {
            Some(SocketAddr::V6(_)) => IpAddr::V6(Ipv6Addr::LOCALHOST),
            Some(SocketAddr::V4(_)) | None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        SocketAddr::new(ip, port)
    };
    let [client, server] = [client, server].map(|address| match address {
        Address::Inet(inet) => Some(*inet),
        Address::Path(_) | Address::Abstract(_) | Address::Unnamed => None,
    });
    [
        client.unwrap_or_else(|| placeholder(server, UNIX_CLIENT_PORT + number)),
        server.unwrap_or_else(|| placeholder(client, UNIX_SERVER_PORT)),
    ]
}

fn addresses(record: &ConnectionRecord) -> [&Address; 2] {
    match &record.scope {
        Some(facts) if !facts.is_inbound => [&record.local, &record.remote],
        Some(_) | None => [record.client(), &record.local],
    }
}

/// Returns the comment of the first packet of a connection.
fn comment(record: &ConnectionRecord, positions: [u64; 2]) -> String {
    let [client, server] = addresses(record);
    let tls = match record.tls.get() {
        Some(tls) => format!("TLS {} {}", tls.agreed.version.word(), tls.agreed.suite),
        None => "clear".to_owned(),
    };
    let rule = record.rule.name();
    let mut text =
        format!("connection {id}, rule {rule}, {tls}, {client} to {server}", id = record.id);
    if let Some(facts) = &record.scope {
        text.push_str(&format!(", run {}", facts.scope.name()));
    }
    if let Some(sockets) = record.sockets.get() {
        text.push_str(&format!(", dialled {}", sockets.target));
    }
    if positions != [0, 0] {
        let [sent, received] = positions;
        text.push_str(&format!(
            ", the trace begins after the client sent {sent} bytes and received {received} bytes"
        ));
    }
    printable(&text).into_owned()
}
