//! Implements the agent's end of the channel to its supervisor. Over this channel the agent reports
//! that it is ready, requests a restart, and receives a secret that authenticates its successors.
//!
//! The messages are lines of text:
//!
//! ```text
//! agent ──> supervisor
//!   reads-reports     the agent reads reports about restarts
//!   released          the predecessor no longer accepts connections
//!   ready             the agent serves
//!   restart           the agent requests a successor
//!   failed R          the agent ends, because of R
//!
//! supervisor ──> agent
//!   reports           the supervisor will send reports about restarts
//!   restart-begins    a successor is starting
//!   restart-done      the successor serves
//!   restart-failed R  no successor serves, because of R
//! ```
//!
//! R is a reason, as a JSON string. A supervisor sends reports only to an agent that reads them.
//! Programs of older versions ignore lines that they do not know.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;

use crate::control::secret::{SuccessorSecret, TEXT_BYTES};
use crate::log::{Event, Log};

/// The agent's end of the channel to its supervisor.
#[derive(Debug)]
pub struct Supervisor {
    channel: UnixStream,
    pid: u32,
    secret: Option<SuccessorSecret>,
    sends_reports: bool,
}

/// What a supervisor reports to the serving agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SupervisorReport {
    /// The supervisor will report the outcome of restarts. Older ones do not.
    Reports,
    /// A successor is starting.
    RestartBegins,
    /// The successor serves.
    RestartDone,
    /// No successor serves, for this reason.
    RestartFailed(String),
    /// The supervisor has ended.
    Ended,
}

/// The maximum length of the reason of a failure, in bytes. A policy can have many errors.
const REASON_BYTES_MAX: usize = 8 * 1024;

/// The answer of a supervisor that will send reports.
pub(super) const REPORTS: &[u8; 8] = b"reports\n";
/// How long an agent that starts waits for this answer.
const REPORTS_WAIT: Duration = Duration::from_millis(200);
/// How long the agent waits for the secret.
const SECRET_WAIT_MAX: Duration = Duration::from_secs(5);

impl Supervisor {
    /// Takes the channel that the supervisor passed as standard input. Supervisors of older
    /// versions send no secret.
    ///
    /// # Errors
    /// Standard input is not open.
    pub fn inherit() -> io::Result<Self> {
        let channel = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        Ok(Self::at(channel.into(), None))
    }

    /// Like [`inherit`](Self::inherit), and receives the secret, which is sent first.
    ///
    /// # Errors
    /// Standard input is not open, or no secret arrives.
    pub fn inherit_with_secret() -> io::Result<Self> {
        let mut supervisor = Self::inherit()?;
        let mut text = [0; TEXT_BYTES];
        supervisor.channel.set_read_timeout(Some(SECRET_WAIT_MAX))?;
        supervisor.channel.read_exact(&mut text)?;
        supervisor.channel.set_read_timeout(None)?;
        let text = std::str::from_utf8(&text).ok().and_then(SuccessorSecret::from_text);
        supervisor.secret = Some(text.ok_or(io::ErrorKind::InvalidData)?);
        supervisor.sends_reports = supervisor.request_reports()?;
        Ok(supervisor)
    }

    /// The channel to the supervisor that has forked this agent, and is of the same version.
    pub(super) fn of_fork(channel: UnixStream, secret: SuccessorSecret) -> Self {
        Self { sends_reports: true, ..Self::at(channel, Some(secret)) }
    }

    fn at(channel: UnixStream, secret: Option<SuccessorSecret>) -> Self {
        Self { channel, pid: std::os::unix::process::parent_id(), secret, sends_reports: false }
    }

    /// The secret that authenticates a successor; `None` if the supervisor sent none.
    pub(super) fn secret(&self) -> Option<&SuccessorSecret> {
        self.secret.as_ref()
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    pub(super) fn ready(&mut self) -> io::Result<()> {
        self.channel.write_all(b"ready\n")
    }

    /// Requests reports, and returns whether the supervisor will send them. Supervisors of older
    /// versions do not answer.
    fn request_reports(&mut self) -> io::Result<bool> {
        self.channel.write_all(b"reads-reports\n")?;
        self.channel.set_read_timeout(Some(REPORTS_WAIT))?;
        let mut answer = [0; REPORTS.len()];
        // If the answer is late, the watch receives it.
        let has_answered = self.channel.read_exact(&mut answer).is_ok() && answer == *REPORTS;
        self.channel.set_read_timeout(None)?;
        Ok(has_answered)
    }

    /// Whether the supervisor reports the outcome of restarts.
    pub(super) fn sends_reports(&self) -> bool {
        self.sends_reports
    }

    pub(super) fn note_reports(&mut self) {
        self.sends_reports = true;
    }

    pub(super) fn restart(&mut self) -> io::Result<()> {
        self.channel.write_all(b"restart\n")
    }

    /// Reports that the predecessor no longer accepts connections: if this agent fails from now on,
    /// no agent serves.
    pub(super) fn released(&mut self) {
        // If the supervisor has ended, the watch reports that.
        let _ = self.channel.write_all(b"released\n");
    }

    /// A second handle for the report of a failure.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub(super) fn failure_channel(&self) -> io::Result<FailureChannel> {
        self.channel.try_clone().map(FailureChannel)
    }

    /// Watches the supervisor: passes its reports on, and logs if it ends before the agent.
    ///
    /// # Errors
    /// The limit of open files is reached.
    pub(super) fn watch(
        &self,
        log: &Log,
        reports: mpsc::Sender<SupervisorReport>,
    ) -> io::Result<()> {
        let channel = self.channel.try_clone()?;
        channel.set_nonblocking(true)?;
        let mut lines = BufReader::new(tokio::net::UnixStream::from_std(channel)?).lines();
        let log = log.clone();
        let gone = Event::new("supervisor-gone").value("pid", self.pid).field(
            "next",
            "the agent continues to serve; to replace the agent, run `tacit drain`, and then start \
             an agent again",
        );
        tokio::task::spawn_local(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let Some(report) = SupervisorReport::parse(&line) else { continue };
                if reports.send(report).await.is_err() {
                    return;
                }
            }
            log.warn(gone);
            // The agent may be ending.
            let _ = reports.send(SupervisorReport::Ended).await;
        });
        Ok(())
    }
}

/// Reports to the supervisor why an agent cannot start.
#[derive(Debug)]
pub(super) struct FailureChannel(UnixStream);

impl FailureChannel {
    pub(super) fn report(mut self, reason: &str) {
        // The supervisor may have ended.
        let _ = self.0.write_all(reason_line("failed", reason).as_bytes());
    }
}

impl SupervisorReport {
    /// Parses a line without its end; `None` for a line of a newer version.
    fn parse(line: &str) -> Option<Self> {
        if let Some(reason) = parse_reason("restart-failed", line) {
            return Some(Self::RestartFailed(reason));
        }
        match line {
            "reports" => Some(Self::Reports),
            "restart-begins" => Some(Self::RestartBegins),
            "restart-done" => Some(Self::RestartDone),
            _ => None,
        }
    }
}

/// A line that consists of a word and a reason. The reason may have several lines.
pub(super) fn reason_line(word: &str, reason: &str) -> String {
    let kept = &reason[..reason.floor_char_boundary(REASON_BYTES_MAX)];
    let cut = if kept.len() < reason.len() { " …" } else { "" };
    format!("{word} {}\n", serde_json::Value::from(format!("{kept}{cut}")))
}

/// The reason in a line that [`reason_line`] made with this word.
pub(super) fn parse_reason(word: &str, line: &str) -> Option<String> {
    serde_json::from_str(line.strip_prefix(word)?.strip_prefix(' ')?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_pass_through_a_line() {
        let reason = "policy:3:1: unknown key `x`\n    fix: remove \"x\"";
        let line = reason_line("restart-failed", reason);
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        let report = SupervisorReport::parse(line.trim_end());
        assert_eq!(report, Some(SupervisorReport::RestartFailed(reason.to_owned())));
        assert_eq!(SupervisorReport::parse("restart-failed"), None);
        assert_eq!(SupervisorReport::parse("a-newer-line"), None);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let reason = "ä".repeat(REASON_BYTES_MAX);
        let parsed = parse_reason("failed", reason_line("failed", &reason).trim_end()).unwrap();
        assert!(parsed.len() <= REASON_BYTES_MAX + " …".len());
        assert!(parsed.ends_with('…') && parsed.starts_with('ä'));
    }
}
