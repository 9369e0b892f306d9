//! What came of a workload, as text, as JSON and as a page.
//!
//! ```text
//! content.rs   the report, its JSON, and how it stands beside an earlier one
//! text.rs      what is printed
//! html.rs      one self-contained page
//! ```
//! A figure has a key that does not change and appears under `figures` in the JSON; whatever is
//! set beside an earlier report is found by it.

mod content;
mod html;
mod text;

use std::path::{Path, PathBuf};

use clap::Args;

use self::content::Beside;
pub(super) use self::content::{Report, counted};
use super::clocks::ClocksArgs;
use super::error::WorkloadError;
use super::ledgers::Agent;
use super::steering::Steering;
use super::watch::ProgressLines;
use crate::exit;

/// Where a report goes.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct OutputArgs {
    #[command(flatten)]
    pub(super) clocks: ClocksArgs,
    /// The name of this measurement in its report
    #[arg(long, value_name = "TEXT")]
    pub(super) label: Option<String>,
    /// Print every figure beside that of an earlier report, and their ratio
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// Write the report as JSON to this file, or to standard output instead of text
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Write the report as a self-contained page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Report progress every second, even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// Wait for a line of standard input before measuring and before closing connections; the
    /// report is a line of JSON on standard output
    #[arg(long, conflicts_with = "json")]
    steered: bool,
}

impl OutputArgs {
    /// Agents whose sockets are sampled while it runs: for charts only, because sampling costs CPU
    /// time.
    pub(super) fn watched(&self) -> Vec<Agent> {
        if self.html.is_some() { self.clocks.ledger_of.clone() } else { Vec::new() }
    }

    /// Where progress is reported.
    pub(super) fn progress_lines(&self) -> ProgressLines {
        if self.progress { ProgressLines::Always } else { ProgressLines::OnTerminal }
    }

    /// Whether another program decides when it is measured.
    pub(super) fn steering(&self) -> Steering {
        if self.steered { Steering::ByPipes } else { Steering::Absent }
    }
}

impl Report {
    /// Writes it where `output` says.
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

fn write(path: &Path, text: &str) -> Result<(), WorkloadError> {
    std::fs::write(path, text).map_err(|error| WorkloadError::Write(path.to_owned(), error))
}

fn print(text: &str) -> Result<(), WorkloadError> {
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
