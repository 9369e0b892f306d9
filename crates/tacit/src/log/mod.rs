//! Writes two logs: the log and the audit log. The log contains events that an operator acts on,
//! and the audit log contains every connection.
//!
//! A separate thread writes the lines, so that a full disk or a blocked terminal never delays a
//! connection. If a line does not fit into the queue or on the disk, the line is lost, and counted.
//!
//! Some lines may repeat, for example a line about a server that is down. Each of these lines has a
//! key. The log contains at most one line for each key in a second. Lines of the audit log have no
//! keys. Instead, the audit log limits the rate of refusals and failures. The limits of both logs
//! apply separately to each run and each client ([`EventCause`]).
//!
//! ```text
//!   2026-05-04T10:11:12.131Z warn failed conn=7 rule=front remote=192.0.2.7:4711 reason="…"
//!   {"time":"…","level":"warn","event":"failed","conn":7,"rule":"front", …}
//! ```

mod audit_rate;
mod cause;
mod destination;
mod queued;

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use tacit_core::limiter::{Kept, Limiter};

use crate::clock::Rfc3339;
use crate::ledger::{ThreadKind, meter};

use audit_rate::{AuditRate, LeftOut};
use cause::ByGroup;
pub use cause::EventCause;
use destination::line_file::LineFile;
pub use destination::{LogDestination, RUN_LOG_BYTES_MAX};
use destination::{Severity, Sink, append_to};
use queued::Queued;

/// The maximum number of lines in the queue; further lines are lost, and counted.
pub const QUEUE_LINES_MAX: usize = 8192;
/// The time between two lines that report the number of lost lines.
const LOST_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of the process waits for lines that are not written yet.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(2);

/// The format of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Time, level and event, then fields as `key=value`.
    #[default]
    Text,
    /// A JSON object in each line.
    Json,
}

/// The outcome of a connection, for the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditOutcome {
    /// The connection was established.
    Allowed,
    /// The policy denied the connection.
    Denied,
    /// The connection could not be established.
    Failed,
}

/// The value of a field.
#[derive(Clone, Debug)]
enum FieldValue {
    Text(String),
    Json(Value),
    List(Vec<String>),
}

impl FieldValue {
    /// Without a copy if it is a text.
    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => Cow::Borrowed(text),
            Self::Json(value) => Cow::Owned(value.to_string()),
            Self::List(items) => Cow::Owned(items.join(",")),
        }
    }
}

impl Serialize for FieldValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Json(value) => value.serialize(serializer),
            Self::List(items) => items.serialize(serializer),
        }
    }
}

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    id: &'static str,
    connection: Option<u64>,
    fields: Vec<(&'static str, FieldValue)>,
    cause: EventCause,
    /// Identifies events that repeat, for the limit of one line in each second.
    key: Option<String>,
}

impl Event {
    /// An event with the identifier `id`, which is lower-case words with hyphens. An identifier
    /// never changes, and tacit-messages(7) lists it. It is a literal, because `cargo xtask tidy`
    /// compares the two.
    #[must_use]
    pub fn new(id: &'static str) -> Self {
        Self { id, connection: None, fields: Vec::new(), cause: EventCause::Agent, key: None }
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &'static str {
        self.id
    }

    /// Sets the connection that the event is about.
    #[must_use]
    pub fn connection(mut self, id: u64) -> Self {
        self.connection = Some(id);
        self
    }

    /// Sets the run or client that caused the event. Limits apply to each of them separately.
    #[must_use]
    pub fn caused_by(mut self, cause: EventCause) -> Self {
        self.cause = cause;
        self
    }

    /// Limits events with this cause and this key to one line in each second. The limit does not
    /// apply to the audit log, which has its own.
    #[must_use]
    pub fn limited(mut self, key: String) -> Self {
        self.key = Some(key);
        self
    }

    /// Adds a field with a text. It must not contain a secret.
    #[must_use]
    pub fn field(mut self, key: &'static str, value: &(impl Display + ?Sized)) -> Self {
        self.fields.push((key, FieldValue::Text(value.to_string())));
        self
    }

    /// Adds a field with a number or a truth value.
    #[must_use]
    pub fn value(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((key, FieldValue::Json(value.into())));
        self
    }

    /// Adds a field with a list of names, unless it is empty.
    #[must_use]
    pub fn names(mut self, key: &'static str, names: &[String]) -> Self {
        if !names.is_empty() {
            self.fields.push((key, FieldValue::List(names.to_vec())));
        }
        self
    }
}

/// The least level of the events that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum LogLevel {
    /// All events.
    #[default]
    Info,
    /// Events that may need action.
    Warn,
    /// A failure that lasts until it is repaired.
    Error,
}

impl LogLevel {
    /// The word on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// The settings of the log.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The format of lines.
    pub format: Format,
    /// Which events are written.
    pub level: LogLevel,
    /// Where lines are written.
    pub destination: LogDestination,
    /// The launcher of the only run of a private agent, as `NAME[PID]`. Lines have it if other
    /// agents write to the same destination.
    pub launcher: Option<String>,
    /// The audit log.
    pub audit: Option<PathBuf>,
}

/// A handle to the log. Cloning it is cheap.
#[derive(Clone, Debug)]
pub struct Log {
    /// Boxed, because the queue allocates and writes all its slots when it is created.
    queue: SyncSender<Box<Message>>,
    lost: Arc<AtomicU64>,
    repeated_queued: Arc<Queued>,
    has_audit: bool,
    level: LogLevel,
}

enum Message {
    Line(Line),
    /// Asks for an answer when all lines before it were written or lost.
    Flush(SyncSender<()>),
    /// A function to call on the writing thread, and where to send the answer afterwards.
    Do(Box<dyn FnOnce() + Send>, SyncSender<()>),
}

#[derive(Debug)]
struct Line {
    time: SystemTime,
    kind: Kind,
    event: Event,
}

impl Line {
    /// Whether one client or program can cause any number of such lines.
    fn may_repeat(&self) -> bool {
        let is_not_open =
            matches!(self.kind, Kind::Audit(AuditOutcome::Denied | AuditOutcome::Failed));
        is_not_open || self.event.key.is_some()
    }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Info,
    Warn,
    Error,
    Audit(AuditOutcome),
    /// A line of the audit log that reports how many lines were left out.
    LeftOut,
}

impl Log {
    /// A log that writes no lines, for tests.
    #[cfg(test)]
    pub(crate) fn without_lines() -> Self {
        Self::start(Settings {
            format: Format::Text,
            level: LogLevel::Warn,
            destination: LogDestination::None,
            launcher: None,
            audit: None,
        })
        .unwrap()
    }

    /// Starts the writing thread.
    ///
    /// # Errors
    /// The destination or the audit file cannot be opened, or the thread cannot start.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let Settings { format, level, destination, launcher, audit } = settings;
        let audit = audit.as_deref().map(open_audit).transpose()?;
        let sink = Sink::open(&destination)?;
        let (queue, messages) = sync_channel(QUEUE_LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let repeated_queued = Arc::<Queued>::default();
        let log = Self {
            queue,
            lost: Arc::clone(&lost),
            repeated_queued: Arc::clone(&repeated_queued),
            has_audit: audit.is_some(),
            level,
        };
        let writer = Writer {
            format,
            sink,
            launcher,
            audit,
            lost,
            repeated_queued,
            reported: ReportedLost::default(),
            repeated: ByGroup::default(),
            audit_rate: AuditRate::default(),
        };
        std::thread::Builder::new().name("log".into()).spawn(move || writer.run(&messages))?;
        Ok(log)
    }

    /// Logs an event that needs no action.
    pub fn info(&self, event: Event) {
        if self.level <= LogLevel::Info {
            self.send(Kind::Info, event);
        }
    }

    /// Logs an event that an operator may have to look at.
    pub fn warn(&self, event: Event) {
        if self.level <= LogLevel::Warn {
            self.send(Kind::Warn, event);
        }
    }

    /// Logs a failure that lasts until an operator acts.
    pub fn error(&self, event: Event) {
        self.send(Kind::Error, event);
    }

    /// Writes the outcome of a connection to the audit log.
    pub fn audit(&self, outcome: AuditOutcome, event: Event) {
        if self.has_audit {
            self.send(Kind::Audit(outcome), event);
        }
    }

    /// Whether there is an audit log. Without one, callers need not make its events.
    #[must_use]
    pub fn has_audit(&self) -> bool {
        self.has_audit
    }

    /// The number of lines that could not be written.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits, for a limited time, until all lines sent so far are written. Called before exit.
    pub fn flush(&self) {
        let (done, answer) = sync_channel(1);
        if self.queue.try_send(Box::new(Message::Flush(done))).is_ok() {
            // A stuck terminal does not keep the process alive.
            let _ = answer.recv_timeout(FLUSH_WAIT_MAX);
        }
    }

    /// Calls a function on the writing thread, after those of earlier calls.
    pub fn on_its_thread(&self, work: impl FnOnce() + Send + 'static) -> LogThreadCall {
        let (done, answer) = sync_channel(1);
        // If the thread has ended, the answer is the end of this channel.
        let _ = self.queue.send(Box::new(Message::Do(Box::new(work), done)));
        LogThreadCall(answer)
    }

    fn send(&self, kind: Kind, event: Event) {
        let line = Line { time: SystemTime::now(), kind, event };
        let may_repeat = line.may_repeat();
        // Counted before it is sent, because the writer subtracts it as soon as it arrives.
        if may_repeat && !self.repeated_queued.enter(&line.event.cause) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let refused = match self.queue.try_send(Box::new(Message::Line(line))) {
            Ok(()) => return,
            Err(TrySendError::Full(message) | TrySendError::Disconnected(message)) => message,
        };
        self.lost.fetch_add(1, Ordering::Relaxed);
        if let Message::Line(line) = *refused
            && may_repeat
        {
            self.repeated_queued.leave(&line.event.cause);
        }
    }
}

/// A function that the writing thread calls while the caller continues.
#[must_use]
#[derive(Debug)]
pub struct LogThreadCall(Receiver<()>);

impl LogThreadCall {
    /// Waits for a limited time until the function has returned.
    pub fn wait(self) {
        let _ = self.0.recv_timeout(FLUSH_WAIT_MAX);
    }
}

fn open_audit(path: &Path) -> io::Result<LineFile> {
    append_to(path).map(LineFile::new).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot open audit log {}: {error}", path.display()))
    })
}

struct Writer {
    format: Format,
    sink: Sink,
    launcher: Option<String>,
    audit: Option<LineFile>,
    lost: Arc<AtomicU64>,
    repeated_queued: Arc<Queued>,
    reported: ReportedLost,
    /// Lines with a key that wait for the end of their second.
    repeated: ByGroup<Limiter<EventCause, String, Line>>,
    audit_rate: AuditRate,
}

/// The last report of lost lines.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedLost {
    /// The number of lines that were reported so far.
    lines: u64,
    at: Option<Instant>,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Box<Message>>) {
        meter::start(ThreadKind::General);
        loop {
            let now = Instant::now();
            self.write_due(now);
            meter::waits();
            let message = match self.next_due() {
                Some(due) => messages.recv_timeout(due.saturating_duration_since(Instant::now())),
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            meter::wakes();
            match message.map(|message| *message) {
                Ok(Message::Line(line)) => {
                    if line.may_repeat() {
                        self.repeated_queued.leave(&line.event.cause);
                    }
                    self.take(line);
                }
                Ok(Message::Flush(done)) => {
                    self.write_all_kept();
                    self.report_lost();
                    // The caller may have stopped waiting.
                    let _ = done.send(());
                }
                Ok(Message::Do(work, done)) => {
                    work();
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.report_lost_if_due(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.write_all_kept();
                    return self.report_lost();
                }
            }
        }
    }

    /// After the end of a second, writes the lines that were kept and the numbers of lines that
    /// were left out.
    fn write_due(&mut self, now: Instant) {
        let ByGroup { runs, clients } = &mut self.repeated;
        for kept in runs.due(now).into_iter().chain(clients.due(now)) {
            self.write_kept(kept);
        }
        for left_out in self.audit_rate.take_due(now) {
            self.write_left_out(left_out);
        }
    }

    /// When [`write_due`](Self::write_due) has to be called although no line arrives.
    fn next_due(&self) -> Option<Instant> {
        let due = [
            self.repeated.runs.next_due(),
            self.repeated.clients.next_due(),
            self.reports_lost_at(),
            self.audit_rate.next_due(),
        ];
        due.into_iter().flatten().min()
    }

    /// Writes a line now, or keeps it for the end of its second.
    fn take(&mut self, line: Line) {
        if matches!(line.kind, Kind::Audit(AuditOutcome::Denied | AuditOutcome::Failed))
            && !self.audit_rate.admits(&line.event.cause, Instant::now())
        {
            return;
        }
        let key = match line.kind {
            Kind::Audit(_) | Kind::LeftOut => None,
            Kind::Info | Kind::Warn | Kind::Error => line.event.key.clone(),
        };
        let line = match key {
            Some(key) => {
                let cause = line.event.cause.clone();
                self.repeated.of(&cause).offer(cause, key, line, Instant::now())
            }
            None => Some(line),
        };
        if let Some(line) = line {
            self.write_or_lose(&line);
        }
    }

    fn write_all_kept(&mut self) {
        let ByGroup { runs, clients } = &mut self.repeated;
        for kept in runs.take_all().into_iter().chain(clients.take_all()) {
            self.write_kept(kept);
        }
        for left_out in self.audit_rate.take() {
            self.write_left_out(left_out);
        }
    }

    fn write_kept(&mut self, kept: Kept<Line>) {
        let Kept { latest: mut line, left_out } = kept;
        if left_out > 0 {
            line.event = line.event.value("left-out", left_out);
        }
        self.write_or_lose(&line);
    }

    fn write_left_out(&mut self, left_out: LeftOut) {
        let LeftOut { run, count } = left_out;
        let mut event = Event::new("audit-lines-left-out");
        if let Some(run) = run {
            event = event.field("run", &run);
        }
        let event = event.value("count", count);
        self.write_or_lose(&Line { time: SystemTime::now(), kind: Kind::LeftOut, event });
    }

    fn write_or_lose(&mut self, line: &Line) {
        if self.write(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.report_lost_if_due();
    }

    /// When lost lines are reported next; `None` if all were reported.
    fn reports_lost_at(&self) -> Option<Instant> {
        let is_news = self.lost.load(Ordering::Relaxed) > self.reported.lines;
        is_news.then(|| self.reported.at.map_or_else(Instant::now, |at| at + LOST_INTERVAL))
    }

    /// Reports how many lines were lost, at most once in [`LOST_INTERVAL`].
    fn report_lost_if_due(&mut self) {
        if self.reports_lost_at().is_some_and(|due| due <= Instant::now()) {
            self.report_lost();
        }
    }

    fn report_lost(&mut self) {
        let lines = self.lost.load(Ordering::Relaxed);
        if lines > self.reported.lines {
            // If the report cannot be written either, it is tried again after the interval.
            self.reported.at = Some(Instant::now());
            if self.write_lost(lines - self.reported.lines).is_ok() {
                self.reported.lines = lines;
            }
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let severity = match line.kind {
            Kind::Info => Severity::Info,
            Kind::Warn => Severity::Warning,
            Kind::Error => Severity::Error,
            Kind::Audit(_) | Kind::LeftOut => {
                let Some(file) = &mut self.audit else { return Ok(()) };
                return file.write(&json(line));
            }
        };
        let text = self.render(line);
        self.sink.write(severity, &text)
    }

    fn render(&self, line: &Line) -> String {
        let launcher = match &self.sink {
            Sink::StandardError => None,
            _ => self.launcher.as_deref(),
        };
        let labelled = launcher.map(|launcher| Line {
            event: line.event.clone().field("launcher", launcher),
            ..*line
        });
        let line = labelled.as_ref().unwrap_or(line);
        match self.format {
            Format::Text => text(line),
            Format::Json => json(line),
        }
    }

    fn write_lost(&mut self, count: u64) -> io::Result<()> {
        let event = Event::new("log-lines-lost").value("count", count).field(
            "next",
            "if the disk of the logs is full, delete other files on this disk; if another program \
             reads the log, make this program read faster",
        );
        self.write(&Line { time: SystemTime::now(), kind: Kind::Warn, event })
    }
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Audit(AuditOutcome::Allowed) => "allowed",
            Self::Audit(AuditOutcome::Denied) => "denied",
            Self::Audit(AuditOutcome::Failed) => "failed",
            Self::LeftOut => "left-out",
        }
    }
}

fn text(line: &Line) -> String {
    let Event { id: name, connection, fields, cause: _, key: _ } = &line.event;
    let mut out = format!("{} {} {name}", Rfc3339(line.time), line.kind.word());
    if let Some(id) = connection {
        let _ = write!(out, " conn={id}");
    }
    for (key, value) in fields {
        let _ = write!(out, " {key}=");
        let value = value.text();
        let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\';
        if !value.is_empty() && value.chars().all(plain) {
            out.push_str(&value);
        } else {
            let _ = write!(out, "{value:?}");
        }
    }
    out.push('\n');
    out
}

fn json(line: &Line) -> String {
    let mut out = serde_json::to_string(line).unwrap_or_default();
    out.push('\n');
    out
}

/// A JSON object in the order of a line of text. Of fields with one key, the last one counts.
impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Event { id, connection, fields, cause: _, key: _ } = &self.event;
        let is_audit = matches!(self.kind, Kind::Audit(_) | Kind::LeftOut);
        let mut object = serializer.serialize_map(None)?;
        object.serialize_entry("time", &Rfc3339(self.time))?;
        object.serialize_entry(if is_audit { "outcome" } else { "level" }, self.kind.word())?;
        object.serialize_entry("event", id)?;
        if let Some(id) = connection {
            object.serialize_entry("conn", id)?;
        }
        for (place, (key, value)) in fields.iter().enumerate() {
            let is_last = fields.iter().skip(place + 1).all(|(later, _)| later != key);
            if is_last {
                object.serialize_entry(key, value)?;
            }
        }
        object.end()
    }
}

#[cfg(test)]
mod tests {
    use super::queued::{LINES_PER_CAUSE_MAX, REPEATED_LINES_MAX};
    use super::*;
    use tacit_core::refusal::RunLabel;

    #[test]
    fn a_value_with_a_line_feed_does_not_forge_a_line() {
        let event = Event::new("failed").connection(7).field("reason", "x\nfake=\"line\"");
        let line = Line { time: SystemTime::UNIX_EPOCH, kind: Kind::Warn, event };
        assert_eq!(
            text(&line),
            "1970-01-01T00:00:00.000Z warn failed conn=7 reason=\"x\\nfake=\\\"line\\\"\"\n"
        );
        assert_eq!(json(&line).lines().count(), 1);
    }

    #[test]
    fn json_has_numbers_and_lists_as_such_in_the_order_of_the_text() {
        let event = Event::new("reloaded")
            .connection(7)
            .field("by", "web")
            .value("times", 2_u64)
            .names("added", &[])
            .names("changed", &["a".to_owned(), "b".to_owned()])
            .field("by", "root");
        let line = Line { time: SystemTime::UNIX_EPOCH, kind: Kind::Info, event };
        assert_eq!(
            json(&line),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"info\",\"event\":\"reloaded\",\
             \"conn\":7,\"times\":2,\"changed\":[\"a\",\"b\"],\"by\":\"root\"}\n"
        );
        assert!(text(&line).contains(" conn=7 by=web times=2 changed=a,b by=root"), "{line:?}");
    }

    /// A log whose queue is never read.
    fn stuck() -> (Log, Receiver<Box<Message>>) {
        let (queue, messages) = sync_channel(QUEUE_LINES_MAX);
        let level = LogLevel::Info;
        let log = Log {
            queue,
            lost: Arc::default(),
            repeated_queued: Arc::default(),
            has_audit: true,
            level,
        };
        (log, messages)
    }

    fn caused_by(run: usize, name: &'static str) -> Event {
        let id = u64::try_from(run).unwrap();
        Event::new(name).caused_by(EventCause::Run(RunLabel { id, name: "curl".to_owned() }))
    }

    #[test]
    fn refusals_leave_half_of_the_queue_to_everything_else() {
        let (log, _messages) = stuck();
        for run in 0..QUEUE_LINES_MAX {
            log.audit(AuditOutcome::Denied, caused_by(run, "denied"));
            log.audit(AuditOutcome::Failed, caused_by(run, "failed"));
            log.warn(caused_by(run, "denied").limited("denied".to_owned()));
        }
        let refused = u64::try_from(3 * QUEUE_LINES_MAX - REPEATED_LINES_MAX).unwrap();
        assert_eq!(log.lost(), refused);
        for _ in 0..QUEUE_LINES_MAX - REPEATED_LINES_MAX {
            log.audit(AuditOutcome::Allowed, Event::new("open"));
        }
        assert_eq!(log.lost(), refused, "the other half of the queue was free");
        log.audit(AuditOutcome::Allowed, Event::new("open"));
        assert_eq!(log.lost(), refused + 1);
    }

    #[test]
    fn refusals_of_one_run_leave_room_in_the_queue_to_those_of_others() {
        let (log, messages) = stuck();
        for _ in 0..QUEUE_LINES_MAX {
            log.audit(AuditOutcome::Denied, caused_by(1, "denied"));
        }
        let lost = u64::try_from(QUEUE_LINES_MAX - LINES_PER_CAUSE_MAX).unwrap();
        assert_eq!(log.lost(), lost);
        // One of these runs may share a counter with the first run, but not all three.
        for other in 2..5 {
            log.audit(AuditOutcome::Denied, caused_by(other, "denied"));
        }
        assert!(log.lost() < lost + 3, "{}", log.lost());
        for message in messages.try_iter() {
            let Message::Line(line) = *message else { panic!("a line") };
            log.repeated_queued.leave(&line.event.cause);
        }
        log.audit(AuditOutcome::Denied, caused_by(1, "denied"));
        assert!(log.lost() < lost + 3, "there is room again");
    }
}
