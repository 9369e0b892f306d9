//! What can only be seen with all rules side by side.

use std::collections::HashMap;

use super::report::Report;
use super::table::Value;
use crate::flow::Address;
use crate::policy::{Fixed, Rule};

/// Reports names given twice, also among rules that are wrong in other ways.
pub(super) fn names(rules: &[Value<'_>]) {
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for rule in rules {
        let Some(name) = rule.value.get("name") else { continue };
        let Some(text) = name.get_ref().as_str() else { continue };
        if let Some(first) = seen.get(text) {
            let line = rule.report.position(*first).line;
            let message = format!("two rules are named `{}`", text.escape_debug());
            let fix = format!("rename one; the other is in line {line}");
            rule.report.error(&name.span(), message, fix);
        } else {
            seen.insert(text, name.span().start);
        }
    }
}

/// Reports rules that cannot stand together, and warns about those that do nothing.
pub(super) fn rules(report: &Report<'_>, rules: &[(&Value<'_>, &Rule)]) {
    shared_listens(rules);
    about_runs(report, rules);
}

/// Rules may share a socket, but it is one socket: what concerns it must be said alike.
fn shared_listens(rules: &[(&Value<'_>, &Rule)]) {
    let mut first_at: HashMap<&Address, (&str, &Fixed)> = HashMap::new();
    for (value, rule) in rules {
        let Some(fixed) = &rule.fixed else { continue };
        for address in &fixed.listen {
            let (name, first) = *first_at.entry(address).or_insert((&rule.name, fixed));
            let Some(key) = disagreement(address, first, fixed) else { continue };
            let message =
                format!("rules `{name}` and `{}` share {address} but not `{key}`", rule.name);
            let fix = format!("say the same `{key}` in both");
            let at = value.value.get(key).map_or_else(|| value.at.clone(), toml::Spanned::span);
            value.report.error(&at, message, fix);
        }
    }
}

fn disagreement(address: &Address, a: &Fixed, b: &Fixed) -> Option<&'static str> {
    let has_path = matches!(address, Address::Path(_));
    let keys = [
        ("accept-proxy", a.accept_proxy == b.accept_proxy),
        ("unix-mode", !has_path || a.unix.mode == b.unix.mode),
        ("unix-owner", !has_path || a.unix.owner == b.unix.owner),
        ("replace-stale", !has_path || a.unix.replace_stale == b.unix.replace_stale),
    ];
    keys.into_iter().find(|(_, agree)| !agree).map(|(key, _)| key)
}

fn about_runs(report: &Report<'_>, rules: &[(&Value<'_>, &Rule)]) {
    for (_, rule) in rules.iter().filter(|(_, rule)| rule.fixed.is_none()) {
        let message =
            format!("rule `{}` is about runs, which the agent does not serve yet", rule.name);
        let fix = "give `listen` and `connect` for a rule that works now";
        report.warning(rule.position, message, fix);
    }
}
