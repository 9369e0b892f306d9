//! A peer that was started, and how the load client reaches it.

use std::net::SocketAddr;
use std::process::Command;

use super::peer::Peer;
use super::plan::{Setting, command_of};
use crate::inprocess;
use crate::load::{LoadServer, knock_words};
use crate::process::{Process, guarded};
use crate::terms::Terms;

/// A peer that carries bytes.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) peer: &'static Peer,
    pub(crate) terms: Terms,
    /// What its program says of itself, one line.
    pub(crate) version: String,
    /// What the pair was seen to negotiate.
    pub(crate) negotiated: String,
    /// Where the load client connects.
    pub(crate) entry: SocketAddr,
    pub(super) client: Client,
    /// The client proxy and the server proxy.
    pub(crate) proxies: Option<[Process; 2]>,
    pub(crate) far: Far,
}

/// How the load client is started.
#[derive(Debug)]
pub(super) enum Client {
    /// By itself, after these words.
    Plain(Vec<String>),
    /// With a library in it.
    InProcess { library: &'static str },
    /// Under `tacit run` with this policy.
    Run { policy: String },
}

/// The load server at the far end.
#[derive(Debug)]
pub(crate) enum Far {
    /// The one of all peers.
    Shared,
    /// One of its own.
    Own(LoadServer),
    /// One of its own, under `tacit run`, which is the server proxy.
    Run(LoadServer),
}

impl Running {
    /// The load client with these words of `tacit workload`, as it is started for this peer.
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
                command.args(inprocess::words(library, self.terms, &setting.dir)).args(words);
                guarded(&command)
            }
            Client::Run { policy } => match setting.place {
                Some(place) => {
                    let run = ["run", "--policy", policy, "--", "./load", "workload"];
                    place.ordinary("./tacit", &[&run[..], &words].concat())
                }
                None => Command::new("false"),
            },
        }
    }

    /// Has the load client make two connections by way of `tap`.
    pub(super) fn knock_twice(&self, tap: SocketAddr, setting: &Setting<'_>) -> Result<(), String> {
        let mut command = self.client_command(setting, &knock_words(2), tap);
        let output = command.output().map_err(|error| format!("the load client: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let printed = [output.stdout, output.stderr].concat();
        Err(format!("the load client: {}", String::from_utf8_lossy(&printed).trim()))
    }

    /// Whether the load client's descendants are the client proxy.
    pub(crate) fn client_is_run(&self) -> bool {
        matches!(self.client, Client::Run { .. })
    }
}
