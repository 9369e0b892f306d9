//! Defines the data that the `tacit show` commands display. `tacit show --json` prints the same
//! data as JSON.
//!
//! Collecting this data never delays a connection.

pub mod audit;
pub mod connections;
pub mod coverage;
pub mod cpus;
pub mod engines;
pub mod filters;
pub mod identities;
pub mod limits;
pub mod metrics;
pub mod policy;
pub mod refused;
pub mod rules;
pub mod runs;
pub mod stats;
pub mod traces;
pub mod tunnels;
pub mod unix;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::ledger::costs::{Costs, RunCosts};
use crate::live::{Live, LiveRule};
use crate::run::protocol::SocketOwner;
use crate::run::{self, Run};
use crate::session::{ConnectionRecord, ConnectionTable};

/// The version of the format of all displays.
pub const VERSION: u32 = 1;

/// How long a run's helper may take to report the owners of its connections. After that time the
/// connections are shown without programs.
const OWNERS_WAIT_MAX: Duration = Duration::from_millis(300);

/// `tacit show costs`. Asks the helpers of runs how much CPU time their programs have used.
pub async fn costs(
    table: &ConnectionTable,
    live: &Live,
    runs: &[Arc<Run>],
    since: SystemTime,
) -> Costs {
    let mut programs_ns = Vec::with_capacity(runs.len());
    for run in runs {
        let answer = tokio::time::timeout(OWNERS_WAIT_MAX, run.helper.cpu_ns()).await;
        programs_ns.push(answer.ok().and_then(Result::ok));
    }
    // Taken after the runs have answered. A connection that ended in the meantime is in their sums
    // and must not be counted twice.
    let records = table.snapshot();
    let measured = runs.iter().zip(programs_ns);
    let of_runs = measured.map(|(run, program_ns)| run_costs(run, &records, program_ns)).collect();
    Costs::read(since, |account| live.failures(account), of_runs)
}

fn run_costs(run: &Run, records: &[Arc<ConnectionRecord>], program_ns: Option<u64>) -> RunCosts {
    let open = run::RunTotals::default();
    let of_run = records.iter().filter(|record| record.is_of_run(run.id));
    of_run.for_each(|record| open.add(record.usage()));
    let sum = |of: fn(&run::RunTotals) -> &AtomicU64| {
        of(&run.totals).load(Ordering::Relaxed) + of(&open).load(Ordering::Relaxed)
    };
    let us = |ns: u64| ns as f64 / 1000.0;
    RunCosts {
        id: run.id,
        name: run.name.clone(),
        user: run.user.clone(),
        program_cpu_us: program_ns.map(us),
        agent_cpu_us: us(sum(|usage| &usage.cpu_ns)),
        connections: sum(|usage| &usage.connections),
        messages_sent: sum(|usage| &usage.messages[0]),
        messages_received: sum(|usage| &usage.messages[1]),
        bytes_sent: sum(|usage| &usage.bytes[0]),
        bytes_received: sum(|usage| &usage.bytes[1]),
    }
}

/// The programs that own connections of runs, by connection; none for a run that does not answer.
async fn owners(records: &[Arc<ConnectionRecord>]) -> HashMap<u64, SocketOwner> {
    let mut runs: BTreeMap<u64, &Run> = BTreeMap::new();
    for facts in records.iter().filter_map(|record| record.scope.as_ref()) {
        let run = facts.scope.run();
        runs.insert(run.id, run);
    }
    let mut found = HashMap::new();
    for (id, run) in runs {
        let (ids, ends): (Vec<_>, Vec<_>) = records
            .iter()
            .filter(|record| record.is_of_run(id))
            .filter_map(|record| Some((record.id, record.ends()?)))
            .unzip();
        let answer = tokio::time::timeout(OWNERS_WAIT_MAX, run.helper.owners(ends)).await;
        let owners = answer.ok().and_then(Result::ok).unwrap_or_default();
        let known = ids.into_iter().zip(owners).filter_map(|(id, owner)| Some((id, owner?)));
        found.extend(known);
    }
    found
}

fn role(rule: &LiveRule) -> Option<&'static str> {
    rule.action.tls().map(|tls| tls.role().word())
}

/// `client-cert` of the rule, as the policy writes it.
fn client_cert(rule: &LiveRule) -> Option<String> {
    rule.action.tls()?.client_cert().map(ToString::to_string)
}
