//! Runs libFuzzer on a fuzz target, and parses its output.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use crate::workspace::root;

/// An input that takes longer, in seconds, counts as a hang.
const INPUT_SECONDS_MAX: u32 = 10;
/// Memory limit of a target, in MiB.
const MEMORY_MIB_MAX: u32 = 2048;
/// Limits for reducing a failing input: seconds and number of runs.
const MINIMISE_SECONDS: u32 = 30;
const MINIMISE_RUNS: u32 = 100_000;

/// A target in the program with all targets.
#[derive(Clone, Copy)]
pub(crate) struct Engine<'a> {
    pub(crate) program: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) bytes_max: usize,
    /// The directory for failing inputs.
    pub(crate) folder: &'a Path,
}

/// When a run without a failure ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Seconds(u64),
    /// After this many runs, with the same random inputs each time.
    Runs(u64),
}

/// Whether libFuzzer's messages are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Messages {
    Shown,
    Hidden,
}

impl Engine<'_> {
    /// Fuzzes, starting with the inputs of these directories; new inputs go to the first one.
    /// Returns a failing input if one was found.
    pub(crate) fn fuzz(
        &self,
        until: Until,
        inputs: &[PathBuf],
        messages: Messages,
    ) -> Result<Option<PathBuf>, String> {
        let found = self.folder.join("found.bin");
        let _ = fs::remove_file(&found);
        let mut command = self.command();
        match until {
            Until::Seconds(seconds) => command.arg(format!("-max_total_time={seconds}")),
            Until::Runs(runs) => command.arg(format!("-runs={runs}")).arg("-seed=1"),
        };
        command.arg(format!("-exact_artifact_path={}", found.display())).args(inputs);
        if messages == Messages::Hidden {
            command.stderr(Stdio::null());
        }
        let status = self.status(&mut command)?;
        match (status.success(), found.exists()) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(found)),
            (false, false) => Err(format!("fuzz {}: libFuzzer failed: {status}", self.name)),
        }
    }

    /// Returns a smaller input that fails as well, or the same input.
    pub(crate) fn minimise(&self, input: PathBuf) -> Result<PathBuf, String> {
        let smaller = self.folder.join("smaller.bin");
        let _ = fs::remove_file(&smaller);
        // Without `-max_len`: libFuzzer sets its own here.
        let mut command = self.bare_command();
        command
            .arg("-minimize_crash=1")
            .arg(format!("-max_total_time={MINIMISE_SECONDS}"))
            .arg(format!("-runs={MINIMISE_RUNS}"))
            .arg(format!("-exact_artifact_path={}", smaller.display()))
            .arg(&input)
            .stderr(Stdio::null());
        // Some failures, such as hangs, cannot be reduced.
        self.status(&mut command)?;
        Ok(if smaller.exists() && self.fails(&smaller)? { smaller } else { input })
    }

    fn fails(&self, input: &Path) -> Result<bool, String> {
        let mut command = self.command();
        command.arg(input).stderr(Stdio::null());
        // The file that libFuzzer writes for this failure is not needed.
        command.arg(format!("-exact_artifact_path={}", self.folder.join("again.bin").display()));
        Ok(!self.status(&mut command)?.success())
    }

    /// Runs one input with all output shown.
    pub(crate) fn input(&self, file: &Path) -> Result<(), String> {
        let status = self.status(self.command().arg(file))?;
        match status.success() {
            true => Ok(()),
            false => Err(format!(
                "fuzz {}: the target fails with the input {}: see the messages above",
                self.name,
                file.display()
            )),
        }
    }

    /// Runs every input of the directories once; returns how many edges of the code they reach.
    pub(crate) fn edges(&self, inputs: &[PathBuf]) -> Result<u64, String> {
        let failing = self.folder.join("failing.bin");
        let _ = fs::remove_file(&failing);
        let mut command = self.command();
        command.arg("-runs=0").arg(format!("-exact_artifact_path={}", failing.display()));
        let output = command
            .args(inputs)
            .output()
            .map_err(|error| format!("cannot run {}: {error}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            eprintln!("{text}");
            let name = self.name;
            let path = failing.display();
            return Err(match failing.exists() {
                true => format!(
                    "fuzz {name}: the target fails with an input of the repository: {path}\n  \
                     reproduce the failure with: cargo xtask fuzz {name} --input {path}"
                ),
                false => format!("fuzz {name}: libFuzzer failed: {}", output.status),
            });
        }
        edges_of(&text).ok_or_else(|| {
            format!("fuzz {}: libFuzzer did not print the number of covered edges", self.name)
        })
    }

    /// Copies inputs that reach further code to the first directory, smallest inputs first.
    pub(crate) fn merge(&self, into: &Path, inputs: &[PathBuf]) -> Result<(), String> {
        let mut command = self.command();
        command.arg("-merge=1").arg(into).args(inputs).stderr(Stdio::null());
        let status = self.status(&mut command)?;
        match status.success() {
            true => Ok(()),
            false => {
                Err(format!("fuzz {}: libFuzzer cannot merge the inputs: {status}", self.name))
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = self.bare_command();
        command.arg(format!("-max_len={}", self.bytes_max));
        command
    }

    fn bare_command(&self) -> Command {
        let mut command = Command::new(self.program);
        command
            .env("TACIT_FUZZ_TARGET", self.name)
            .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
            .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
            .current_dir(self.folder);
        let words = root().join("fuzz/dictionaries").join(format!("{}.dict", self.name));
        if words.exists() {
            command.arg(format!("-dict={}", words.display()));
        }
        command
    }

    fn status(&self, command: &mut Command) -> Result<ExitStatus, String> {
        command.status().map_err(|error| format!("cannot run {}: {error}", self.program.display()))
    }
}

/// The last number of edges in libFuzzer's output.
fn edges_of(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(" cov: ")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_edges_is_used() {
        let text = "#1\tINITED cov: 2 ft: 2 corp: 1/1b\n#9\tDONE   cov: 117 ft: 240 corp: 8/90b\n";
        assert_eq!(edges_of(text), Some(117));
        assert_eq!(edges_of("no inputs"), None);
    }
}
