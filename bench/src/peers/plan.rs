//! Defines how to configure and start one of the compared proxies.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::peer_network::PeerNetwork;
use crate::process::Process;
use crate::run_directory::RunDirectory;
use crate::tls_settings::TlsSettings;

/// How to run a proxy.
#[derive(Debug)]
pub(super) struct Proxy {
    /// The program.
    pub(super) program: fn(&Setting<'_>) -> PathBuf,
    /// The argument that prints the version.
    pub(super) version: &'static str,
    /// The extension of the configuration file.
    pub(super) extension: &'static str,
    /// Generates the configuration.
    pub(super) config: fn(&Plan<'_>) -> String,
    /// The arguments before the configuration file; the parameter is the name of the process.
    pub(super) arguments: fn(&str) -> Vec<String>,
}

/// The configuration of one proxy.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) side: Side,
    pub(super) listen: SocketAddr,
    pub(super) connect: SocketAddr,
    pub(super) settings: TlsSettings,
    pub(super) setting: &'a Setting<'a>,
}

/// The settings that all peers share.
#[derive(Debug)]
pub(crate) struct Setting<'a> {
    /// The address of the load server.
    pub(crate) application: SocketAddr,
    /// The directory of certificates, configurations and logs; working directory of the proxies.
    pub(crate) dir: PathBuf,
    /// The build directory.
    pub(crate) target: PathBuf,
    /// The tacit to measure.
    pub(crate) tacit: PathBuf,
    /// The tacit whose `workload` generates the load.
    pub(crate) load: PathBuf,
    /// The congestion control of all sockets, for peers that would choose their own.
    pub(crate) congestion: String,
    /// The directory for programs of an ordinary user, if runs are possible.
    pub(crate) directory: Option<&'a RunDirectory>,
    /// The network with large segments, if the host supports it.
    pub(crate) peer_network: Option<&'a PeerNetwork>,
    /// A key in `[agent]` of tacit's policy to set to false.
    pub(crate) without: Option<String>,
}

/// Sets a key of `[agent]` in a policy of tacit to false.
pub(crate) fn without(policy: &str, key: &str) -> String {
    policy.replacen("[agent]", &format!("[agent]\n{key} = false"), 1)
}

impl Setting<'_> {
    /// A policy of tacit with the shared settings.
    pub(super) fn policy(&self, text: &str) -> String {
        self.without.as_ref().map_or_else(|| text.to_owned(), |key| without(text, key))
    }
}

/// The side of the TLS connection that a proxy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

impl Side {
    /// The name of the side, in file names and certificates.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The CPU of the side in a [`PeerNetwork`].
    pub(super) fn cpu(self) -> usize {
        match self {
            Self::Client => 0,
            Self::Server => 1,
        }
    }
}

impl Proxy {
    /// Starts the proxy, with the words `before` in front of its command.
    pub(super) fn start(
        &self,
        name: &str,
        plan: &Plan<'_>,
        before: &[String],
    ) -> Result<Process, String> {
        let dir = &plan.setting.dir;
        let file = dir.join(format!("{name}.{}", self.extension));
        fs::write(&file, plan.setting.policy(&(self.config)(plan)))
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        let mut command = command_of(before, &(self.program)(plan.setting));
        command.args((self.arguments)(name)).arg(file);
        Process::start(name.to_owned(), &command, dir)
    }

    /// The first line of the program's version output that contains a digit.
    pub(super) fn version(&self, setting: &Setting<'_>) -> Result<String, String> {
        let program = (self.program)(setting);
        let output = Command::new(&program).arg(self.version).output().map_err(|error| {
            format!(
                "cannot run {}: {error}: install the peers with scripts/install-bench.sh, or \
                 select other peers with --peers",
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

/// A command of these words.
pub(super) fn command(words: &[String]) -> Command {
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("env", String::as_str));
    command.args(words);
    command
}

/// A command for a program, with words in front of it if there are any.
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
            directory: None,
            peer_network: None,
            without: None,
        }
    }
}
