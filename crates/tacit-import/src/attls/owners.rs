//! Programs, users and runs of a rule, from its job name, its user ID and the map.
//!
//! A pattern of the original covers every name that begins as it does. A rule for `NIGHT*` is
//! therefore for the programs of `NIGHT*` and for those of each name or narrower pattern of the
//! map that it covers, as `NIGHT1`.

use super::context::Context;
use super::effective::Effective;
use super::map::Job;
use super::objects::Field;
use super::patterns::union;
use super::words::Kind;
use crate::draft::{Keys, Toml, set};
use tacit_core::flow::Direction;

/// Programs of users: one rule is written for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Owner {
    /// `None`: every program.
    program: Option<Toml>,
    /// `None`: every user.
    user: Option<Toml>,
    /// `None`: every run.
    run: Option<Toml>,
}

impl Owner {
    fn keys(self) -> Keys {
        let mut keys = Keys::new();
        if let Some(program) = self.program {
            set(&mut keys, "program", program);
        }
        if let Some(user) = self.user {
            set(&mut keys, "user", user);
        }
        if let Some(run) = self.run {
            set(&mut keys, "run", run);
        }
        keys
    }
}

impl Context<'_> {
    /// The owners of the flows of a rule in one direction; `None` after an error.
    pub(super) fn owners(
        &mut self,
        rule: &Effective<'_>,
        direction: Direction,
    ) -> Option<Vec<Keys>> {
        let job = rule.rule.said("Jobname");
        let user = rule.rule.said("Userid");
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
        is_complete.then(|| merge(owners).into_iter().map(Owner::keys).collect())
    }

    /// Reports a `*` that is not the last character: which names it covers is not known.
    fn check_pattern(&mut self, field: &Field) -> bool {
        let stem = field.value.strip_suffix('*').unwrap_or(&field.value);
        if !stem.contains(['*', '?']) {
            return true;
        }
        let message = format!("`{}` is no name and no pattern", field.value);
        let fix = "write a name, or the beginning of names and one `*`, as NIGHT*";
        self.findings.error(&field.at, message, fix);
        false
    }

    /// The owners by the job name or by what the map says of the rule; empty after an error.
    fn job_owners(&mut self, rule: &Effective<'_>, direction: Direction) -> Vec<Owner> {
        let name = rule.rule.name.as_str();
        let program = self.map.rule(name, "program").cloned();
        let user = self.map.rule(name, "user").cloned();
        let Some(field) = rule.rule.said("Jobname").filter(|_| program.is_none()) else {
            return vec![Owner { program, user, run: None }];
        };
        let jobs = self.map.jobs(&field.value);
        if user.is_some() {
            let message = "the rule is for every program of the user that the map says: its job \
                           name is not looked at";
            let fix = "say `program` of the rule in the map too";
            self.findings.changed(&field.at, message, fix);
            return vec![Owner { program, user, run: None }];
        }
        if jobs.is_empty() && direction == Direction::Inbound {
            // Programs that accept are not told apart: a line of the map would have no effect.
            return vec![Owner::default()];
        }
        if jobs.is_empty() {
            self.needs.job(&field.value, &field.at);
            return Vec::new();
        }
        if jobs.iter().any(|job| job.is_any()) {
            let message = "the rule is for every program of a run: its job name is any";
            let fix = "name a program for the job in the map";
            self.findings.changed(&field.at, message, fix);
        }
        let owner = |job: &Job| {
            let Job { program, user, run } = job.clone();
            Owner { program, user, run }
        };
        jobs.into_iter().map(owner).collect()
    }

    /// Reports a rule for what a program opens whose job is only a user here: it is for each
    /// program of that user. In clear that must not be; false after an error.
    fn check_widened(&mut self, rule: &Effective<'_>) -> bool {
        let name = rule.rule.name.as_str();
        let Some(field) = rule.rule.said("Jobname") else { return true };
        if ["program", "user"].iter().any(|key| self.map.rule(name, key).is_some()) {
            return true;
        }
        let is_wide = |job: &&Job| job.user.is_some() && job.program.is_none() && job.run.is_none();
        if !self.map.jobs(&field.value).iter().any(is_wide) {
            return true;
        }
        let fix = "say the job's program or run in the map too";
        if is_protected(rule) {
            let message = "the rule is for every program of the user that the map says: the line \
                           of its job names no program";
            self.findings.changed(&field.at, message, fix);
            return true;
        }
        let message = "what every program of a user opens would go in clear: the line of the job \
                       in the map names no program";
        let fix = format!(
            "{fix}; if that is meant, say for the rule:\n[rule.{}]\nuser = \"USER\"",
            crate::draft::word(name)
        );
        self.findings.error(&field.at, message, fix);
        false
    }

    /// Adds the users that stand for a user ID; false after an error.
    fn add_user(&mut self, field: &Field, owners: &mut [Owner]) -> bool {
        let Some(mapped) = self.map.users(&field.value) else {
            self.needs.user(&field.value, &field.at);
            return false;
        };
        let differs = |owner: &Owner| owner.user.as_ref().is_some_and(|user| *user != mapped);
        if owners.iter().any(differs) {
            let message = "the map gives the job name and the user ID different users";
            let fix = "give them the same, or one of them none";
            self.findings.error(&field.at, message, fix);
            return false;
        }
        owners.iter_mut().for_each(|owner| owner.user = Some(mapped.clone()));
        true
    }

    /// The agent does not know who accepts a connection when it chooses the rule: leaves programs
    /// and runs out; false after an error.
    fn drop_programs(&mut self, rule: &Effective<'_>, owners: &mut [Owner]) -> bool {
        let job = rule.rule.said("Jobname");
        if job.is_none() && owners.iter().all(|owner| owner.program.is_none()) {
            return true;
        }
        for owner in owners {
            owner.program = None;
            owner.run = None;
        }
        let at = job.map_or(&rule.rule.at, |field| &field.at);
        if is_protected(rule) {
            let message = "what others open is for whichever program of the run listens there: \
                           programs that accept are not told apart";
            self.findings.changed(at, message, "see that no other one listens at that port");
            return true;
        }
        let message = "what others open would go in clear to any program that listens there: \
                       programs that accept are not told apart";
        let fix = "remove the job name, if that is meant, or the rule";
        self.findings.error(at, message, fix);
        false
    }
}

/// What one of two conditions demands; nothing where one of them does not.
fn either(one: Option<Toml>, other: Option<Toml>) -> Option<Toml> {
    one.zip(other).map(|(one, other)| union([one, other]))
}

/// Whether the rule does TLS, and does not leave its connections in clear.
fn is_protected(rule: &Effective<'_>) -> bool {
    let group = rule.action(Kind::Group).and_then(|group| group.said("TTLSEnabled"));
    group.is_some_and(|enabled| enabled.value == "On")
}

/// One owner for all programs or runs of the same users, in the order of the first; an owner
/// without condition stands for all.
fn merge(owners: Vec<Owner>) -> Vec<Owner> {
    if owners.contains(&Owner::default()) {
        return vec![Owner::default()];
    }
    let mut merged: Vec<Owner> = Vec::new();
    for owner in owners {
        let mut same_user = merged.iter_mut().filter(|known| known.user == owner.user);
        // All conditions of a rule must hold, so that only owners that differ in one can be one.
        let mergeable =
            same_user.find(|known| known.run == owner.run || known.program == owner.program);
        match mergeable {
            Some(known) if known.run == owner.run => {
                known.program = either(known.program.take(), owner.program);
            }
            Some(known) => known.run = either(known.run.take(), owner.run),
            None => merged.push(owner),
        }
    }
    merged
}
