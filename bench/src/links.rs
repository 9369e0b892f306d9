//! Compares links with other ways to give a program a network. A link lets a program without a
//! network use sockets of another network namespace or of another kernel. The benchmark makes the
//! same measurements for links and for each other way. It measures FTP transfers of 1 GB, three
//! simultaneous streams, short connections and idle connections. For the measurements, this module
//! runs the command `tacit workload paper lfp`. This command creates its own network namespaces.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::options::Options;
use crate::workload::Length;

/// The title in the report.
pub(crate) const TITLE: &str = "Links, beside other networks for programs";

/// The results.
pub(crate) struct Measured {
    /// The tables as text.
    pub(crate) text: String,
    /// All figures as JSON.
    pub(crate) json: Value,
}

/// Measures with this program, in a directory for files.
pub(crate) fn measure(options: &Options, tacit: &Path, dir: &Path) -> Result<Measured, String> {
    let json = dir.join("links.json");
    let mut command = Command::new(tacit);
    command.args(["workload", "paper", "lfp", "--progress", "--json"]).arg(&json);
    match options.length {
        Length::Quick => command.arg("--quick"),
        Length::Whole => command.args(["--rounds", &options.rounds.to_string()]),
    };
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot run tacit workload paper: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // A cell that failed has its reason in the tables.
    if text.is_empty() {
        return Err(format!("tacit workload paper lfp ended with {}", output.status));
    }
    let read = std::fs::read_to_string(&json);
    let read = read.map_err(|error| format!("cannot read {}: {error}", json.display()))?;
    let json = serde_json::from_str(&read)
        .map_err(|error| format!("cannot parse the figures of links: {error}"))?;
    Ok(Measured { text, json })
}
