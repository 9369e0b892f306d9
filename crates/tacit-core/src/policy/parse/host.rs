//! Parses `[host]`, and reports the rules with settings that a captured host does not support.

use super::review::Read;
use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::capture::{self, HOST_RANGES_MAX};
use crate::policy::host::{HostSettings, Unmatched};
use crate::policy::rule::{Action, Rule, RuleForm};
use crate::policy::selector::{AddressSelector, Near};
use crate::policy::starttls::{Start, StarttlsProtocol};
use crate::policy::text::{TomlTable, TomlValue};

/// Reads `[host]`; `Some(None)` if there is none.
pub(super) fn read(top: &TomlTable<'_>) -> Option<Option<HostSettings>> {
    let Some(value) = top.value("host") else { return Some(None) };
    let table = value.table(Scope::Host, "[host]")?;
    let words = [("permit", Unmatched::Permit), ("deny", Unmatched::Deny)];
    let fix = "set what happens to flows that no rule matches: unmatched = \"permit\" or \"deny\"";
    let unmatched = table.required("unmatched", fix).and_then(|value| value.choice(&words));
    let mark = table.value("mark").map_or(Some(HostSettings::MARK_DEFAULT), |value| mark(&value));
    Some(Some(HostSettings { unmatched: unmatched?, mark: mark? }))
}

/// Parses two bits, written as a hexadecimal number.
fn mark(value: &TomlValue<'_>) -> Option<u32> {
    let text = value.string()?;
    let digits = text.strip_prefix("0x").unwrap_or_default();
    let bits = u32::from_str_radix(digits, 16).ok().filter(|bits| bits.count_ones() == 2);
    if bits.is_none() {
        let message = format!("`mark` cannot be `{}`", text.escape_debug());
        value.error(
            message,
            "write a mask with two bits that no other program uses: \"0x30000000\"",
        );
    }
    bits
}

/// Reports inbound rules without `listen`. Such rules are valid only if the host is captured.
pub(super) fn refuse_rules(rules: &[Read<'_, '_>]) {
    for Read { value, rule } in rules.iter().filter(|read| read.rule.form == RuleForm::HostInbound)
    {
        let message = format!("rule `{}` has no `listen`", rule.name);
        let fix = "set where tacit listens: listen = \"0.0.0.0:8443\"; or, to capture this host, \
                   add [host]";
        value.report.missing(MessageId("missing-key"), &value.at, message, fix);
    }
}

/// Reports for each rule the first setting that a captured host does not support.
pub(super) fn check_rules(host: &HostSettings, rules: &[Read<'_, '_>]) {
    for Read { value, rule } in rules {
        let (found, or) = match rule.form {
            RuleForm::Outbound if rule.selectors.run.is_empty() => {
                (unsupported(rule), "; or add `run`, if it is for runs alone")
            }
            RuleForm::HostInbound => (unsupported_inbound(rule), ""),
            RuleForm::Outbound | RuleForm::Inbound(_) | RuleForm::Forward(_) => continue,
        };
        let Some(Unsupported { key, problem, fix }) = found else { continue };
        let at = value.value.get(key).map_or_else(|| value.at.clone(), toml::Spanned::span);
        let message = format!("rule `{}` {problem}", rule.name);
        value.report.error(MessageId("not-for-host"), &at, message, format!("{fix}{or}"));
    }
    // Rules with time windows count as open. When such a rule is closed, a later rule may need its
    // ranges.
    let all = rules.iter().map(|read| &**read.rule);
    if capture::host_outbound(all, host.unmatched).len() > HOST_RANGES_MAX
        && let Some(first) = rules.first()
    {
        let message = format!(
            "the outbound rules need more than {HOST_RANGES_MAX} ranges of addresses and ports, \
             too many for a host"
        );
        let fix = "merge rules by networks and ranges of ports";
        first.value.report.error(MessageId("too-many-ranges"), &(0..0), message, fix);
    }
}

/// A setting that a captured host does not support.
struct Unsupported {
    key: &'static str,
    problem: &'static str,
    fix: &'static str,
}

fn unsupported(rule: &Rule) -> Option<Unsupported> {
    let selectors = &rule.selectors;
    let select = "select by the addresses in `remote` and by `remote-ports`";
    let found = |key, problem| Some(Unsupported { key, problem, fix: select });
    if !selectors.program.is_empty() {
        return found("program", "has `program`, which the capture of a host does not check");
    }
    if !selectors.user.is_empty() {
        return found("user", "has `user`, which the capture of a host does not check");
    }
    if !selectors.local.is_empty() {
        return found("local", "has `local`, which the capture of a host does not check");
    }
    if !selectors.local_ports.is_empty() {
        return found(
            "local-ports",
            "has `local-ports`, which the capture of a host does not check",
        );
    }
    if selectors.remote.iter().any(|one| matches!(one, AddressSelector::Name { .. })) {
        return found("remote", "is by name, and the capture of a host does not see DNS answers");
    }
    if selectors.remote.iter().any(|one| one.near() == Some(Near::Loopback)) {
        return found("remote", "is for loopback, and what stays on the host is not captured");
    }
    unsupported_tls(rule)
}

fn unsupported_inbound(rule: &Rule) -> Option<Unsupported> {
    if !rule.selectors.user.is_empty() {
        let problem = "has `user`, which is not known of clients";
        return Some(Unsupported { key: "user", problem, fix: "remove it" });
    }
    unsupported_tls(rule)
}

fn unsupported_tls(rule: &Rule) -> Option<Unsupported> {
    let Action::Tls(tls) = &rule.action else { return None };
    let problem = match &tls.common().start {
        Start::Controlled => {
            "lets programs start TLS, and those of a captured host have no socket to ask for it"
        }
        Start::Starttls(starttls) if matches!(starttls.protocol, StarttlsProtocol::Ftp(_)) => {
            "is for FTP, and the capture of a host does not follow data connections"
        }
        Start::Immediate | Start::Starttls(_) => return None,
    };
    Some(Unsupported { key: "tls", problem, fix: "run the program under `tacit run`" })
}
