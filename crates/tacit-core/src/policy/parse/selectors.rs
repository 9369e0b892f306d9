//! Parses the conditions that all kinds of rules share, such as `program` and `user`.
//!
//! Limit: a control group is at most [`CGROUP_LEVELS_MAX`] levels below the root.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use super::value;
use crate::policy::selector::{AddressSelector, SLICE, escaped};
use crate::policy::text::{TomlTable, TomlValue};

pub(super) type ReadAddress = fn(&TomlValue<'_>) -> Option<AddressSelector>;

/// Reports keys of filter rules in another rule.
pub(super) fn refuse_filter_keys(table: &TomlTable<'_>) {
    let why = "this policy key is only for rules with `filter`";
    table.refuse(&FILTER_KEYS, why, "remove `{key}`, or set filter = \"permit\" or \"deny\"");
}

pub(super) fn addresses(
    table: &TomlTable<'_>,
    key: &'static str,
    read: ReadAddress,
) -> Option<Vec<AddressSelector>> {
    table.value(key).map_or(Some(Vec::new()), |value| value.each(read))
}

pub(super) fn ports(table: &TomlTable<'_>, key: &'static str) -> Option<Vec<RangeInclusive<u16>>> {
    table.value(key).map_or(Some(Vec::new()), |value| value.each(value::ports))
}

pub(super) fn programs(table: &TomlTable<'_>) -> Option<Vec<PathBuf>> {
    let read = |value: &TomlValue<'_>| {
        let path = value.string()?;
        if path.starts_with('/') {
            return Some(PathBuf::from(path));
        }
        let why = if path.starts_with(['~', '$']) {
            "tacit does not expand `~` and `$`"
        } else {
            "this is not an absolute path"
        };
        let fix = format!("write the absolute path, such as \"/usr/bin/{}\"", example_name(path));
        value.error(format!("`program` cannot be `{path}`: {why}"), fix);
        None
    };
    table.value("program").map_or(Some(Vec::new()), |value| value.each(read))
}

/// The file name of a program, for an example of an absolute path.
fn example_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or_default();
    if name.is_empty() || name.starts_with(['~', '$', '.']) { "curl" } else { name }
}

pub(super) fn runs(table: &TomlTable<'_>) -> Option<Vec<String>> {
    let read = |value: &TomlValue<'_>| value::name(value).map(str::to_owned);
    table.value("run").map_or(Some(Vec::new()), |value| value.each(read))
}

pub(super) fn users(table: &TomlTable<'_>) -> Option<Vec<String>> {
    table.value("user").map_or(Some(Vec::new()), |value| value.each(name_or_number))
}

pub(super) fn groups(table: &TomlTable<'_>) -> Option<Vec<String>> {
    table.value("group").map_or(Some(Vec::new()), |value| value.each(name_or_number))
}

/// Reads a user or a group, by name or number.
fn name_or_number(value: &TomlValue<'_>) -> Option<String> {
    if value.value.is_integer() {
        return value::owner_number(value);
    }
    value::name(value).map(str::to_owned)
}

/// Reads the control groups of `cgroup` or `slice`, which are two notations for the same condition.
pub(super) fn cgroups(table: &TomlTable<'_>) -> Option<Vec<String>> {
    if let (Some(value), true) = (table.value("slice"), table.holds("cgroup")) {
        let message = "a rule cannot contain both `slice` and `cgroup`";
        value.error(message, "write the slice as a path: cgroup = \"system.slice\"");
        return None;
    }
    match (table.value("cgroup"), table.value("slice")) {
        (Some(value), _) => value.each(read_cgroup),
        (None, Some(value)) => value.each(read_slice),
        (None, None) => Some(Vec::new()),
    }
}

/// Reads a path below the root of the hierarchy. The kernel counts levels from the root.
fn read_cgroup(value: &TomlValue<'_>) -> Option<String> {
    let text = value.string()?;
    let path = text.strip_prefix('/').unwrap_or(text);
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    let is_path = path.split('/').all(is_name) && path.split('/').count() <= CGROUP_LEVELS_MAX;
    if !is_path || path.contains(char::is_control) {
        let message = format!("`cgroup` cannot be `{}`", text.escape_debug());
        let fix = "write a path below the mount point of cgroup2, as `systemctl status` shows it: \
                   \"system.slice/nginx.service\"";
        value.error(message, fix);
        return None;
    }
    Some(path.to_owned())
}

/// Reads units of systemd. Only services are started with a drop-in that tacit generates.
pub(super) fn units(table: &TomlTable<'_>) -> Option<Vec<String>> {
    let Some(value) = table.value("unit") else { return Some(Vec::new()) };
    if let Some(other) = ["cgroup", "slice"].into_iter().find(|key| table.holds(key)) {
        let message = format!("a rule cannot contain both `unit` and `{other}`");
        value.error(message, "remove one of the two keys: `unit` already selects a control group");
        return None;
    }
    value.each(read_unit)
}

fn read_unit(value: &TomlValue<'_>) -> Option<String> {
    let text = value.string()?;
    let name = text.strip_suffix(".service").unwrap_or_default();
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || ":-_.\\@".contains(letter);
    let is_instance = !name.ends_with('@');
    let is_name = !name.is_empty() && is_instance && name.chars().all(is_letter);
    if !is_name || text.len() > UNIT_BYTES_MAX {
        let message = format!("`unit` cannot be `{}`", text.escape_debug());
        value.error(message, "write the whole name of a service: \"nginx.service\"");
        return None;
    }
    Some(text.to_owned())
}

/// The longest name of a unit in systemd, with its ending.
const UNIT_BYTES_MAX: usize = 255;

/// Reads a slice of systemd, and returns the path of its control group: `a-b.slice` is below
/// `a.slice`.
fn read_slice(value: &TomlValue<'_>) -> Option<String> {
    let text = value.string()?;
    let name = text.strip_suffix(SLICE).unwrap_or_default();
    let is_part = |part: &str| !part.is_empty();
    let levels = name.split('-').count();
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || ":-_.\\".contains(letter);
    let is_plain = name.chars().all(is_letter) && text.len() <= UNIT_BYTES_MAX;
    if !name.split('-').all(is_part) || levels > CGROUP_LEVELS_MAX || !is_plain {
        let message = format!("`slice` cannot be `{}`", text.escape_debug());
        let fix = match text {
            "-.slice" => "remove `slice`: all programs are below the root slice",
            _ => "write the name of a slice: \"system.slice\"",
        };
        value.error(message, fix);
        return None;
    }
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    let path: Vec<_> = ends.map(|end| escaped(&format!("{}{SLICE}", &name[..end]))).collect();
    Some(path.join("/"))
}

/// The keys of filter rules that other rules do not have.
const FILTER_KEYS: [&str; 9] = [
    "opened-by",
    "icmp-type",
    "icmp-code",
    "fragments",
    "interface",
    "class",
    "routing",
    "tunnel",
    "discard",
];

/// The maximum level of a control group in the kernel's nftables rules.
const CGROUP_LEVELS_MAX: usize = 255;

#[cfg(test)]
mod tests {
    use crate::policy::parse;

    /// The control group that the kernel compares, or the fix for a slice that is rejected.
    fn group(slice: &str) -> Result<String, String> {
        let text = format!(
            "version = 1\n[host]\nunmatched = \"permit\"\n[[rule]]\nname = \"r\"\n\
             direction = \"outbound\"\nslice = '{slice}'\npermit = true\n"
        );
        let parsed = parse(&text);
        match parsed.policy {
            Some(policy) => Ok(policy.rules[0].selectors.cgroup.join(" ")),
            None => Err(parsed.diagnostics[0].fix.clone().unwrap_or_default()),
        }
    }

    /// The users and groups of a rule; `None` if the rule is rejected.
    fn owners(line: &str) -> Option<Vec<String>> {
        let text = format!(
            "version = 1\n[host]\nunmatched = \"deny\"\n[[rule]]\nname = \"r\"\n\
             direction = \"outbound\"\n{line}\npermit = true\n"
        );
        let policy = parse(&text).policy?;
        let selectors = &policy.rules.first()?.selectors;
        Some([selectors.user.clone(), selectors.group.clone()].concat())
    }

    #[test]
    fn a_user_or_group_is_a_name_or_a_number() {
        for key in ["user", "group"] {
            let of_key = |value: &str| owners(&format!("{key} = {value}"));
            assert_eq!(of_key("1000"), Some(vec!["1000".to_owned()]), "{key}");
            let several = of_key("[\"ann\", 0, \"7\"]").unwrap_or_default();
            assert_eq!(several, ["ann", "0", "7"], "{key}");
            for wrong in ["-1", "4294967295", "1.5", "true"] {
                assert_eq!(of_key(wrong), None, "{key} {wrong}");
            }
        }
    }

    #[test]
    fn a_slice_is_the_control_group_that_systemd_makes_for_it() {
        for (slice, wanted) in [
            ("system.slice", "system.slice"),
            ("a-b.slice", "a.slice/a-b.slice"),
            ("a-b-c.slice", "a.slice/a-b.slice/a-b-c.slice"),
            ("io.slice", "_io.slice"),
            ("memory-large.slice", "_memory.slice/memory-large.slice"),
            (r"system-getty\x2dx.slice", r"system.slice/system-getty\x2dx.slice"),
        ] {
            assert_eq!(group(slice).as_deref(), Ok(wanted));
        }
    }

    #[test]
    fn what_is_no_slice_is_rejected() {
        let long = format!("{}.slice", "a".repeat(250));
        for wrong in ["a", ".slice", "a-.slice", "-a.slice", "a--b.slice", "a/b.slice", &long] {
            assert!(group(wrong).unwrap_err().contains("write the name of a slice"), "{wrong}");
        }
        assert!(group("-.slice").unwrap_err().contains("remove `slice`"));
    }
}
