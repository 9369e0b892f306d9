//! Determines the programs and users to which an imported rule applies. An AT-TLS rule may
//! contain a job name and a user ID of z/OS. The map file maps them to programs and users on Linux.
//!
//! With `tacit import --host`, the map file may also map a job name to systemd units and control
//! groups. Without this option, it may also map a job name to runs (programs under `tacit run`).
//!
//! The job name in a rule may be a pattern, such as `NIGHT*`. Then the imported rule gets the
//! programs of several entries in the map file. These are the entry `NIGHT*`, and narrower entries
//! such as `NIGHT1`.

use super::context::Context;
use super::effective::Effective;
use super::map::Job;
use super::objects::Field;
use super::patterns::union;
use super::words::Kind;
use crate::draft::{Keys, Toml, set};
use tacit_core::flow::Direction;

impl Job {
    fn keys(self) -> Keys {
        let Self { program, user, run, unit, cgroup } = self;
        let all = [
            ("program", program),
            ("user", user),
            ("run", run),
            ("unit", unit),
            ("cgroup", cgroup),
        ];
        let mut keys = Keys::new();
        for (key, value) in all {
            if let Some(value) = value {
                set(&mut keys, key, value);
            }
        }
        keys
    }

    /// The conditions but the user.
    fn conditions(&mut self) -> [&mut Option<Toml>; 4] {
        [&mut self.program, &mut self.run, &mut self.unit, &mut self.cgroup]
    }

    /// Adds the programs of another job of the same user. All conditions of a rule must match, so
    /// only jobs that differ in one of them can be merged. Returns whether they were.
    fn merge(&mut self, mut other: Self) -> bool {
        let mut pairs: Vec<_> = self.conditions().into_iter().zip(other.conditions()).collect();
        pairs.retain(|(own, other)| own != other);
        match &mut pairs[..] {
            [] => true,
            [(own, other)] => {
                **own = either(own.take(), other.take());
                true
            }
            _ => false,
        }
    }
}

impl Context<'_> {
    /// The owners of the flows of a rule in one direction; `None` after an error.
    pub(super) fn owners(
        &mut self,
        rule: &Effective<'_>,
        direction: Direction,
    ) -> Option<Vec<Keys>> {
        let job = rule.rule.field("Jobname");
        let user = rule.rule.field("Userid");
        let mut is_complete = true;
        for field in job.into_iter().chain(user) {
            is_complete &= self.check_pattern(field);
        }
        let mut owners = self.job_owners(rule, direction);
        is_complete &= !owners.is_empty();
        if let Some(field) = user
            && self.map.rule(&rule.rule.name, "user").is_none()
        {
            is_complete &= self.add_user(field, &mut owners);
        }
        is_complete &= match direction {
            Direction::Inbound => self.drop_programs(rule, &mut owners),
            Direction::Outbound => self.check_widened(rule),
        };
        is_complete.then(|| merge(owners).into_iter().map(Job::keys).collect())
    }

    /// Reports a `*` that is not the last character: which names it covers is not known.
    fn check_pattern(&mut self, field: &Field) -> bool {
        let stem = field.value.strip_suffix('*').unwrap_or(&field.value);
        if !stem.contains(['*', '?']) {
            return true;
        }
        let message = format!("`{value}` is neither a name nor a pattern", value = field.value);
        let fix = "write a name; or write a pattern: the beginning of a name and then one `*`, \
                   such as NIGHT*";
        self.findings.error(&field.at, message, fix);
        false
    }

    /// The owners that result from the job name, or from the map entry of the rule; empty after an
    /// error.
    fn job_owners(&mut self, rule: &Effective<'_>, direction: Direction) -> Vec<Job> {
        let name = rule.rule.name.as_str();
        let program = self.map.rule(name, "program").cloned();
        let user = self.map.rule(name, "user").cloned();
        let Some(field) = rule.rule.field("Jobname").filter(|_| program.is_none()) else {
            return vec![Job { program, user, ..Job::default() }];
        };
        let jobs = self.map.jobs(&field.value);
        if user.is_some() {
            let message = "the import ignores the job name, because the map file sets a user for \
                           the rule: the rule applies to all programs of that user";
            let fix = "in the map file, also set `program` for the rule";
            self.findings.changed(&field.at, message, fix);
            return vec![Job { program, user, ..Job::default() }];
        }
        if jobs.is_empty() && direction == Direction::Inbound {
            // tacit cannot distinguish programs that accept connections: an entry of the map would
            // have no effect.
            return vec![Job::default()];
        }
        if jobs.is_empty() {
            self.needs.job(&field.value, &field.at);
            return Vec::new();
        }
        if jobs.iter().any(|job| job.is_any()) {
            let message = format!(
                "the rule applies to all {programs}, because the map file sets `any` for the job \
                 name of the rule",
                programs = self.programs()
            );
            let fix = "in the map file, set a program for the job name";
            self.findings.changed(&field.at, message, fix);
        }
        jobs.into_iter().cloned().collect()
    }

    /// Reports a rule for outbound connections whose job has only a user in the map: it applies to
    /// all programs of that user. Returns false after an error, which it is if the connections are
    /// in clear.
    fn check_widened(&mut self, rule: &Effective<'_>) -> bool {
        let name = rule.rule.name.as_str();
        let Some(field) = rule.rule.field("Jobname") else { return true };
        if ["program", "user"].iter().any(|key| self.map.rule(name, key).is_some()) {
            return true;
        }
        if !self.map.jobs(&field.value).iter().any(|job| job.is_user()) {
            return true;
        }
        let unit_or_run = if self.options.host { "a unit" } else { "a run" };
        let fix = format!("in the map file, also set a program or {unit_or_run} for the job name");
        if is_protected(rule) {
            let message = "the map file sets a user but no program for the job name, so the rule \
                           applies to all programs of this user";
            self.findings.changed(&field.at, message, fix);
            return true;
        }
        let message = "the map file sets a user but no program for the job name: the rule would \
                       apply to all programs of this user, and their data would be sent in clear";
        let fix = format!(
            "{fix}; or, if you mean all programs of this user, add to the map file:\n[rule.{}]\n\
             user = \"USER\"",
            crate::draft::word(name)
        );
        self.findings.error(&field.at, message, fix);
        false
    }

    /// Adds the users of a user ID; returns false after an error.
    fn add_user(&mut self, field: &Field, owners: &mut [Job]) -> bool {
        let Some(mapped) = self.map.users(&field.value) else {
            self.needs.user(&field.value, &field.at);
            return false;
        };
        let differs = |owner: &Job| owner.user.as_ref().is_some_and(|user| *user != mapped);
        if owners.iter().any(differs) {
            let message = "the map file sets different users for the job name and the user ID";
            let fix = "in the map file, set the same user for the job name and the user ID, or \
                       remove one of the two users";
            self.findings.error(&field.at, message, fix);
            return false;
        }
        owners.iter_mut().for_each(|owner| owner.user = Some(mapped.clone()));
        true
    }

    /// Removes programs and runs, because the agent chooses the rule before it knows which program
    /// accepts the connection; returns false after an error.
    fn drop_programs(&mut self, rule: &Effective<'_>, owners: &mut [Job]) -> bool {
        let job = rule.rule.field("Jobname");
        if job.is_none() && owners.iter().all(|owner| owner.program.is_none()) {
            return true;
        }
        for owner in owners {
            *owner = Job { user: owner.user.take(), ..Job::default() };
        }
        let at = job.map_or(&rule.rule.at, |field| &field.at);
        if is_protected(rule) {
            let message = format!(
                "tacit cannot see which program accepts a connection, so the rule applies to all \
                 {programs} that listen on the port",
                programs = self.programs()
            );
            self.findings.changed(
                at,
                message,
                "make sure that no other program listens on this port",
            );
            return true;
        }
        let message = "tacit cannot see which program accepts a connection, so connections to \
                       every program that listens on the port would be in clear";
        let fix = "remove the job name if all programs on this port may receive connections in \
                   clear; otherwise remove the rule";
        self.findings.error(at, message, fix);
        false
    }

    fn programs(&self) -> &'static str {
        if self.options.host { "programs of this host" } else { "programs under `tacit run`" }
    }
}

/// The union of two conditions; no condition if one of them is missing.
fn either(one: Option<Toml>, other: Option<Toml>) -> Option<Toml> {
    one.zip(other).map(|(one, other)| union([one, other]))
}

/// Whether the connections of the rule use TLS.
pub(super) fn is_protected(rule: &Effective<'_>) -> bool {
    let group = rule.action(Kind::Group).and_then(|group| group.field("TTLSEnabled"));
    group.is_some_and(|enabled| enabled.value == "On")
}

/// Merges owners with the same users into one, in the order of the first. An owner without
/// conditions includes all others.
fn merge(owners: Vec<Job>) -> Vec<Job> {
    if owners.iter().any(Job::is_any) {
        return vec![Job::default()];
    }
    let mut merged: Vec<Job> = Vec::new();
    for owner in owners {
        let mut same_user = merged.iter_mut().filter(|known| known.user == owner.user);
        if !same_user.any(|known| known.merge(owner.clone())) {
            merged.push(owner);
        }
    }
    merged
}
