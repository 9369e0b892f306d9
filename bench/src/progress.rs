//! The line that says how far the benchmark is, on standard error.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// How far we are.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Option<Instant>,
    done: usize,
    all: usize,
    terminal: bool,
}

impl Progress {
    /// `all` steps lie ahead.
    pub(crate) fn start(all: usize) -> Self {
        Self { start: None, done: 0, all, terminal: std::io::stderr().is_terminal() }
    }

    /// Shows the progress; on a terminal the next line replaces it.
    pub(crate) fn say(&self, what: &str) {
        let mut stderr = std::io::stderr().lock();
        // If standard error is not read, the benchmark continues.
        let _ = if self.terminal {
            write!(stderr, "\r\x1b[K{what}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{what}")
        };
    }

    /// Begins the next step.
    pub(crate) fn step(&mut self, what: &str) {
        let start = *self.start.get_or_insert_with(Instant::now);
        let left = match self.done {
            0 => String::new(),
            done => {
                let each = start.elapsed().as_secs_f64() / done as f64;
                format!(", about {:.0} s left", each * (self.all - done) as f64)
            }
        };
        self.done += 1;
        self.say(&format!("[{}/{}] {what}{left}", self.done, self.all));
    }
}

impl Drop for Progress {
    /// Clears the line for what comes next, an error perhaps.
    fn drop(&mut self) {
        if self.terminal {
            self.say("");
        }
    }
}
