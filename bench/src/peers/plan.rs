//! What one end of a pair of proxies is to do, and how it is started.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::Place;
use crate::process::Process;
use crate::room::Room;
use crate::terms::Terms;

/// How to run one end of a peer.
#[derive(Debug)]
pub(super) struct Proxy {
    /// The program.
    pub(super) program: fn(&Setting<'_>) -> PathBuf,
    /// The argument that makes it print its version.
    pub(super) version: &'static str,
    /// How its configuration file is called after the dot.
    pub(super) extension: &'static str,
    /// The text of its configuration.
    pub(super) config: fn(&Plan<'_>) -> String,
    /// Its arguments before the name of that file; the argument is the name of the process.
    pub(super) arguments: fn(&str) -> Vec<String>,
}

/// What one proxy is to do.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) side: Side,
    pub(super) listen: SocketAddr,
    pub(super) connect: SocketAddr,
    pub(super) terms: Terms,
    pub(super) setting: &'a Setting<'a>,
}

/// What is the same for all peers.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    /// Where the load server listens.
    pub(crate) application: SocketAddr,
    /// Certificates, configurations and logs; the working directory of the proxies.
    pub(crate) dir: PathBuf,
    /// The build directory.
    pub(crate) target: PathBuf,
    /// The tacit that is measured.
    pub(crate) tacit: PathBuf,
    /// The tacit whose `workload` loads.
    pub(crate) load: PathBuf,
    /// The congestion control of every socket, for a peer that would choose its own.
    pub(crate) congestion: String,
    /// Where programs run as an ordinary user, if they can.
    pub(crate) place: Option<&'a Place>,
    /// Where peers get what `tacit run` has, if that can be had.
    pub(crate) room: Option<&'a Room>,
    /// A key of tacit's `[agent]` that is false.
    pub(crate) without: Option<String>,
}

/// A policy of tacit with a key of its `[agent]` that is false.
pub(crate) fn without(policy: &str, key: &str) -> String {
    policy.replacen("[agent]", &format!("[agent]\n{key} = false"), 1)
}

impl Setting<'_> {
    /// A policy of tacit with what is the same for all of them.
    pub(super) fn policy(&self, text: &str) -> String {
        self.without.as_ref().map_or_else(|| text.to_owned(), |key| without(text, key))
    }
}

/// Which end of the TLS connection a proxy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    /// Names the side in files, and its certificate.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The CPU of the side in a room.
    pub(super) fn cpu(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

impl Proxy {
    /// Starts one end, after the words in `before`.
    pub(super) fn start(
        &self,
        name: &str,
        plan: &Plan<'_>,
        before: &[String],
    ) -> Result<Process, String> {
        let dir = &plan.setting.dir;
        let file = dir.join(format!("{name}.{}", self.extension));
        fs::write(&file, plan.setting.policy(&(self.config)(plan)))
            .map_err(|error| format!("writing {}: {error}", file.display()))?;
        let mut command = command_of(before, &(self.program)(plan.setting));
        command.args((self.arguments)(name)).arg(file);
        Process::start(name.to_owned(), &command, dir)
    }

    /// The first line of what the program prints that holds a digit.
    pub(super) fn version(&self, setting: &Setting<'_>) -> Result<String, String> {
        let program = (self.program)(setting);
        let output = Command::new(&program).arg(self.version).output().map_err(|error| {
            format!(
                "cannot run {}: {error}; scripts/install-bench.sh installs the peers, --peers \
                 chooses among them",
                program.display()
            )
        })?;
        let printed = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&printed);
        let numbered = text.lines().find(|line| line.contains(|c: char| c.is_ascii_digit()));
        let line = numbered.unwrap_or("version unknown");
        Ok(line.trim_start_matches(&*program.to_string_lossy()).trim().to_owned())
    }
}

/// A command that begins with these words.
pub(super) fn command(words: &[String]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("env", String::as_str));
    command.args(words);
    command
}

/// A program, after these words if there are any.
pub(super) fn command_of(before: &[String], program: &Path) -> Command {
    if before.is_empty() {
        return Command::new(program);
    }
    let mut command = command(before);
    command.arg(program);
    command
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn setting() -> Setting<'static> {
        Setting {
            application: "127.0.0.1:9000".parse().unwrap(),
            dir: PathBuf::new(),
            target: PathBuf::new(),
            tacit: PathBuf::new(),
            load: PathBuf::new(),
            congestion: "cubic".to_owned(),
            place: None,
            room: None,
            without: None,
        }
    }
}
