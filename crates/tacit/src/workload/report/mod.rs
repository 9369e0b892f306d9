//! Writes the report of a workload as text, JSON and HTML.
//!
//! ```text
//! content.rs   the report, its JSON form, and the comparison with an earlier report
//! text.rs      text for a terminal
//! html.rs      one page that loads no other file
//! ```
//! Each figure has a key that never changes. `--beside` compares two reports, and uses these keys
//! to match the figures of both reports.

mod content;
mod html;
mod text;

use std::path::{Path, PathBuf};

use clap::Args;

use self::content::Beside;
pub(super) use self::content::{Report, kernel, with_noun};
use super::clocks::ClocksArgs;
use super::error::WorkloadError;
use super::ledgers::Agent;
use super::steering::Steering;
use super::watch::ProgressLines;
use crate::exit;

/// The options that select the output.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct OutputArgs {
    #[command(flatten)]
    pub(super) clocks: ClocksArgs,
    /// A name for this measurement in its report
    #[arg(long, value_name = "TEXT")]
    pub(super) label: Option<String>,
    /// Print the figures of an earlier JSON report next to the new ones, with their ratio
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// Write the report as JSON to this file; `-` prints JSON instead of text
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Write the report to this file as a self-contained HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print a progress line every second, even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Let another program control the measurement: wait for a line on standard input before
    /// measuring and before closing connections, and print the report as one line of JSON
    #[arg(long, conflicts_with = "json")]
    steered: bool,
}

impl OutputArgs {
    /// The agents whose sockets are sampled. The client samples sockets only for charts, because
    /// sampling uses CPU time.
    pub(super) fn watched(&self) -> Vec<Agent> {
        if self.html.is_some() { self.clocks.ledger_of.clone() } else { Vec::new() }
    }

    /// Where progress lines are printed.
    pub(super) fn progress_lines(&self) -> ProgressLines {
        if self.progress { ProgressLines::Always } else { ProgressLines::OnTerminal }
    }

    /// Returns whether another program controls the measurement (`--steered`).
    pub(super) fn steering(&self) -> Steering {
        if self.steered { Steering::ByPipes } else { Steering::Absent }
    }
}

impl Report {
    /// Writes the report to the outputs that the options select.
    pub(super) fn write(mut self, output: &OutputArgs) -> Result<(), WorkloadError> {
        self.label.clone_from(&output.label);
        self.beside = output.beside.as_deref().map(Beside::read).transpose()?;
        if let Some(path) = &output.html {
            write(path, &html::page(&self))?;
        }
        if output.steering() == Steering::ByPipes {
            return output.steering().measured(&self.json());
        }
        let json = exit::pretty(&self.json());
        match &output.json {
            Some(path) if path == Path::new("-") => return print(&json),
            Some(path) => write(path, &json)?,
            None => {}
        }
        print(&text::text(&self))
    }
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), WorkloadError> {
    std::fs::write(path, text).map_err(|error| WorkloadError::Write(path.to_owned(), error))
}

pub(super) fn print(text: &str) -> Result<(), WorkloadError> {
    use std::io::Write;
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // A reader that closes the pipe early is not an error.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(WorkloadError::Write("standard output".into(), error))
        }
        _ => Ok(()),
    }
}
