//! Looks up the numeric IDs of the users, groups and control groups in policy rules, for
//! `tacit agent --host`. The nftables rules identify the sender of a packet by these IDs.

use std::io;

use tacit_core::policy::{HostPlan, HostSection, Senders};
use tacit_sys::netlink::nft::host::{CgroupId, SenderCheck};

use crate::{address, cgroups};

/// Returns the senders of each section of a plan, in its order. A control group that does not exist
/// has no sender.
///
/// # Errors
/// A user or group does not exist on this host. The text is for an operator.
pub(super) fn resolve(plan: &HostPlan) -> io::Result<Vec<Vec<SenderCheck>>> {
    let unit_mark = plan.units.as_ref().map(|units| units.mark);
    plan.sections.iter().map(|section| of_section(section, unit_mark)).collect()
}

/// Whether a plan names control groups, which may be created and removed.
pub(super) fn may_change(plan: &HostPlan) -> bool {
    plan.sections.iter().any(|section| !section.senders.cgroup.is_empty())
}

fn of_section(section: &HostSection, unit_mark: Option<u32>) -> io::Result<Vec<SenderCheck>> {
    let Senders { user, group, cgroup, unit } = &section.senders;
    let without_mark = unit_mark.filter(|_| !unit.is_empty());
    let users = numbers(user, address::user_id, "user", "/etc/passwd")?;
    let groups = numbers(group, address::group_id, "group", "/etc/group")?;
    let cgroups: Vec<Option<CgroupId>> = match cgroup.as_slice() {
        [] => vec![None],
        paths => paths.iter().filter_map(|path| cgroups::id(path)).map(Some).collect(),
    };
    let mut checks = Vec::new();
    for user in users {
        for group in &groups {
            let with = |cgroup: &Option<CgroupId>| SenderCheck {
                user,
                group: *group,
                cgroup: *cgroup,
                without_mark,
            };
            checks.extend(cgroups.iter().map(with));
        }
    }
    Ok(checks)
}

fn numbers(
    words: &[String],
    number: fn(&str) -> Option<u32>,
    kind: &str,
    file: &str,
) -> io::Result<Vec<Option<u32>>> {
    if words.is_empty() {
        return Ok(vec![None]);
    }
    let one = |word: &String| {
        let unknown = || {
            let text = format!(
                "{file} has no {kind} `{word}`: correct the name, or write the numeric ID of the \
                 {kind} in the rule"
            );
            io::Error::new(io::ErrorKind::InvalidInput, text)
        };
        number(word).map(Some).ok_or_else(unknown)
    };
    words.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(user: &[&str], group: &[&str], cgroup: &[&str]) -> HostSection {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        let senders = Senders {
            user: words(user),
            group: words(group),
            cgroup: words(cgroup),
            unit: Vec::new(),
        };
        HostSection { senders, outbound: Vec::new(), counted: Vec::new() }
    }

    #[test]
    fn each_combination_is_one_check() {
        let any = SenderCheck::default();
        assert_eq!(of_section(&section(&[], &[], &[]), None).unwrap(), [any]);
        let both = of_section(&section(&["root", "77"], &["root"], &[]), None).unwrap();
        let of = |user| SenderCheck { user: Some(user), group: Some(0), ..any };
        assert_eq!(both, [of(0), of(77)]);
    }

    #[test]
    fn a_group_that_is_not_there_has_no_sender_and_an_unknown_user_is_an_error() {
        assert_eq!(of_section(&section(&["root"], &[], &["no-such.slice"]), None).unwrap(), []);
        let error = of_section(&section(&["no-such-user"], &[], &[]), None).unwrap_err();
        assert!(error.to_string().contains("/etc/passwd has no user `no-such-user`"), "{error}");
    }
}
