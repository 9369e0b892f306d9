//! Checks that the users, groups and control groups in rules exist on this host. In rules for
//! `tacit agent --host`, an unknown user or group is an error. In other rules it is a warning,
//! because a policy may be for several hosts.

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Policy, Rule, RuleForm};

use crate::{address, cgroups};

const UNKNOWN_SENDER: MessageId = MessageId("unknown-sender");
const UNKNOWN_SENDER_FIX: &str = "correct the name; if the name exists only in a directory \
                                  service (LDAP), write the numeric ID instead of the name";

/// Checks all rules.
pub(super) fn check(policy: &Policy) -> Vec<Diagnostic> {
    let is_of_host = |rule: &Rule| {
        policy.host.is_some() && rule.form == RuleForm::Outbound && rule.selectors.run.is_empty()
    };
    let of_rule =
        |rule: &Rule| if is_of_host(rule) { of_host_rule(rule) } else { of_other_rule(rule) };
    policy.rules.iter().flat_map(|rule| of_rule(rule.as_ref())).collect()
}

fn of_host_rule(rule: &Rule) -> Vec<Diagnostic> {
    let absent = rule.selectors.cgroup.iter().filter(|path| cgroups::id(path).is_none());
    let absent = absent.map(|path| {
        let message = format!(
            "rule `{}` refers to the control group `{path}`, which does not exist",
            rule.name
        );
        let fix = "correct the path, or create the control group: the rule then applies to its \
                   programs within a second";
        Diagnostic::warning(MessageId("no-such-cgroup"), rule.position, message).with_fix(fix)
    });
    let unknown = unknown_names(rule).into_iter().map(|message| {
        Diagnostic::error(UNKNOWN_SENDER, rule.position, message).with_fix(UNKNOWN_SENDER_FIX)
    });
    unknown.chain(absent).collect()
}

fn of_other_rule(rule: &Rule) -> Vec<Diagnostic> {
    let unknown = unknown_names(rule).into_iter().map(|message| {
        let message = format!("{message}, so no program matches this name");
        Diagnostic::warning(UNKNOWN_SENDER, rule.position, message).with_fix(UNKNOWN_SENDER_FIX)
    });
    unknown.collect()
}

/// The names of users and groups that this host does not have, each as a message.
fn unknown_names(rule: &Rule) -> Vec<String> {
    let message = |key: &str, word: &str, file: &str| {
        format!(
            "rule `{}` has `{key}` = `{word}`, but {file} does not contain this name",
            rule.name
        )
    };
    let selectors = &rule.selectors;
    let users = selectors.user.iter().filter(|user| address::user_id(user).is_none());
    let groups = selectors.group.iter().filter(|group| address::group_id(group).is_none());
    users
        .map(|user| message("user", user, "/etc/passwd"))
        .chain(groups.map(|group| message("group", group, "/etc/group")))
        .collect()
}

#[cfg(test)]
mod tests {
    use tacit_core::policy::{DiagnosticSeverity, parse};

    use super::*;

    #[test]
    fn an_unknown_user_is_an_error_for_the_host_and_a_warning_elsewhere() {
        let rule = "[[rule]]\nname = \"r\"\ndirection = \"outbound\"\nremote = \"192.0.2.1\"\n\
                    user = [\"root\", \"no-such-user\"]\npermit = true\n";
        for (settings, severity) in [
            ("", DiagnosticSeverity::Warning),
            ("[host]\nunmatched = \"permit\"\n", DiagnosticSeverity::Error),
        ] {
            let parsed = parse(&format!("version = 1\n{settings}{rule}"));
            let found = check(&parsed.policy.expect("a policy"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].severity, severity);
            assert!(found[0].message.contains("`user` = `no-such-user`"), "{found:?}");
        }
    }
}
