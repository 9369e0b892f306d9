//! Defines the agent's part of `tacit show cpus`: the threads and runs on each CPU. The command
//! `tacit show cpus` itself reads all other data from files in `/proc` and `/sys`. The sandbox of
//! the agent does not allow access to these files.

use std::collections::BTreeMap;
use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};
use tacit_sys::socket;

use crate::engine::ThreadState;
use crate::placement;
use crate::run::Run;
use crate::session::{ConnectionRecord, ConnectionTable};

use super::VERSION;

/// The users of CPUs that an agent knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpuUsers {
    /// The version of this format.
    pub version: u32,
    /// The CPUs that the agent may use.
    pub allowed: Vec<usize>,
    /// Engines first, then data workers.
    pub threads: Vec<ThreadState>,
    /// The runs on each CPU.
    pub runs: Vec<CpuRun>,
}

/// A run on a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CpuRun {
    /// The CPU.
    pub cpu: usize,
    /// The number of the run.
    pub id: u64,
    /// The name of the run.
    pub name: String,
    /// Connections whose program was on this CPU when it sent last.
    pub connections: usize,
    /// Whether the policy placed the run on this CPU.
    pub placed: bool,
}

/// A run that the policy placed on a CPU.
#[derive(Clone, Debug)]
pub struct PlacedRun {
    /// The CPU.
    pub cpu: usize,
    /// The number of the run.
    pub id: u64,
    /// The name of the run.
    pub name: String,
}

/// Returns which threads and runs use each CPU.
#[must_use]
pub fn cpu_users(
    table: &ConnectionTable,
    threads: Vec<ThreadState>,
    placed: impl Iterator<Item = PlacedRun>,
) -> CpuUsers {
    let mut runs = BTreeMap::new();
    for PlacedRun { cpu, id, name } in placed {
        runs.insert((cpu, id), CpuRun { cpu, id, name, connections: 0, placed: true });
    }
    for record in table.snapshot() {
        let Some(SentFrom { cpu, run }) = sent_from(&record) else { continue };
        let id = run.id;
        let none = || CpuRun { cpu, id, name: run.name.clone(), connections: 0, placed: false };
        runs.entry((cpu, id)).or_insert_with(none).connections += 1;
    }
    CpuUsers {
        version: VERSION,
        allowed: placement::started_with().to_vec(),
        threads,
        runs: runs.into_values().collect(),
    }
}

/// The CPU on which the program of a connection was when it sent last.
struct SentFrom<'a> {
    cpu: usize,
    run: &'a Run,
}

fn sent_from(record: &ConnectionRecord) -> Option<SentFrom<'_>> {
    let facts = record.scope.as_ref()?;
    let run = facts.scope.run();
    let sockets = record.sockets.get()?;
    let program = if facts.is_inbound { &sockets.upstream } else { &sockets.downstream };
    let cpu = socket::incoming_cpu(program.upgrade()?.as_fd()).ok()?;
    Some(SentFrom { cpu, run })
}
