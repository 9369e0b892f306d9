//! Defines a running peer, and the address to which the load client connects. A peer is one method
//! to protect the connection between two programs, for example a pair of proxies. The benchmark
//! compares several peers.

use std::net::SocketAddr;
use std::process::Command;

use super::peer::Peer;
use super::plan::{Setting, command_of};
use crate::inprocess;
use crate::load::{LoadServer, probe_words};
use crate::process::{Process, guarded};
use crate::tls_settings::TlsSettings;

/// A running peer.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) peer: &'static Peer,
    pub(crate) settings: TlsSettings,
    /// The version that its program prints, one line.
    pub(crate) version: String,
    /// What the two sides negotiated.
    pub(crate) negotiated: String,
    /// The address that the load client connects to.
    pub(crate) entry: SocketAddr,
    pub(super) client: Client,
    /// The client's proxy and the server's proxy.
    pub(crate) proxies: Option<[Process; 2]>,
    pub(crate) far: Far,
}

/// How the load client is started.
#[derive(Debug)]
pub(super) enum Client {
    /// As a program, after these words.
    Plain(Vec<String>),
    /// As a program with a TLS library.
    InProcess { library: &'static str },
    /// Under `tacit run` with this policy.
    Run { policy: String },
}

/// The load server.
#[derive(Debug)]
pub(crate) enum Far {
    /// The one that most peers share.
    Shared,
    /// One of this peer.
    Own(LoadServer),
    /// One of this peer under `tacit run`, which is the server's proxy.
    Run(LoadServer),
}

impl Running {
    /// A peer without TLS that uses the shared load server.
    pub(super) fn in_clear(
        peer: &'static Peer,
        settings: TlsSettings,
        version: &str,
        entry: SocketAddr,
        proxies: Option<[Process; 2]>,
    ) -> Self {
        Self {
            peer,
            settings,
            version: version.to_owned(),
            negotiated: "in clear".to_owned(),
            entry,
            client: Client::Plain(Vec::new()),
            proxies,
            far: Far::Shared,
        }
    }

    /// The command that starts the load client for this peer with these `tacit workload` options.
    pub(crate) fn client_command(
        &self,
        setting: &Setting<'_>,
        words: &[String],
        entry: SocketAddr,
    ) -> Command {
        let entry = entry.to_string();
        let words: Vec<&str> =
            words.iter().map(String::as_str).chain(["--connect", &entry]).collect();
        match &self.client {
            Client::Plain(before) => {
                let mut command = command_of(before, &setting.load);
                command.arg("workload").args(words);
                guarded(&command)
            }
            Client::InProcess { library } => {
                let mut command = Command::new(inprocess::program(&setting.target));
                command.args(inprocess::words(library, self.settings, &setting.dir)).args(words);
                guarded(&command)
            }
            Client::Run { policy } => match setting.directory {
                Some(directory) => {
                    let run = ["run", "--policy", policy, "--", "./load", "workload"];
                    directory.ordinary("./tacit", &[&run[..], &words].concat())
                }
                None => Command::new("false"),
            },
        }
    }

    /// Makes the load client open two connections through `tap`.
    pub(super) fn connect_twice(
        &self,
        tap: SocketAddr,
        setting: &Setting<'_>,
    ) -> Result<(), String> {
        let mut command = self.client_command(setting, &probe_words(2), tap);
        let output =
            command.output().map_err(|error| format!("cannot run the load client: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let printed = [output.stdout, output.stderr].concat();
        Err(format!("the load client failed: {}", String::from_utf8_lossy(&printed).trim()))
    }

    /// Whether the load client's child processes are the client's proxy.
    pub(crate) fn client_is_run(&self) -> bool {
        matches!(self.client, Client::Run { .. })
    }
}
