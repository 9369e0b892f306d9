//! For `tacit show policy`, lists the settings of `[link.NAME]` and of the rules with `link`.

use std::sync::Arc;

use tacit_core::flow::{Direction, Protocol};
use tacit_core::policy::{
    Link, LinkConnect, LinkNames, LinkRule, LinkSelection, LinkSharing, LinkVerdict, OwnTls,
    Policy, RuleForm, Selectors, Tls,
};

use super::{PolicyTable, Settings, ports, texts, tls_settings};

/// The links of the policy.
pub(super) fn tables(policy: &Policy) -> impl Iterator<Item = PolicyTable> {
    policy.links.iter().map(move |(name, link)| table(policy, name, link))
}

/// The rules for links.
pub(super) fn rules(policy: &Policy) -> impl Iterator<Item = PolicyTable> {
    policy.link_rules.iter().map(move |one| rule(policy, one))
}

fn table(policy: &Policy, name: &str, link: &Link) -> PolicyTable {
    let Link {
        listen,
        tcp,
        vsock,
        connect,
        local,
        runs_max,
        sockets_max,
        sockets_per_host,
        names,
        sharing,
        selection,
        position,
    } = link;
    let mut settings = Settings::default();
    let path = listen.as_ref().map(|path| path.display().to_string());
    let listen = path.or_else(|| tcp.as_ref().map(|tcp| tcp.address.to_string()));
    let listen = listen.or_else(|| vsock.map(|at| at.to_string()));
    settings.add("listen", listen.clone(), listen.is_none());
    settings.add("connect", connect.as_ref().map(ToString::to_string), connect.is_none());
    let is_default = *selection == LinkSelection::Default;
    settings.add("default", is_default, !is_default);
    settings.add("runs", *runs_max, *runs_max == Link::RUNS_MAX);
    settings.add("sockets", *sockets_max, *sockets_max == Link::SOCKETS_DEFAULT);
    settings.add("sockets-per-host", *sockets_per_host, sockets_per_host.is_none());
    settings.add("local", texts(local), local.is_empty());
    let are_resolved = *names == LinkNames::Resolved;
    settings.add("names", are_resolved, are_resolved);
    let is_shared = *sharing == LinkSharing::Shared;
    settings.add("share", is_shared, !is_shared);
    let usual = OwnTls::default();
    if let Some(tcp) = tcp {
        let tls = Tls::Server(Arc::clone(&tcp.tls));
        tls_settings(&mut settings, &tls, &RuleForm::HostInbound, usual);
    }
    if let Some(LinkConnect::Tcp { tls, .. }) = connect {
        tls_settings(&mut settings, &Tls::Client(Arc::clone(tls)), &RuleForm::Outbound, usual);
    }
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
