//! Defines the content of `tacit show runs`: the programs under `tacit run`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tacit_core::flow::Address;

use crate::clock::Rfc3339;
use crate::run::link::choice::LinkLevel;
use crate::run::link::client::LinkClient;

/// The programs under `tacit run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunsDisplay {
    /// The version of this format.
    pub version: u32,
    /// The runs, the oldest first.
    pub runs: Vec<RunDisplay>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunDisplay {
    /// The number of the run, counted from 1 since the agent started.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The process of its launcher.
    pub pid: u32,
    /// Its user.
    pub user: String,
    /// Whether pid, user and programs are claims of another user's launcher.
    pub claimed: bool,
    /// When it was enrolled.
    pub since: Rfc3339,
    /// How long ago that is, in seconds.
    pub age_s: u64,
    /// Its open connections and flows.
    pub open: usize,
    /// Whether it is the captured host.
    pub host: bool,
    /// Whether it is a network namespace that another program has made.
    pub joined: bool,
    /// The number of address ranges that are captured for it; `None` while that changes.
    pub captured: Option<usize>,
    /// The CPU on which it was placed, together with a worker; `None`: it was not placed.
    pub cpu: Option<usize>,
    /// `auto`: its programs may get sockets of the agent's network; or `relay`, with the reason.
    pub path: String,
    /// The link that it uses.
    pub link: RunLink,
    /// The names that its programs have resolved.
    pub names: Vec<RunName>,
    /// The outside addresses at which clients connect to its servers.
    pub listen: Vec<RunListener>,
    /// The addresses on which its programs listen, if a rule for inbound connections exists.
    pub listening: Vec<SocketAddr>,
}

/// The link of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunLink {
    /// Its name, as its server reports it; `None`: the run uses no link.
    pub name: Option<String>,
    /// The path of its socket.
    pub path: Option<PathBuf>,
    /// What has chosen it.
    pub decided_by: LinkLevel,
}

impl RunLink {
    /// The link of a run; `None`: it uses no link.
    #[must_use]
    pub fn of(link: Option<&LinkClient>) -> Self {
        Self {
            name: link.map(|link| link.offer().link.clone()),
            path: link.map(|link| link.path().to_owned()),
            decided_by: link.map_or(LinkLevel::Default, LinkClient::level),
        }
    }

    /// The name, and what has chosen the link.
    #[must_use]
    pub fn text(&self) -> String {
        let name = self.name.as_deref().unwrap_or("-");
        format!("{} ({})", name, self.decided_by.word())
    }
}

/// A name that a run has resolved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunName {
    /// The name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
    /// The address that programs use instead, if any.
    pub alias: Option<IpAddr>,
    /// How long the answer is still valid, in seconds.
    pub seconds: u64,
}

/// An outside address at which clients connect to a server in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunListener {
    /// The address.
    pub address: Address,
    /// Whether a program of the run listens, so that the agent accepts.
    pub open: bool,
}
