//! Lets another program control a workload client. The other program can then read its own clocks
//! when the measurement starts and ends.
//!
//! ```text
//! controlling program          client (--steered)
//!                              connects, warms up
//!          <- {"ready":true,"pid":P}
//!    a line ->
//!                              measures; after each step, the ramp workload reports that N
//!                              connections are open, and waits for a line:
//!          <- {"held":N,"pid":P}
//!    a line ->
//!          <- the report as one line of JSON
//!    a line, or end of file ->
//!                              closes its connections, exits
//! ```
//! The connections stay open until the client receives the last line or end of file. If a workload
//! also measures how connections close, the client closes them before it prints the report.

use std::io::{self, BufRead, Write};

use serde_json::{Value, json};

use super::error::WorkloadError;

/// Whether another program controls the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// The client starts and ends by itself.
    Absent,
    /// Another program controls it through standard input and output.
    ByPipes,
}

impl Steering {
    /// Reports that the client is ready to measure, and waits for permission.
    pub(super) fn ready(self) -> Result<(), WorkloadError> {
        self.turn(|pid| json!({ "ready": true, "pid": pid }))
    }

    /// Reports the number of open connections, and waits for permission to open more.
    pub(super) fn held(self, count: usize) -> Result<(), WorkloadError> {
        self.turn(|pid| json!({ "held": count, "pid": pid }))
    }

    /// Sends the report, and waits for permission to close the connections.
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

/// Writes a line and reads one. End of file counts as a line.
fn exchange_lines(line: &Value) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()?;
    io::stdin().lock().read_line(&mut String::new()).map(|_| ())
}
