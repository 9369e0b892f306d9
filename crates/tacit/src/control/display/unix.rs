//! Defines the content of `tacit show unix`: the UNIX sockets of programs under `tacit run`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tacit_sys::netlink::{Netlink, Subsystem, unix_diag};

use super::VERSION;
use crate::run::Run;
use crate::run::unix_sockets::{HeldInode, HeldUnixSocket, RunUnixSockets, UnixSocketFacts};

/// The maximum number of sockets outside the runs that are searched for peers.
const OUTSIDE_SOCKETS_MAX: usize = 65_536;

/// The UNIX sockets of the runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnixDisplay {
    /// The version of this format.
    pub version: u32,
    /// The sockets, by run and inode number.
    pub sockets: Vec<UnixSocketDisplay>,
    /// The runs whose sockets are missing, at least in part.
    pub incomplete: Vec<IncompleteRun>,
}

/// A UNIX socket that a program of a run holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnixSocketDisplay {
    /// The number of the run.
    pub run_id: u64,
    /// The name of the run.
    pub run: String,
    /// What the kernel reports.
    #[serde(flatten)]
    pub socket: UnixSocketFacts,
    /// The name of the socket that it is connected to: its path, or `@` and its abstract name.
    pub peer_name: Option<String>,
    /// The processes that hold the socket that it is connected to, if they are in the same run.
    pub peer_pids: Vec<u32>,
    /// Whether the socket was made outside the run, such as an inherited standard input.
    pub outside: bool,
    /// The processes that hold it.
    pub pids: Vec<u32>,
    /// The executable of the first process.
    pub program: Option<PathBuf>,
}

/// A run whose sockets are missing, at least in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct IncompleteRun {
    /// The number of the run.
    pub run_id: u64,
    /// The name of the run.
    pub run: String,
    /// The reason.
    pub reason: String,
}

/// The UNIX sockets of these runs.
pub async fn unix(runs: &[Arc<Run>]) -> UnixDisplay {
    let outside = OutsideSockets::read();
    let mut shown = UnixDisplay { version: VERSION, sockets: Vec::new(), incomplete: Vec::new() };
    for run in runs {
        match found(run, &outside).await {
            Ok((sockets, is_truncated)) => {
                shown.sockets.extend(sockets);
                if is_truncated {
                    let reason =
                        "the search reached its limit of time, processes or sockets".to_owned();
                    shown.incomplete.push(incomplete(run, reason));
                }
            }
            Err(reason) => shown.incomplete.push(incomplete(run, reason)),
        }
    }
    shown
}

fn incomplete(run: &Run, reason: String) -> IncompleteRun {
    IncompleteRun { run_id: run.id, run: run.name.clone(), reason }
}

async fn found(
    run: &Run,
    outside: &OutsideSockets,
) -> Result<(Vec<UnixSocketDisplay>, bool), String> {
    if !run.lists_unix_sockets {
        return Err(
            "the helper of this run cannot list UNIX sockets, because it belongs to an earlier \
             version of tacit: start the run again"
                .to_owned(),
        );
    }
    let found = run.helper.unix_sockets().await.map_err(|error| error.to_string())?;
    let is_truncated = found.is_truncated;
    Ok((displays(run, found, outside), is_truncated))
}

fn displays(run: &Run, found: RunUnixSockets, outside: &OutsideSockets) -> Vec<UnixSocketDisplay> {
    let RunUnixSockets { inside, peers, others, processes, .. } = found;
    let programs: HashMap<_, _> =
        processes.into_iter().map(|process| (process.pid, process.program)).collect();
    let by_inode: HashMap<_, _> =
        inside.iter().map(|held| (held.socket.inode, held.clone())).collect();
    let peers: HashMap<_, _> = peers.into_iter().map(|socket| (socket.inode, socket)).collect();
    let from_outside = others.into_iter().filter_map(|HeldInode { inode, pids }| {
        let socket = outside.by_inode.get(&inode)?.clone();
        Some((HeldUnixSocket { socket, pids }, true))
    });
    let all = inside.into_iter().map(|held| (held, false)).chain(from_outside);
    let mut sockets: Vec<_> = all
        .map(|(HeldUnixSocket { socket, pids }, is_outside)| {
            let peer = socket.peer.and_then(|peer| by_inode.get(&peer));
            let peer_outside = socket
                .peer
                .and_then(|peer| peers.get(&peer).or_else(|| outside.by_inode.get(&peer)));
            let peer_facts = peer.map(|held| &held.socket).or(peer_outside);
            UnixSocketDisplay {
                run_id: run.id,
                run: run.name.clone(),
                peer_name: peer_facts.and_then(|facts| facts.name.clone()),
                peer_pids: peer.map(|held| held.pids.clone()).unwrap_or_default(),
                outside: is_outside,
                program: pids.first().and_then(|pid| programs.get(pid).cloned().flatten()),
                socket,
                pids,
            }
        })
        .collect();
    sockets.sort_by_key(|shown| shown.socket.inode);
    sockets
}

/// The UNIX sockets of the agent's network namespace, by inode number.
#[derive(Default)]
struct OutsideSockets {
    by_inode: HashMap<u32, UnixSocketFacts>,
}

impl OutsideSockets {
    /// Reads them; none if the kernel does not list them. Then peers outside have no names.
    fn read() -> Self {
        let Ok(mut diag) = Netlink::open(Subsystem::SocketDiagnosis) else {
            return Self::default();
        };
        let listed = unix_diag::sockets(&mut diag, OUTSIDE_SOCKETS_MAX).unwrap_or_default();
        let by_inode = listed.into_iter().map(|socket| (socket.inode, socket.into())).collect();
        Self { by_inode }
    }
}
