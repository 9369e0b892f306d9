//! The content of the displays, as types that serialise to the JSON of `tacit show --json`.
//!
//! Every value is a snapshot; taking it delays no connection.

pub mod connections;
pub mod policy;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tacit_core::refusal::{RefusalEntry, RefusalReason};
use tacit_tls::credentials::{LoadedTrust, Pinned};
use tacit_tls::facts::CertificateFacts;

use crate::clock::{self, Rfc3339, rfc3339};
use crate::ledger::costs::{Costs, RunCosts};
use crate::live::{CredentialNames, Live, LiveRule, Materials};
use crate::run::protocol::SocketOwner;
use crate::run::{self, Run, Scope};
use crate::session::{ConnectionRecord, ConnectionTable, RefusalTable};

use connections::CertificateState;

/// The version of the format of all displays.
pub const VERSION: u32 = 1;

/// How long a run's helper may take to report the owners of its connections. After that time the
/// connections are shown without programs.
const OWNERS_WAIT_MAX: Duration = Duration::from_millis(300);

/// A display with the version of its format.
#[must_use]
pub fn versioned(mut display: Value) -> Value {
    if let Some(display) = display.as_object_mut() {
        display.insert("version".to_owned(), VERSION.into());
    }
    display
}

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
    // Taken after the runs have answered: a connection that ended meanwhile is in their sums and
    // must not count twice.
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
        agent_cpu_us: us(sum(|spent| &spent.cpu_ns)),
        connections: sum(|spent| &spent.connections),
        messages_sent: sum(|spent| &spent.messages[0]),
        messages_received: sum(|spent| &spent.messages[1]),
        bytes_sent: sum(|spent| &spent.bytes[0]),
        bytes_received: sum(|spent| &spent.bytes[1]),
    }
}

/// The programs that own connections of runs, by connection; none for a run that does not answer.
async fn owners(records: &[Arc<ConnectionRecord>]) -> HashMap<u64, SocketOwner> {
    let mut runs: BTreeMap<u64, &Run> = BTreeMap::new();
    for facts in records.iter().filter_map(|record| record.scope.as_ref()) {
        let Scope::Run(run) = &facts.scope;
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

/// `tacit show rules`.
#[must_use]
pub fn rules(table: &ConnectionTable, live: &Live) -> Value {
    let records = table.snapshot();
    let mut open: HashMap<&str, usize> = HashMap::new();
    for record in &records {
        *open.entry(record.rule.name()).or_default() += 1;
    }
    let mut rules = Vec::with_capacity(live.rules.len());
    for (place, rule) in live.rules.iter().enumerate() {
        let of_rule = open.get(rule.name()).copied().unwrap_or_default();
        rules.push(one_rule(rule, of_rule, live.line(place)));
    }
    json!({ "version": VERSION, "generation": live.generation, "rules": rules, "default": "deny" })
}

fn one_rule(rule: &LiveRule, open: usize, line: Option<usize>) -> Value {
    json!({
        "name": rule.name(),
        "action": rule.action.word(),
        "role": role(rule),
        "starttls": rule.starttls().map(|starttls| json!({
            "protocol": starttls.protocol.word(),
            "mode": starttls.mode.word(),
        })),
        "controlled": rule.is_controlled(),
        "listen": Some(rule.rule.listens()).filter(|listens| !listens.is_empty()),
        "connect": rule.targets.as_ref().map(ToString::to_string),
        "targets": targets(rule),
        "client-cert": client_cert(rule),
        "hits": rule.counters.hits(),
        "failures": rule.counters.failures(),
        "last-hit": rule.counters.last_hit().map(|time| Rfc3339(time).to_string()),
        "open": open,
        "line": line,
    })
}

/// The targets of a rule in their order, and whether each is down; `None` if there is only one.
fn targets(rule: &LiveRule) -> Option<Value> {
    let several = rule.targets.as_ref()?.several()?;
    let states = several.states();
    let states: Vec<_> = states
        .map(|(target, is_down)| json!({ "connect": target.to_string(), "down": is_down }))
        .collect();
    Some(json!({ "order": several.order.word(), "states": states }))
}

/// `tacit show refused`, the newest refusal first.
#[must_use]
pub fn refused(refusals: &RefusalTable) -> Value {
    let shown = |RefusalEntry { refusal, last, count }: RefusalEntry| {
        json!({
            "last": Rfc3339(last).to_string(),
            "count": count,
            "run": refusal.run,
            "kind": refusal.kind,
            "destination": refusal.destination,
            "program": refusal.program,
            "why": refusal.why,
            "rule": refusal.rule,
            "next": refusal.next,
        })
    };
    let totals: Vec<_> = RefusalReason::ALL
        .into_iter()
        .map(|why| json!({ "why": why, "count": refusals.total(why) }))
        .collect();
    let entries: Vec<_> = refusals.entries().into_iter().map(shown).collect();
    json!({ "version": VERSION, "refused": entries, "totals": totals })
}

/// `tacit show identities`.
#[must_use]
pub fn identities(materials: &Materials, live: &Live) -> Value {
    let now = clock::now_unix_s();
    let users = Users::of(live);
    let identities: Vec<_> = materials
        .identities
        .iter()
        .map(|(name, material)| {
            json!({
                "name": name,
                "kind": "identity",
                "certificate": CertificateState::of(&material.facts),
                "days-left": material.facts.days_left(now),
                "files": material.sources.iter().map(|file| &file.path).collect::<Vec<_>>(),
                "rules": users.identities.get(name.as_str()).map_or(&[][..], Vec::as_slice),
            })
        })
        .collect();
    let trusts: Vec<_> = materials
        .trusts
        .iter()
        .map(|(name, material)| {
            json!({
                "name": name,
                "kind": "trust",
                "anchors": material.anchors,
                "certificates": states(&material.facts),
                "expires": first_end(material).map(rfc3339),
                "days-left": certificates(material).map(|facts| facts.days_left(now)).min(),
                "pinned": states(material.pinned.as_ref().map_or(&[][..], Pinned::facts)),
                "revocation": material.revocation.word(),
                "lists": material.crls.iter().map(|list| &list.facts).collect::<Vec<_>>(),
                "lists-until": lists_until(material).map(rfc3339),
                "files": material.sources.iter().map(|file| &file.path).collect::<Vec<_>>(),
                "rules": users.trusts.get(name.as_str()).map_or(&[][..], Vec::as_slice),
            })
        })
        .collect();
    json!({ "version": VERSION, "identities": identities, "trusts": trusts })
}

fn states(facts: &[CertificateFacts]) -> Vec<CertificateState> {
    facts.iter().map(CertificateState::of).collect()
}

/// The anchors and pinned certificates of a trust.
fn certificates(trust: &LoadedTrust) -> impl Iterator<Item = &CertificateFacts> {
    trust.facts.iter().chain(trust.pinned.iter().flat_map(Pinned::facts))
}

/// When the first anchor or pinned certificate of a trust expires, in Unix time.
#[must_use]
pub fn first_end(trust: &LoadedTrust) -> Option<i64> {
    certificates(trust).map(|facts| facts.not_after).min()
}

/// When the first CRL of a trust becomes out of date, in Unix time.
#[must_use]
pub fn lists_until(trust: &LoadedTrust) -> Option<i64> {
    trust.crls.iter().map(|list| list.facts.next_update).min()
}

/// The rules that use each identity and trust, by name.
#[derive(Default)]
struct Users<'a> {
    identities: HashMap<&'a str, Vec<&'a str>>,
    trusts: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Users<'a> {
    fn of(live: &'a Live) -> Self {
        let mut users = Self::default();
        for rule in &live.rules {
            let names = CredentialNames::of(&rule.rule);
            for name in names.identities {
                users.identities.entry(name).or_default().push(rule.name());
            }
            if let Some(name) = names.trust {
                users.trusts.entry(name).or_default().push(rule.name());
            }
        }
        users
    }
}
