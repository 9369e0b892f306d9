//! Finds the UNIX sockets that the programs of a run hold open. The helper process calls this
//! module.
//!
//! Limits: [`UNIX_SOCKETS_MAX`], [`PROCESSES_MAX`], and `SEARCH_TIME_MAX` for the search.

use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tacit_sys::netlink::{Error, Netlink, unix_diag};
use tacit_sys::owner;

use crate::run::unix_sockets::{
    HeldInode, HeldUnixSocket, PROCESSES_MAX, RunUnixSockets, SocketProcess, UNIX_SOCKETS_MAX,
    UnixSocketFacts,
};

/// The maximum time for the search, because other requests wait meanwhile.
const SEARCH_TIME_MAX: Duration = Duration::from_millis(200);

/// Finds the UNIX sockets of the programs that the launcher has started.
///
/// # Errors
/// The kernel cannot list UNIX sockets.
pub(super) fn find(diag: &mut Netlink, launcher: u32) -> Result<RunUnixSockets, Error> {
    let mut held = holders(launcher);
    let listed = unix_diag::sockets(diag, UNIX_SOCKETS_MAX)?;
    let is_full = listed.len() == UNIX_SOCKETS_MAX;
    let mut inside = Vec::new();
    let mut peers = Vec::new();
    for socket in listed {
        match held.by_inode.remove(&socket.inode) {
            Some(pids) => inside.push(HeldUnixSocket { socket: socket.into(), pids }),
            None => peers.push(UnixSocketFacts::from(socket)),
        }
    }
    let connected: HashSet<_> = inside.iter().filter_map(|held| held.socket.peer).collect();
    peers.retain(|socket| connected.contains(&socket.inode));
    let others = held.by_inode.into_iter().map(|(inode, pids)| HeldInode { inode, pids });
    Ok(RunUnixSockets {
        inside,
        peers,
        others: others.collect(),
        processes: held.processes,
        is_truncated: held.is_truncated || is_full,
    })
}

/// The sockets of the programs.
#[derive(Default)]
struct HeldSockets {
    /// The processes that hold each socket.
    by_inode: BTreeMap<u32, Vec<u32>>,
    processes: Vec<SocketProcess>,
    is_truncated: bool,
}

/// The processes of tacit that the launcher has started: this helper, and the private agent. The
/// supervisor of the agent is a child of the launcher in the launcher's own network namespace.
/// Programs and their orphans are in the namespace of the run.
fn own_processes(launcher: u32) -> HashSet<u32> {
    let outside = owner::network(launcher);
    let is_outside = |pid: &u32| outside.is_some() && owner::network(*pid) == outside;
    let outside_roots = owner::children(launcher).into_iter().filter(is_outside);
    let mut own: HashSet<_> =
        outside_roots.flat_map(|root| owner::descendants(root).into_iter().chain([root])).collect();
    own.insert(std::process::id());
    own
}

/// The sockets of all programs that the launcher has started, without the processes of tacit.
fn holders(launcher: u32) -> HeldSockets {
    let until = Instant::now() + SEARCH_TIME_MAX;
    let mut held = HeldSockets::default();
    let own = own_processes(launcher);
    for pid in owner::descendants(launcher) {
        if own.contains(&pid) {
            continue;
        }
        if Instant::now() >= until || held.processes.len() == PROCESSES_MAX {
            held.is_truncated = true;
            break;
        }
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        held.processes.push(SocketProcess { pid, program });
        let add = |inode| {
            if held.by_inode.len() == UNIX_SOCKETS_MAX && !held.by_inode.contains_key(&inode) {
                held.is_truncated = true;
                return ControlFlow::Break(());
            }
            let pids = held.by_inode.entry(inode).or_default();
            if pids.last() != Some(&pid) {
                pids.push(pid);
            }
            ControlFlow::Continue(())
        };
        // A process that has ended meanwhile holds no sockets.
        let _ = owner::each_socket(pid, add);
    }
    held
}
