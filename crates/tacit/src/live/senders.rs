//! Checks the rules for `tacit agent --host`. Each user, group and control group in these rules
//! must exist.

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Policy, Rule, RuleForm};

use crate::{address, cgroups};

/// Checks that the users, groups and control groups in rules for the host exist on this host.
pub(super) fn check(policy: &Policy) -> Vec<Diagnostic> {
    if policy.host.is_none() {
        return Vec::new();
    }
    let is_of_host =
        |rule: &&Rule| rule.form == RuleForm::Outbound && rule.selectors.run.is_empty();
    let rules = policy.rules.iter().map(|rule| &**rule).filter(is_of_host);
    rules.flat_map(of_rule).collect()
}

fn of_rule(rule: &Rule) -> Vec<Diagnostic> {
    let unknown = |key: &str, word: &str, file: &str| {
        let message = format!(
            "rule `{}` has `{key}` = `{word}`, but {file} does not contain this name",
            rule.name
        );
        Diagnostic::error(MessageId("unknown-sender"), rule.position, message).with_fix(
            "correct the name; if the name exists only in a directory service (LDAP), write the \
             numeric ID instead of the name",
        )
    };
    let selectors = &rule.selectors;
    let users = selectors.user.iter().filter(|user| address::user_id(user).is_none());
    let groups = selectors.group.iter().filter(|group| address::group_id(group).is_none());
    let absent = selectors.cgroup.iter().filter(|path| cgroups::id(path).is_none()).map(|path| {
        let message = format!(
            "rule `{}` refers to the control group `{path}`, which does not exist",
            rule.name
        );
        let fix = "check the path; this rule matches programs of this control group only when the \
                   group exists";
        Diagnostic::warning(MessageId("no-such-cgroup"), rule.position, message).with_fix(fix)
    });
    users
        .map(|user| unknown("user", user, "/etc/passwd"))
        .chain(groups.map(|group| unknown("group", group, "/etc/group")))
        .chain(absent)
        .collect()
}
