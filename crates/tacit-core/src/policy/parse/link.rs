//! Parses `[link.NAME]`, and the rules with the key `link`.
//!
//! These rules can select flows only by address, protocol, port and time, because this host cannot
//! verify what the other side reports about programs.

use std::collections::BTreeMap;

use super::names::tables;
use super::rule::{self, Word};
use super::selectors::{addresses, ports};
use super::words::Scope;
use super::{address, value, when};
use crate::flow::{Direction, Protocol};
use crate::message_id::MessageId;
use crate::policy::link::{Link, LinkNames, LinkRule, LinkVerdict};
use crate::policy::selector::{AddressSelector, Selectors};
use crate::policy::text::{TomlTable, TomlValue, word_list};

/// The largest value of `sockets`: the kernel's default limit of open files.
const SOCKETS_MAX: u64 = 1 << 20;

/// The tables `[link.NAME]`; the value of a table with an error is `None`.
pub(super) type Links<'a> = BTreeMap<&'a str, Option<Link>>;

/// Reads all tables `[link.NAME]`.
pub(super) fn read_all<'a>(top: &TomlTable<'a>) -> Links<'a> {
    tables(top, "link", Scope::Links, link)
}

/// The tables, if none has an error.
pub(super) fn finish(links: &Links<'_>) -> Option<BTreeMap<String, Link>> {
    links.iter().map(|(name, link)| Some(((*name).to_owned(), link.clone()?))).collect()
}

/// Warns about links that no rule names: they refuse every socket.
pub(super) fn warn_of_unused(top: &TomlTable<'_>, links: &Links<'_>, rules: &[LinkRule]) {
    for (name, link) in links {
        let is_named = |rule: &LinkRule| rule.links.iter().any(|one| one == name);
        if let Some(link) = link
            && !rules.iter().any(is_named)
        {
            let message = format!("no rule has link = \"{name}\", so the link refuses all sockets");
            let fix = format!("add a rule with link = \"{name}\", or remove [link.{name}]");
            top.report.warning(MessageId("unused"), link.position, message, fix);
        }
    }
}

fn link(name: &str, value: &TomlValue<'_>) -> Option<Link> {
    let table = value.table(Scope::Link, format!("[link.{name}]"))?;
    let listen = table.value("listen").map_or(Some(None), |value| {
        let path = value::file(&value)?;
        if !path.is_absolute() {
            let message =
                format!("`listen` cannot be `{}`: this is not an absolute path", path.display());
            value.error(message, "write the absolute path of a UNIX socket: \"/run/guest.sock\"");
            return None;
        }
        Some(Some(path))
    });
    let sockets = value::count(&table, "sockets", SOCKETS_MAX);
    let names = table.boolean("names", true);
    Some(Link {
        listen: listen?,
        sockets_max: sockets?.unwrap_or(Link::SOCKETS_DEFAULT),
        names: if names? { LinkNames::Resolved } else { LinkNames::Refused },
        position: table.report.position(table.at.start),
    })
}

/// Whether a rule is for links.
pub(super) fn is_for_links(value: &TomlValue<'_>) -> bool {
    value.value.get("link").is_some()
}

/// Reads a rule with `link`; `None` after an error was reported.
pub(super) fn rule(value: &TomlValue<'_>, links: &Links<'_>) -> Option<LinkRule> {
    let table = value.table(Scope::Rule, rule::title(value))?;
    refuse(&table);
    let name = rule::name(&table);
    let fix = "name a link: link = \"guest\", with a table [link.guest]";
    let of_links = table.required("link", fix).and_then(|value| {
        value.each_once(|value| {
            let text = value::name(value)?;
            if links.contains_key(text) {
                return Some(text.to_owned());
            }
            let known: Vec<_> = links.keys().copied().collect();
            let fix = match known.as_slice() {
                [] => format!("add a table [link.{text}]"),
                known => format!("the policy has {}", word_list(known)),
            };
            let message = format!("there is no [link.{text}]");
            value.error_of(MessageId("unknown-name"), message, fix);
            None
        })
    });
    let directions = [("inbound", Direction::Inbound), ("outbound", Direction::Outbound)];
    let fix = "set direction = \"outbound\" for connections that programs of the other side open, \
               or \"inbound\" for addresses on which they listen";
    let direction = table.required("direction", fix).and_then(|value| value.choice(&directions));
    let selectors = match direction? {
        Direction::Outbound => outbound(&table),
        Direction::Inbound => inbound(&table),
    };
    let verdict = match rule::action_word(&table)? {
        Word::Permit => LinkVerdict::Permit,
        Word::Deny => deny(&table.value("deny")?)?,
        Word::Tls | Word::Ipsec => {
            let why = "a link passes sockets to the other side, and moves no bytes";
            let fix = "set `permit = true` here, and `tls` or `ipsec` in the policy of the other \
                       side";
            table.refuse(&["tls", "ipsec"], why, fix);
            return None;
        }
    };
    Some(LinkRule {
        name: name?.to_owned(),
        links: of_links?,
        selectors: selectors?,
        verdict,
        position: table.report.position(table.at.start),
    })
}

/// Reads `deny`. The other side chooses the error that its program gets.
fn deny(value: &TomlValue<'_>) -> Option<LinkVerdict> {
    if value.value.is_bool() {
        return Some(LinkVerdict::Deny);
    }
    value.choice(&[("refused", LinkVerdict::Deny)])
}

fn outbound(table: &TomlTable<'_>) -> Option<Selectors> {
    let why = "the local address of a connection that the other side opens is not known before it \
               connects";
    table.refuse(&["local", "local-ports"], why, "remove the key");
    let words = [Protocol::Tcp, Protocol::Udp].map(|one| (one.word(), one));
    let protocol =
        table.value("protocol").map_or(Some(Protocol::Tcp), |value| value.choice(&words));
    let remote = addresses(table, "remote", |value| {
        read_ip(value, "`remote` of a rule with `link` cannot be a name: only the address is known")
    });
    let remote_ports = ports(table, "remote-ports");
    let when = when::read(table);
    let empty = empty(Direction::Outbound);
    Some(Selectors {
        protocol: protocol?,
        remote: remote?,
        remote_ports: remote_ports?,
        when: when?,
        ..empty
    })
}

fn inbound(table: &TomlTable<'_>) -> Option<Selectors> {
    let why = "the other side accepts the connections, and its rules select clients";
    table.refuse(&["remote", "remote-ports"], why, "remove the key");
    let why = "the other side listens for TCP only";
    table.refuse(&["protocol"], why, "remove the key");
    let fix = "set the addresses on which the other side may listen: local = \"192.0.2.1\"";
    let local = table.required("local", fix).and_then(|value| {
        value.each(|value| read_ip(value, "`local` of a rule with `link` cannot be a name"))
    });
    let fix = "set the ports on which the other side may listen: local-ports = 8080";
    let local_ports = table.required("local-ports", fix).and_then(|value| value.each(value::ports));
    let when = when::read(table);
    let empty = empty(Direction::Inbound);
    Some(Selectors { local: local?, local_ports: local_ports?, when: when?, ..empty })
}

fn empty(direction: Direction) -> Selectors {
    Selectors {
        direction,
        protocol: Protocol::Tcp,
        local: Vec::new(),
        local_ports: Vec::new(),
        remote: Vec::new(),
        remote_ports: Vec::new(),
        program: Vec::new(),
        user: Vec::new(),
        group: Vec::new(),
        cgroup: Vec::new(),
        unit: Vec::new(),
        run: Vec::new(),
        when: None,
    }
}

fn read_ip(value: &TomlValue<'_>, message: &str) -> Option<AddressSelector> {
    let selector = address::selector(value)?;
    if matches!(selector, AddressSelector::Name { .. }) {
        value.error(message, "write the address or network");
        return None;
    }
    Some(selector)
}

/// Reports keys that have no meaning for requests of a link.
fn refuse(table: &TomlTable<'_>) {
    let owners = ["program", "user", "group", "cgroup", "slice", "unit", "run"];
    let why = "the other side of a link may report any program and user, so they never match";
    table.refuse(&owners, why, "remove the key; the rules of the other side select programs");
    let others = [
        "names",
        "mode",
        "log",
        "idle",
        "answers",
        "path",
        "listen",
        "connect",
        "order",
        "connect-timeout",
        "accept-proxy",
        "send-proxy",
        "unix-mode",
        "unix-owner",
        "replace-stale",
        "clear",
    ];
    let why = "a rule with `link` only decides whether the other side gets a socket";
    table.refuse(&others, why, "remove the key, or remove `link`");
}
