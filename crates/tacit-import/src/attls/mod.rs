//! Policies of AT-TLS, the TLS of z/OS.
//!
//! ```text
//!   text ─> lex ─> objects ─> effective ─┬─> flows ──┬─> draft ─> policy
//!                     words              ├─> tls  <──┤
//!                                        │           map
//!                                        └─> table of all that holds
//! ```
//!
//! Several files are one namespace. Rules are written in the order in which the original tries
//! them: the highest priority first, by name where it is equal. Defaults that are not safe are
//! raised, and each raise is told.
//!
//! Beside the policy itself, main and image files are followed (`agent`), and IP filter rules are
//! put before it (`filters`). It does not protect packets: IPsec and IKE are refused.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::draft::{Draft, Item, Toml, name_of};
use crate::{Files, Findings, Origin};
use agent::{Agent, Sources};
use conditions::show_ports;
use effective::Effective;
use lex::{Document, Node};
use map::Map;
use names::Names;
use needs::Needs;
use objects::Objects;
use tls::Context;
use words::Kind;

mod agent;
pub mod conditions;
pub mod effective;
mod filters;
mod flows;
mod ignored;
pub mod lex;
pub mod map;
mod map_keys;
mod names;
mod needs;
pub mod objects;
mod start;
mod suites;
pub mod text;
mod time;
mod tls;
pub mod words;

pub use flows::LISTEN_PORTS_MAX;

/// One file, as it was named.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Its name, for findings.
    pub file: &'a str,
    /// What it holds.
    pub bytes: &'a [u8],
}

/// How to import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A server's name is not checked where the original does not either.
    pub keep_no_name_check: bool,
    /// What no rule matches is denied, and not passed in clear.
    pub fail_closed: bool,
}

/// What came of an import.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The policy; `None` if there is any error.
    pub policy: Option<String>,
    /// Every rule with all that holds for it.
    pub effective: String,
}

/// Imports policy files with the map file of a site. Never panics, whatever they hold.
#[must_use]
pub fn import(
    files: &[Input<'_>],
    map: Option<Input<'_>>,
    options: Options,
    findings: &mut Findings,
) -> Imported {
    import_filtered(files, &[], map, options, findings)
}

/// The same with files of IP filter rules; without any of these, nothing is filtered.
#[must_use]
pub fn import_filtered(
    files: &[Input<'_>],
    filters: &[Input<'_>],
    map: Option<Input<'_>>,
    options: Options,
    findings: &mut Findings,
) -> Imported {
    let map = read_map(map, findings);
    let mut documents = |inputs: &[Input<'_>]| -> Vec<Document> {
        inputs.iter().filter_map(|input| read(input, findings)).collect()
    };
    let tls = documents(files);
    let filters = (!filters.is_empty()).then(|| documents(filters));
    import_sources(&Sources { tls, filters }, &map, options, findings)
}

/// The same with files by name: policies, or main and image files of the Policy Agent, which name
/// them; `root` is what stands for `/` in these.
#[must_use]
pub fn import_named(
    paths: &Paths<'_>,
    files: &dyn Files,
    map: Option<Input<'_>>,
    options: Options,
    findings: &mut Findings,
) -> Imported {
    let map = read_map(map, findings);
    let agent = Agent { files, root: paths.root, map: &map };
    let mut sources = Sources::default();
    for path in paths.policies {
        agent.gather(path, &mut sources, findings);
    }
    for path in paths.filters {
        agent.gather_filters(path, &mut sources, findings);
    }
    import_sources(&sources, &map, options, findings)
}

/// Names of files to import.
#[derive(Clone, Copy, Debug)]
pub struct Paths<'a> {
    /// Policies, main and image files.
    pub policies: &'a [String],
    /// Files of IP filter rules, beside those that the others name.
    pub filters: &'a [String],
    /// What stands for `/` in what files name.
    pub root: Option<&'a str>,
}

fn read_map(map: Option<Input<'_>>, findings: &mut Findings) -> Map {
    map.map_or_else(Map::default, |input| {
        let text = String::from_utf8_lossy(input.bytes);
        Map::read(input.file, &text, findings)
    })
}

fn import_sources(
    sources: &Sources,
    map: &Map,
    options: Options,
    findings: &mut Findings,
) -> Imported {
    let documents = &sources.tls;
    let filters = sources.filters.as_ref().map(|documents| {
        let nodes: Vec<Node> = documents.iter().flat_map(|one| one.nodes.iter().cloned()).collect();
        let message = "a TLS rule stands in a file of filters, where nobody looks for it";
        let fix = "put it into a file of its own, and name that without --ipsec";
        refuse_strangers(&nodes, |kind| kind == Kind::Rule, (message, fix), findings);
        filters::read(&nodes, findings)
    });
    let nodes: Vec<Node> = documents.iter().flat_map(|one| one.nodes.iter().cloned()).collect();
    let message = "filters stand in a file of TLS rules, where nobody looks for them";
    let fix = "put them into a file of their own, and name that by --ipsec";
    let is_filter =
        |kind| matches!(kind, Kind::FilterPolicy | Kind::FilterGroup | Kind::FilterRule);
    refuse_strangers(&nodes, is_filter, (message, fix), findings);
    let objects = Objects::read(&nodes, findings);
    let rules = rules(&objects, findings);
    objects.tell_unused(std::iter::empty(), findings);
    let effective = rules.iter().map(Effective::table).collect::<Vec<_>>().join("\n");
    let mut draft = draft(&rules, map, options, findings);
    if let Some(filters) = filters {
        if let (true, Some(first)) = (options.fail_closed, rules.first()) {
            let message = "what a filter permits and no TLS rule is about goes in clear, as \
                           before: --fail-closed leaves what filters permit";
            let fix = "have the filters permit no more than what may go in clear";
            findings.changed(&first.rule.at, message, fix);
        }
        draft.rules = filters::combine::combine(&draft.rules, &filters, findings);
        rename(&mut draft.rules, findings);
    } else if let Some(first) = rules.first() {
        let at = Origin { file: first.rule.at.file.clone(), line: 1 };
        end(options, &at, &mut draft.rules, findings);
    } else if let (Some(document), false) = (documents.first(), findings.has_errors()) {
        let at = Origin { file: Arc::clone(&document.file), line: 1 };
        let message = "there is no TTLSRule: everything went in clear, and would be denied";
        findings.error(&at, message, "name the file that has the rules");
    }
    let policy = match findings.has_errors() {
        true => None,
        false => draft.finish(findings),
    };
    Imported { policy, effective }
}

/// Reports statements that stand in a file of the other kind.
fn refuse_strangers(
    nodes: &[Node],
    is_stranger: impl Fn(Kind) -> bool,
    (message, fix): (&str, &str),
    findings: &mut Findings,
) {
    for node in nodes.iter().filter(|node| Kind::of(&node.keyword).is_some_and(&is_stranger)) {
        findings.error(&node.at, message, fix);
    }
}

/// The statements of one file; `None` if it is no text.
pub fn read(input: &Input<'_>, findings: &mut Findings) -> Option<Document> {
    let at = Origin { file: input.file.into(), line: 1 };
    let decoded = match text::decode(input.bytes) {
        Ok(decoded) => decoded,
        Err(refused) => {
            findings.error(&at, refused.message, refused.fix);
            return None;
        }
    };
    if decoded.encoding != text::Encoding::Utf8 {
        let records = if decoded.records { ", in records of 80" } else { "" };
        findings.info(&at, format!("read as {}{records}", decoded.encoding));
    }
    if decoded.numbered {
        findings.info(&at, "the numbers in columns 73 to 80 are not read");
    }
    Some(Document::read(input.file, &decoded.text, findings))
}

/// The rules in the order in which they are tried.
pub fn rules<'o>(objects: &'o Objects, findings: &mut Findings) -> Vec<Effective<'o>> {
    let rules = objects.of_kind(Kind::Rule);
    let mut rules: Vec<_> = rules.map(|rule| Effective::of(rule, objects, findings)).collect();
    // Rules come by name; that is the order among those of one priority.
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.priority()));
    for pair in rules.windows(2) {
        let [first, second] = pair else { continue };
        if first.priority() != second.priority() {
            continue;
        }
        let (name, priority) = (&first.rule.name, first.priority());
        let both =
            format!("rule `{name}` comes first: by name, the priority {priority} is the same");
        if text::ibm_1047_order(name) > text::ibm_1047_order(&second.rule.name) {
            let message = format!("{both}; in EBCDIC, which has digits last, this one does");
            findings.changed(&second.rule.at, message, "give the two different priorities");
        } else {
            findings.info(&second.rule.at, both);
        }
    }
    rules
}

/// The policy that the rules become; what it lacks is told.
pub fn draft(
    rules: &[Effective<'_>],
    map: &Map,
    options: Options,
    findings: &mut Findings,
) -> Draft {
    let (mut needs, mut names) = (Needs::default(), Names::default());
    let mut context = Context { map, options, needs: &mut needs, names: &mut names, findings };
    let mut made: Vec<(Item, Vec<(IpAddr, u16)>)> = Vec::new();
    for rule in rules {
        made.extend(context.items(rule));
    }
    let listening: Vec<_> = made.iter().map(|(item, listens)| (item, listens.clone())).collect();
    context.check_listens(&listening);
    needs.report(map, findings);
    check_map(rules, map, findings);
    if !findings.has_errors() {
        map.tell_unused(findings);
    }
    let mut items: Vec<Item> = made.into_iter().map(|(item, _)| item).collect();
    rename(&mut items, findings);
    let mut tables = names.tables;
    let at = Origin { file: map.file.clone().unwrap_or_default().into(), line: 1 };
    for (name, entries) in &map.maps {
        for entry in entries {
            let mut item = Item::new(format!("[[map.{}]]", crate::draft::word(name)), &at);
            if let Toml::Table(keys) = entry {
                item.keys.clone_from(keys);
            }
            tables.push(item);
        }
    }
    let head =
        vec!["Imported by `tacit import attls`: see tacit.toml(5) for what it means.".to_owned()];
    Draft { head, tables, rules: items }
}

impl Context<'_> {
    /// What a rule becomes, with the addresses it was given to listen at.
    fn items(&mut self, rule: &Effective<'_>) -> Vec<(Item, Vec<(IpAddr, u16)>)> {
        let Some(direction) = rule.rule.said("Direction") else {
            let fix = "say Inbound for what is accepted, Outbound for what is opened, or Both";
            self.findings.error(&rule.rule.at, "the rule has no `Direction`", fix);
            return Vec::new();
        };
        if !has_condition(rule) {
            let fix = "say a port, an address, a job name or a user ID";
            let message = "the rule has no condition but its direction";
            self.findings.error(&rule.rule.at, message, fix);
            return Vec::new();
        }
        let Some(enabled) = tls::is_enabled(rule, self.findings) else { return Vec::new() };
        if enabled {
            self.tell_ignored(rule);
        }
        let directions: &[bool] = match direction.value.as_str() {
            "Inbound" => &[true],
            "Outbound" => &[false],
            _ => &[true, false],
        };
        let mut items = Vec::new();
        for is_inbound in directions {
            let ways = self.ways(rule, *is_inbound, directions.len() > 1);
            let action = match enabled {
                true => self.tls(rule, *is_inbound).map(|keys| ("tls", Toml::Table(keys))),
                false => Some(("permit", Toml::Flag(true))),
            };
            let Some((action, value)) = action else { continue };
            for way in ways {
                let mut item = Item::new("[[rule]]", &rule.rule.at);
                item.comments.push(comment(rule));
                item.set("name", format!("{}{}", rule.rule.name, way.suffix));
                item.keys.extend(way.keys);
                item.set(action, value.clone());
                if self.is_logged(rule) {
                    item.set("log", true);
                }
                items.push((item, way.listens));
            }
        }
        items
    }

    /// Whether the trace level asks for a line when a connection begins.
    fn is_logged(&mut self, rule: &Effective<'_>) -> bool {
        let trace = rule
            .said("Trace")
            .and_then(|field| Some((field.value.parse::<u32>().ok()?, &field.at)));
        let Some((trace, at)) = trace else { return false };
        // 4: a connection is mapped; 8: events, its start among them.
        let logs = trace & (4 | 8) != 0;
        let message = match logs {
            true => format!("Trace {trace}: begin and end of connections are logged"),
            false => format!("Trace {trace}: errors are logged, as they always are"),
        };
        self.findings.info(at, message);
        logs
    }
}

fn has_condition(rule: &Effective<'_>) -> bool {
    let end = |end: &conditions::End| !end.addresses.is_empty() || !end.ports.is_empty();
    let said = |word: &&str| rule.rule.said(word).is_some();
    let all = ["LocalAddr", "RemoteAddr", "Jobname", "Userid"];
    end(&rule.local) || end(&rule.remote) || all.iter().any(said)
}

/// What stands above a rule.
fn comment(rule: &Effective<'_>) -> String {
    let actions = [Kind::Group, Kind::Environment, Kind::Connection];
    let actions = actions.into_iter().filter_map(|kind| rule.action(kind));
    let names: Vec<&str> = actions.map(|action| action.name.as_str()).collect();
    let ports = rule.local.ports.iter().chain(&rule.remote.ports).map(show_ports);
    let ports: Vec<String> = ports.collect();
    let ports =
        if ports.is_empty() { String::new() } else { format!(", ports {}", ports.join(" ")) };
    format!("priority {}{ports}; actions {}", rule.priority(), names.join(", "))
}

/// Gives every rule a name that policies take, and none two the same.
fn rename(items: &mut [Item], findings: &mut Findings) {
    let mut taken: Vec<String> = Vec::new();
    for item in items {
        let Some((_, Toml::Text(name))) = item.keys.iter_mut().find(|(key, _)| key == "name")
        else {
            continue;
        };
        let plain = name_of(name);
        let free = std::iter::once(plain.clone()).chain((2..).map(|number| {
            let stem: String = plain.chars().take(NAME_STEM_CHARS_MAX).collect();
            format!("{stem}-{number}")
        }));
        let free = free.into_iter().find(|name| !taken.contains(name)).unwrap_or(plain);
        if *name != free {
            findings.info(&item.at, format!("rule `{name}` is named `{free}`"));
            name.clone_from(&free);
        }
        taken.push(free);
    }
}

/// Leaves room for a number behind it.
const NAME_STEM_CHARS_MAX: usize = 58;

/// What happens to what no rule matches.
fn end(options: Options, at: &Origin, items: &mut Vec<Item>, findings: &mut Findings) {
    let inbound = "only what a rule listens for is accepted: other ports are not opened outside";
    findings.info(at, inbound);
    if options.fail_closed {
        let message = "what no rule matches is denied; it went in clear before";
        findings.changed(at, message, "leave out --fail-closed to let it pass");
        return;
    }
    let message = "what no rule matches goes in clear, as before: the last rules permit it";
    findings.changed(at, message, "import with --fail-closed to have it denied");
    let clear = |name: String, keys: Vec<(&str, Toml)>| {
        let mut item = Item::new("[[rule]]", at);
        item.comments
            .push("WARNING: what no rule above matches goes in clear, as it did before.".into());
        item.set("name", name);
        keys.into_iter().for_each(|(key, value)| item.set(key, value));
        item.set("permit", true);
        item
    };
    let inward = unmatched_inbound(items).into_iter().map(|(port, sockets)| {
        let keys = [("direction", "inbound".into()), ("listen", sockets.into())];
        clear(format!("unmatched-{port}"), [&keys[..], &[("local-ports", port.into())]].concat())
    });
    let inward: Vec<Item> = inward.collect();
    items.extend(inward);
    for protocol in ["tcp", "udp"] {
        let keys = vec![("direction", "outbound".into()), ("protocol", protocol.into())];
        items.push(clear(format!("unmatched-{protocol}"), keys));
    }
}

/// The sockets at which some arrive whom no rule is about, by the port they go on to.
fn unmatched_inbound(items: &[Item]) -> BTreeMap<u16, Vec<String>> {
    const NARROWING: [&str; 5] = ["remote", "remote-ports", "program", "user", "when"];
    let inbound = items.iter().filter(|item| item.text("direction") == Some("inbound"));
    let (narrow, whole): (Vec<&Item>, Vec<&Item>) =
        inbound.partition(|item| NARROWING.iter().any(|key| item.value(key).is_some()));
    let taken: Vec<String> = whole.iter().flat_map(|item| item.texts("listen")).collect();
    let mut sockets: BTreeMap<u16, Vec<String>> = BTreeMap::new();
    for item in narrow {
        // Of several ports, the first that a program listens on is gone on to.
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

/// Reports what the map says of rules that do not exist.
fn check_map(rules: &[Effective<'_>], map: &Map, findings: &mut Findings) {
    let Some(file) = &map.file else { return };
    let known: Vec<&str> = rules.iter().map(|rule| rule.rule.name.as_str()).collect();
    for (name, (line, _)) in &map.rules {
        if known.contains(&name.as_str()) {
            continue;
        }
        let at = Origin { file: file.as_str().into(), line: *line };
        let fix = match tacit_core::policy::text::nearest_word(name, &known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "remove it".to_owned(),
        };
        findings.error(&at, format!("no rule is named `{name}`"), fix);
    }
}

#[cfg(test)]
mod tests;
