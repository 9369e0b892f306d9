//! Writes the text of the imported policy. This is the last of the three steps of an import: read,
//! decide, write.

use std::collections::BTreeMap;

use super::decide::Decisions;
use super::filters::{Filter, combine};
use super::map::{Map, MapTable};
use super::request::AttlsOptions;
use crate::draft::{Draft, Item, Toml, name_of, word};
use crate::finding::{Findings, Origin};

/// What the policy is written from, besides the decisions.
pub(super) struct Sources<'a> {
    pub(super) map: &'a Map,
    pub(super) options: AttlsOptions,
    /// The filters in order; `None`: no file contains filters.
    pub(super) filters: Option<&'a [Filter]>,
    /// The line of the first rule, if there is one.
    pub(super) first_rule: Option<&'a Origin>,
    /// The first line of the first file.
    pub(super) first_line: Option<&'a Origin>,
}

/// The text of the policy; `None` after an error.
pub(super) fn write(
    decisions: Decisions,
    sources: &Sources<'_>,
    findings: &mut Findings,
) -> Option<String> {
    let Decisions { mut rules, mut tables } = decisions;
    rename(&mut rules, findings);
    tables.extend(maps(sources.map));
    if sources.options.host
        && let Some(first) = sources.first_line
    {
        tables.insert(0, host(sources.options, first));
        if sources.filters.is_some() {
            let message = "--host does not support IP filter rules";
            let fix = "run the import without the filter rules, or without --host";
            findings.error(first, message, fix);
        }
    }
    if let Some(filters) = sources.filters {
        if sources.options.fail_closed
            && let Some(first) = sources.first_rule
        {
            let message = "--fail-closed has no effect on filters: as on z/OS, a connection is in \
                           clear if a filter permits it and no TLS rule matches it";
            let fix = "in the IP filter rules, permit only connections that may be in clear";
            findings.changed(first, message, fix);
        }
        rules = combine::combine(&rules, filters, findings);
        rename(&mut rules, findings);
    } else if let Some(first) = sources.first_rule {
        let at = Origin { file: first.file.clone(), line: 1 };
        end(sources.options, &at, &mut rules, findings);
        // The rules may contain a name that was generated for another one.
        rename(&mut rules, findings);
    } else if let Some(first) = sources.first_line
        && !findings.has_errors()
    {
        let message = "there is no TTLSRule: on z/OS all connections were in clear, but tacit \
                       would deny them";
        findings.error(first, message, "import the file that contains the TTLSRule blocks");
    }
    if findings.has_errors() {
        return None;
    }
    if !sources.options.host {
        allow_names(&mut rules);
    }
    let head = "Imported by `tacit import attls`; tacit.toml(5) describes the keys.";
    Draft { head: vec![head.to_owned()], tables, rules }.finish(findings)
}

/// `[host]`.
fn host(options: AttlsOptions, at: &Origin) -> Item {
    let mut item = Item::new("[host]", at);
    item.set("unmatched", if options.fail_closed { "deny" } else { "permit" });
    item
}

/// Lets programs resolve names of the addresses in rules, unless a rule without `remote` already
/// allows it, because the imported policies do not mention names. The parser warns about this
/// setting.
fn allow_names(rules: &mut [Item]) {
    let opens = |item: &&mut Item| {
        item.text("direction") == Some("outbound") && item.value("deny").is_none()
    };
    if rules.iter_mut().filter(opens).any(|item| item.value("remote").is_none()) {
        return;
    }
    for item in rules.iter_mut().filter(opens) {
        if item.texts("remote").iter().all(|remote| is_name(remote)) {
            continue;
        }
        let remote = item.keys.iter().position(|(key, _)| key.starts_with("remote"));
        let place = remote.map_or(item.keys.len(), |place| place + 1);
        item.keys.insert(place, ("names".to_owned(), "*".into()));
    }
}

/// Whether an entry of `remote` is a host name.
fn is_name(remote: &str) -> bool {
    let is_address =
        remote.contains([':', '/']) || remote.starts_with(|one: char| one.is_ascii_digit());
    !is_address && !["loopback", "link-local"].contains(&remote)
}

/// The entries of `[[map.NAME]]`, as the map file has them.
fn maps(map: &Map) -> Vec<Item> {
    let at = Origin { file: map.file.clone().unwrap_or_default().into(), line: 1 };
    let mut items = Vec::new();
    for MapTable { name, entries } in &map.maps {
        for entry in entries {
            let mut item = Item::new(format!("[[map.{}]]", word(name)), &at);
            if let Toml::Table(keys) = entry {
                item.keys.clone_from(keys);
            }
            items.push(item);
        }
    }
    items
}

/// Gives every rule a distinct name that policies allow.
fn rename(items: &mut [Item], findings: &mut Findings) {
    let mut taken: Vec<String> = Vec::new();
    for item in items {
        let Some((_, Toml::Text(name))) = item.keys.iter_mut().find(|(key, _)| key == "name")
        else {
            continue;
        };
        let plain = name_of(name);
        let stem: String = plain.chars().take(NAME_STEM_CHARS_MAX).collect();
        let numbered = (2..).map(|number| format!("{stem}-{number}"));
        let mut candidates = std::iter::once(plain.clone()).chain(numbered);
        let free = candidates.find(|name| !taken.contains(name)).unwrap_or(plain);
        if *name != free {
            findings.info(
                &item.at,
                format!(
                    "in the policy, this rule has the name `{free}`, because the name `{name}` is \
                     not available"
                ),
            );
            name.clone_from(&free);
        }
        taken.push(free);
    }
}

/// Length of a name, less some characters for a number.
const NAME_STEM_CHARS_MAX: usize = 58;

/// Adds the rules for connections that match no other rule.
fn end(options: AttlsOptions, at: &Origin, items: &mut Vec<Item>, findings: &mut Findings) {
    let inbound = if options.host {
        "tacit captures inbound connections only at the ports of rules, and does not affect \
         connections to other ports"
    } else {
        "tacit listens only on the ports of rules; clients on other hosts cannot connect to other \
         ports"
    };
    findings.info(at, inbound);
    if options.fail_closed {
        let message = "connections that match no rule are denied; on z/OS they were in clear";
        findings.changed(
            at,
            message,
            "to permit connections that match no rule, omit --fail-closed",
        );
        return;
    }
    let message = "connections that match no rule of the AT-TLS policy are in clear, as on z/OS: \
                   the last rules of the new policy permit them";
    findings.changed(
        at,
        message,
        "to deny connections that match no rule, run the import with --fail-closed",
    );
    let clear = |name: String, keys: Vec<(&str, Toml)>| {
        let mut item = Item::new("[[rule]]", at);
        item.comments
            .push("WARNING: connections that match no rule above are in clear, as on z/OS.".into());
        item.set("name", name);
        keys.into_iter().for_each(|(key, value)| item.set(key, value));
        item.set("permit", true);
        item
    };
    for (port, sockets) in unmatched_inbound(items) {
        let keys = vec![
            ("direction", "inbound".into()),
            ("listen", sockets.into()),
            ("local-ports", port.into()),
        ];
        items.push(clear(format!("unmatched-{port}"), keys));
    }
    for (number, ports) in unmatched_of_host(items).into_iter().enumerate() {
        let keys = vec![("direction", "inbound".into()), ("local-ports", ports)];
        items.push(clear(format!("unmatched-inbound-{}", number + 1), keys));
    }
    for protocol in ["tcp", "udp"] {
        let keys = vec![("direction", "outbound".into()), ("protocol", protocol.into())];
        items.push(clear(format!("unmatched-{protocol}"), keys));
    }
}

/// Whether an inbound rule may not match a connection to its port.
fn is_narrow(item: &Item) -> bool {
    const NARROWING: [&str; 5] = ["remote", "remote-ports", "program", "user", "when"];
    NARROWING.iter().any(|key| item.value(key).is_some())
}

/// The ports of a captured host whose connections may match no rule.
fn unmatched_of_host(items: &[Item]) -> Vec<Toml> {
    let mut narrow = Vec::new();
    let mut whole = Vec::new();
    for item in items {
        let is_of_host =
            item.text("direction") == Some("inbound") && item.value("listen").is_none();
        let Some(ports) = item.value("local-ports").filter(|_| is_of_host) else { continue };
        let known = if is_narrow(item) { &mut narrow } else { &mut whole };
        if !known.contains(ports) {
            known.push(ports.clone());
        }
    }
    narrow.retain(|ports| !whole.contains(ports));
    narrow
}

/// The sockets whose connections may match no rule, by the port to which they continue.
fn unmatched_inbound(items: &[Item]) -> BTreeMap<u16, Vec<String>> {
    let inbound: Vec<&Item> =
        items.iter().filter(|item| item.text("direction") == Some("inbound")).collect();
    let whole = inbound.iter().filter(|item| !is_narrow(item));
    let taken: Vec<String> = whole.flat_map(|item| item.texts("listen")).collect();
    let mut sockets: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for item in inbound.iter().filter(|item| is_narrow(item)) {
        // If a rule has several ports, the connection goes to the first on which a program listens.
        let port = match item.value("local-ports") {
            Some(Toml::Number(port)) => u16::try_from(*port).ok(),
            _ => None,
        };
        let Some(of_port) = port.map(|port| sockets.entry(port).or_default()) else { continue };
        for socket in item.texts("listen") {
            if !taken.contains(&socket) && !of_port.contains(&socket) {
                of_port.push(socket);
            }
        }
    }
    sockets.retain(|_, sockets| !sockets.is_empty());
    sockets
}
