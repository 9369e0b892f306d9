//! Takes one sample of one workload with one version of tacit. A sample is the CPU time or the
//! memory of the agents.

use std::process::Stdio;

use tacit_sys::process::descendants;
use tacit_sys::{cpu, process};

use super::subjects::{RUN_POLICY, Subject};
use super::task::Task;
use crate::load::LoadServer;
use crate::measure;
use crate::memory;
use crate::peers::Running;
use crate::workload::{Length, workload};

/// Number of runs that are started for one sample.
const STARTS: u32 = 10;

/// The load of a workload.
enum Load<'a> {
    /// A pair of agents, and a workload of the comparison with the peers.
    Pair {
        pair: &'a Running,
        row: &'static str,
    },
    Memory,
    Starts,
    /// The pair could not be started.
    Absent,
}

fn load<'a>(task: Task, subject: &'a Subject<'_>) -> Load<'a> {
    let of = |pair: &'a Option<Running>, row| match pair {
        Some(pair) => Load::Pair { pair, row },
        None => Load::Absent,
    };
    match task {
        Task::Connect => Load::Pair { pair: &subject.full, row: "connect" },
        Task::Resumed => Load::Pair { pair: &subject.resumed, row: "resumed" },
        Task::Small => Load::Pair { pair: &subject.full, row: "2k" },
        Task::Bulk => Load::Pair { pair: &subject.full, row: "bulk" },
        Task::Memory => Load::Memory,
        Task::RunSmall => of(&subject.runs, "2k"),
        Task::RunStart if subject.runs.is_none() => Load::Absent,
        Task::RunStart => Load::Starts,
    }
}

/// Takes one sample: CPU time of the agents, or their memory, per unit. `None` if the machine does
/// not allow it.
pub(super) fn sample(
    task: Task,
    subject: &Subject<'_>,
    server: &LoadServer,
) -> Result<Option<f64>, String> {
    let value = match load(task, subject) {
        Load::Absent => return Ok(None),
        Load::Pair { pair, row } => {
            let row = workload(row).ok_or_else(|| format!("unknown workload {row}"))?;
            let setting = &subject.setting;
            let sample = measure::sample(pair, server, row, setting, Length::Whole)?;
            let [_, client_agent, server_agent, _] = sample.parts_us();
            client_agent + server_agent
        }
        Load::Memory => {
            let pair = subject.start_once()?;
            let bytes = memory::idle_bytes(&pair, &subject.setting_once)?;
            bytes.client + bytes.server
        }
        Load::Starts => starts(subject)?,
    };
    Ok(Some(value))
}

/// CPU time of one run, including all processes that were started for it.
fn starts(subject: &Subject<'_>) -> Result<f64, String> {
    let clock = || {
        cpu::children_ns()
            .map_err(|error| format!("cannot read the CPU time of child processes: {error}"))
    };
    let directory = subject.setting.directory.ok_or(
        "cannot start `tacit run`: this machine does not allow network namespaces; `tacit doctor` \
         reports the cause",
    )?;
    let before = clock()?;
    for _ in 0..STARTS {
        let known = descendants(std::process::id())
            .map_err(|error| format!("cannot read /proc: {error}"))?;
        let mut command = directory.ordinary("./tacit", &["run", "--policy", RUN_POLICY, "true"]);
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .map_err(|error| format!("cannot start tacit run: {error}"))?;
        if !status.success() {
            return Err(format!("`tacit run true` failed: {status}"));
        }
        // The private agent ends after its run. It is reaped here as an orphan, so it counts.
        for pid in descendants(std::process::id())
            .map_err(|error| format!("cannot read /proc: {error}"))?
        {
            if !known.contains(&pid) {
                // A process that is not a child of this one is counted by its parent.
                let _ = process::wait(pid);
            }
        }
    }
    Ok(clock()?.saturating_sub(before) as f64 / 1000.0 / f64::from(STARTS))
}
