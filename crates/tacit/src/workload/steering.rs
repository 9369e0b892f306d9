//! Another program that measures with a client, and reads clocks of its own at the same instants.
//!
//! ```text
//! the other program            the client
//!                              connects, warms up
//!          <- {"ready":true,"pid":P}
//!    a line ->
//!                              measures; in a ramp, after each step:
//!          <- {"held":N,"pid":P}
//!    a line ->
//!          <- the report, one line of JSON
//!    a line, or the end of input ->
//!                              closes its connections, ends
//! ```
//! The connections stay open until the last line, except where closing them is measured.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

use super::error::WorkloadError;

/// Whether another program steers this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// The client starts and ends by itself.
    Absent,
    /// By standard input and output.
    ByPipes,
}

impl Steering {
    /// Reports that the next thing is the measurement, and waits until it may begin.
    pub(super) fn ready(self) -> Result<(), WorkloadError> {
        self.turn(|pid| json!({ "ready": true, "pid": pid }))
    }

    /// Reports so many open connections, and waits until the next ones may be opened.
    pub(super) fn held(self, count: usize) -> Result<(), WorkloadError> {
        self.turn(|pid| json!({ "held": count, "pid": pid }))
    }

    /// Hands the report over, and waits until the connections may be closed.
    pub(super) fn measured(self, report: &Value) -> Result<(), WorkloadError> {
        self.turn(|_| report.clone())
    }

    fn turn(self, line: impl FnOnce(u32) -> Value) -> Result<(), WorkloadError> {
        if self == Self::Absent {
            return Ok(());
        }
        exchange_lines(&line(std::process::id())).map_err(WorkloadError::Steering)
    }
}

/// Writes a line and reads one. The end of the input counts as a line.
fn exchange_lines(line: &Value) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    io::stdin().lock().read_line(&mut String::new()).map(|_| ())
}
