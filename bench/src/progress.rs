//! Prints the progress of the benchmark to standard error.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// The progress of the benchmark.
#[derive(Debug)]
pub(crate) struct Progress {
    start: Option<Instant>,
    done: usize,
    all: usize,
    terminal: bool,
}

impl Progress {
    /// Starts with `all` steps to do.
    pub(crate) fn start(all: usize) -> Self {
        Self { start: None, done: 0, all, terminal: std::io::stderr().is_terminal() }
    }

    /// Prints a line; on a terminal, the next line replaces it.
    pub(crate) fn say(&self, what: &str) {
        let mut stderr = std::io::stderr().lock();
        // The benchmark continues if standard error is closed.
        let _ = if self.terminal {
            write!(stderr, "\r\x1b[K{what}").and_then(|()| stderr.flush())
        } else {
            writeln!(stderr, "{what}")
        };
    }

    /// Starts the next step.
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
    /// Clears the line for the following output.
    fn drop(&mut self) {
        if self.terminal {
            self.say("");
        }
    }
}
