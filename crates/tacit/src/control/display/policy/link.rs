//! Lists `[link.NAME]` and the rules with `link` for `tacit show policy`.

use tacit_core::flow::{Direction, Protocol};
use tacit_core::policy::{Link, LinkNames, LinkRule, LinkVerdict, Policy, Selectors};

use super::{PolicyTable, Settings, ports, texts};

/// The links of the policy.
pub(super) fn tables(policy: &Policy) -> impl Iterator<Item = PolicyTable> {
    policy.links.iter().map(move |(name, link)| table(policy, name, link))
}

/// The rules for links.
pub(super) fn rules(policy: &Policy) -> impl Iterator<Item = PolicyTable> {
    policy.link_rules.iter().map(move |one| rule(policy, one))
}

fn table(policy: &Policy, name: &str, link: &Link) -> PolicyTable {
    let Link { listen, sockets_max, names, position } = link;
    let mut settings = Settings::default();
    let path = listen.as_ref().map(|path| path.display().to_string());
    settings.add("listen", path, listen.is_none());
    settings.add("sockets", *sockets_max, *sockets_max == Link::SOCKETS_DEFAULT);
    let are_resolved = *names == LinkNames::Resolved;
    settings.add("names", are_resolved, are_resolved);
    settings.table(&format!("[link.{name}]"), Some(name)).at(policy, *position)
}

fn rule(policy: &Policy, rule: &LinkRule) -> PolicyTable {
    let LinkRule { name, links, selectors, verdict, position } = rule;
    let Selectors { direction, protocol, local, local_ports, remote, remote_ports, when, .. } =
        selectors;
    let mut settings = Settings::default();
    settings.add("link", links.clone(), false);
    match direction {
        Direction::Outbound => {
            settings.add("direction", "outbound", false);
            settings.add("protocol", protocol.word(), *protocol == Protocol::Tcp);
            settings.add("remote", texts(remote), remote.is_empty());
            settings.add("remote-ports", ports(remote_ports), remote_ports.is_empty());
        }
        Direction::Inbound => {
            settings.add("direction", "inbound", false);
            settings.add("local", texts(local), false);
            settings.add("local-ports", ports(local_ports), false);
        }
    }
    settings.add("when", when.as_ref().map(ToString::to_string), when.is_none());
    match verdict {
        LinkVerdict::Permit => settings.add("permit", true, false),
        LinkVerdict::Deny => settings.add("deny", "refused", true),
    }
    settings.table("[[rule]]", Some(name)).at(policy, *position)
}
