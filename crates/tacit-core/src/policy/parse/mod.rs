//! Parses policy text into a [`Policy`], or reports all errors in the text, each with line, column
//! and a fix.
//!
//! The parser reads the TOML without serde, because the parser needs the position of each value.
//! Rules for the code:
//!
//! * A function that reads a value returns `None` only after it has reported an error.
//! * No key is ignored silently. A key is an error if the module `words` does not list it. Planned
//!   keys are errors too; the module `not_built` lists them.
//!
//! The parser does no I/O: the agent checks whether files, users, interfaces and names exist.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::agent::{AgentSettings, Limits};
use super::capture::{self, CAPTURE_RANGES_MAX};
use super::content::Policy;
use super::diagnostic::{Diagnostic, DiagnosticSeverity, SourcePosition};
use super::engine::EngineSettings;
use super::filter::FilterRule;
use super::host::HostSettings;
use super::link::LinkRule;
use super::rule::Rule;
use super::source::{POLICY_BYTES_MAX, PolicyText, is_pattern, without_byte_order_mark};
use super::text::{Diagnostics, TomlDocument, TomlTable, TomlValue};
use crate::message_id::MessageId;
use crate::parallel::{self, Joined};
use names::{Names, Tables};
use review::Read;
use words::Scope;

mod activate;
mod address;
mod aliases;
mod ciphers;
mod clear_clients;
mod client_cert;
mod engine;
mod filter;
mod forward;
mod host;
mod ike;
mod ipsec;
mod link;
mod map;
mod metrics;
mod names;
mod not_built;
mod review;
mod rule;
mod run;
mod sa;
mod selectors;
mod starttls;
mod tls;
mod tunnels;
mod value;
mod when;
mod words;

pub(crate) use address::remote_name;
pub use value::{parse_duration, parse_size, show_duration};
pub use words::language;

#[cfg(test)]
mod tests;

/// The largest number of rules in a policy.
pub const RULES_MAX: usize = 65_536;

/// The result of parsing a policy.
#[derive(Clone, Debug)]
pub struct ParsedPolicy {
    /// The policy; `None` if there is any error.
    pub policy: Option<Policy>,
    /// Errors and warnings in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
}

/// Which findings about a policy the caller shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingsShown {
    /// Errors and warnings.
    All,
    /// Only errors. Warnings for which each rule is compared with others are omitted, because the
    /// comparison takes a fifth of the time.
    Errors,
}

/// Parses a policy without the files that it includes. Does not panic on any text.
#[must_use]
pub fn parse(text: &str) -> ParsedPolicy {
    parse_files(&PolicyText::new(text), FindingsShown::All)
}

/// Parses a policy with the files that it includes. Does not panic on any text.
#[must_use]
pub fn parse_files(files: &PolicyText, shown: FindingsShown) -> ParsedPolicy {
    let text = without_byte_order_mark(files.text());
    if text.len() > POLICY_BYTES_MAX {
        let message =
            format!("the policy has {} bytes; the limit is {POLICY_BYTES_MAX}", text.len());
        let fix = "replace several rules by one rule that has a list of addresses, a network or a \
                   port range";
        let error = Diagnostic::error(MessageId("policy-too-large"), START, message).with_fix(fix);
        return ParsedPolicy { policy: None, diagnostics: vec![error] };
    }
    let document = TomlDocument::parse(text);
    let report = Diagnostics::of_files(&document, files.later_files());
    let top = TomlTable::top(&report, &document, Scope::Policy, "the top of the file");
    let policy = policy(&top, shown)
        .map(|policy| Policy { included: files.included().cloned().collect(), ..policy });
    let diagnostics = report.finish();
    let sound = diagnostics.iter().all(|finding| finding.severity == DiagnosticSeverity::Warning);
    debug_assert!(
        !sound || policy.is_some(),
        "the parser returned no policy, but reported no error"
    );
    ParsedPolicy { policy: policy.filter(|_| sound), diagnostics }
}

const START: SourcePosition = SourcePosition { file: 0, line: 1, column: 1 };

fn policy(top: &TomlTable<'_>, shown: FindingsShown) -> Option<Policy> {
    let version = version(top);
    let include = include(top);
    let names = Names::read(top);
    let inner = ike::InnerUsers::default();
    let ikes = ike::read_all(top, &names, &inner);
    let sas = sa::read_all(top, &ikes, &inner);
    let names = names.with_ikes(ikes).with_sas(sas).with_activations(activate::read_all(top));
    let agent = agent(top);
    let engine = engine::read(top);
    let limits = limits(top);
    let host = host::read(top);
    let path = rule::path(top);
    let links = link::read_all(top, &names);
    let tables = (&names, &links);
    let settings = (agent.as_ref(), host.as_ref().and_then(Option::as_ref));
    let rules = rules(top, tables, settings, shown);
    if let Some(rules) = &rules {
        // A rule with an error may use a table that now seems unused.
        names.warn_of_unused();
        link::warn_of_unused(top, &links, &rules.of_links);
    }
    let tables = names.finish();
    version?;
    let includes = include?;
    let agent = agent?;
    let engine = engine?;
    let apart = |engine: &EngineSettings| engine::check_apart(top, engine, &agent.placement_cpus);
    if !engine.as_ref().is_none_or(apart) {
        return None;
    }
    let Tables { identities, trusts, maps, ikes, sas, activations } = tables?;
    let links = link::finish(&links)?;
    let Rules { of_flows: rules, of_links: link_rules, filters } = rules?;
    Some(Policy {
        identities,
        trusts,
        maps,
        ikes,
        sas,
        activations,
        links,
        link_rules,
        rules,
        filters,
        agent,
        engine,
        host: host?,
        limits: limits?,
        path: path?.unwrap_or_default(),
        includes,
        included: Vec::new(),
    })
}

/// Checks the version of the language; only 1 exists.
fn version(top: &TomlTable<'_>) -> Option<()> {
    let value = top.required("version", "begin the file with `version = 1`")?;
    let Some(number) = value.value.as_integer() else {
        value.wrong_type("a whole number: `version = 1`");
        return None;
    };
    if number.digits != "1" {
        let message = format!("version {number} of the policy language is not known");
        value.error(
            message,
            "write `version = 1`, or use the tacit version for which the policy was written",
        );
        return None;
    }
    Some(())
}

/// Reads the patterns of files to include. [`PolicyText::includes`] returns the patterns of a text
/// before it is parsed.
fn include(top: &TomlTable<'_>) -> Option<Vec<String>> {
    let Some(value) = top.value("include") else { return Some(Vec::new()) };
    let check = |item: &TomlValue<'_>| {
        let text = item.string()?;
        if !is_pattern(text) {
            let message = format!("`include` cannot be `{text}`");
            let fix = "write the path of a file, or a pattern such as \"conf.d/*.toml\"";
            item.error(message, fix);
            return None;
        }
        Some(text.to_owned())
    };
    value.each_once(check)
}

/// The largest number of data workers. No machine has more CPUs.
const WORKERS_MAX: u64 = 1024;
/// The largest length of a congestion control's name: `TCP_CA_NAME_MAX` without its NUL.
const CONGESTION_CONTROL_BYTES_MAX: usize = 15;

fn agent(top: &TomlTable<'_>) -> Option<AgentSettings> {
    let Some(value) = top.value("agent") else { return Some(AgentSettings::default()) };
    let table = value.table(Scope::Agent, "[agent]")?;
    let workers = value::count(&table, "workers", WORKERS_MAX);
    let congestion_control = table.value("congestion-control").map_or(Some(None), |value| {
        let name = value.string()?;
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-';
        if name.len() > CONGESTION_CONTROL_BYTES_MAX || !name.bytes().all(plain) {
            let message = format!("`congestion-control` cannot be `{name}`");
            let fix = "write a name that `sysctl net.ipv4.tcp_available_congestion_control` \
                       prints, such as \"cubic\"";
            value.error(message, fix);
            return None;
        }
        Some(Some(name.to_owned()))
    });
    let chain_cache = table.boolean("chain-cache", true);
    let signer = table.boolean("signer", true);
    let sandbox = table.boolean("sandbox", true);
    let accounting = table.boolean("accounting", true);
    let trace = table.boolean("trace", true);
    let engine::Places { placement, cpus } = engine::placement(&table)?;
    let metrics = metrics::read(&table);
    let aliases = aliases::read(&table);
    let metrics::MetricsKeys { metrics, metrics_clear } = metrics?;
    Some(AgentSettings {
        workers: workers?,
        congestion_control: congestion_control?,
        chain_cache: chain_cache?,
        signer: signer?,
        sandbox: sandbox?,
        accounting: accounting?,
        trace: trace?,
        placement,
        placement_cpus: cpus,
        metrics,
        metrics_clear,
        aliases: aliases?,
    })
}

/// The largest `connections` and `handshakes`: the kernel's default limit of open files.
const CONNECTIONS_MAX: u64 = 1 << 20;
const DRAIN_MIN: Duration = Duration::from_secs(1);
const DRAIN_MAX: Duration = Duration::from_secs(30 * 86_400);

fn limits(top: &TomlTable<'_>) -> Option<Limits> {
    let Some(value) = top.value("limits") else { return Some(Limits::default()) };
    let table = value.table(Scope::Limits, "[limits]")?;
    let connections = value::count(&table, "connections", CONNECTIONS_MAX);
    let handshakes = value::count(&table, "handshakes", CONNECTIONS_MAX);
    let default = Limits::default();
    let all = handshakes.flatten().unwrap_or(default.handshakes);
    let per_rule = part(&table, "handshakes-per-rule", all);
    let per_source = part(&table, "handshakes-per-source", all);
    let of_source = value::count(&table, "connections-per-source", CONNECTIONS_MAX);
    let of_rule = value::count(&table, "connections-per-rule", CONNECTIONS_MAX);
    let of_run = value::count(&table, "connections-per-run", CONNECTIONS_MAX);
    let drain = table
        .value("drain")
        .map_or(Some(None), |value| value::duration(&value, DRAIN_MIN, DRAIN_MAX).map(Some));
    Some(Limits {
        connections: connections?.unwrap_or(default.connections),
        handshakes: handshakes?.unwrap_or(default.handshakes),
        // The same fractions as in the defaults.
        handshakes_per_rule: per_rule?.unwrap_or_else(|| all.div_ceil(4) * 3).min(all),
        handshakes_per_source: per_source?.unwrap_or_else(|| all.div_ceil(4)),
        connections_per_source: of_source?,
        connections_per_rule: of_rule?,
        connections_per_run: of_run?,
        drain: drain?,
    })
}

/// Reads a limit that must not exceed `handshakes`.
fn part(table: &TomlTable<'_>, key: &'static str, all: usize) -> Option<Option<usize>> {
    let part = value::count(table, key, CONNECTIONS_MAX)?;
    if let Some(part) = part.filter(|part| *part > all)
        && let Some(value) = table.value(key)
    {
        let message =
            format!("`{key}` is {part}, but must not exceed `handshakes`, which is {all}");
        value.error(message, format!("set `{key}` to at most {all}, or increase `handshakes`"));
        return None;
    }
    Some(part)
}

/// The rules of a policy.
struct Rules {
    /// Rules for flows of this host and its runs.
    of_flows: Vec<Arc<Rule>>,
    /// Rules for requests of links.
    of_links: Vec<LinkRule>,
    /// Rules for packets of this host and of tunnels.
    filters: Vec<FilterRule>,
}

/// A thread is started for at least so many rules.
const THREAD_RULES_MIN: usize = 256;

/// Rules that were read, with their texts; `None` after an error was reported.
#[derive(Default)]
struct ReadRules<'r, 'a> {
    of_links: Vec<Option<LinkRule>>,
    filters: Vec<(&'r TomlValue<'a>, Option<FilterRule>)>,
    of_flows: Vec<(&'r TomlValue<'a>, Option<Arc<Rule>>)>,
}

impl<'r, 'a> ReadRules<'r, 'a> {
    /// Reads all rules of a policy.
    fn of(
        items: &'r [TomlValue<'a>],
        (names, links): (&Names<'_>, &link::Links<'_>),
        host: Option<&HostSettings>,
    ) -> Self {
        let read_part = |part: Range<usize>| {
            let mut read = Self::default();
            for item in &items[part] {
                if link::is_for_links(item) {
                    read.of_links.push(link::rule(item, links));
                } else if filter::is_filter(item) {
                    let rule = filter::rule(item, read.of_flows.len(), host, names);
                    read.filters.push((item, rule));
                } else {
                    read.of_flows.push((item, read_flow_rule(item, names, host)));
                }
            }
            read
        };
        Self::joined(parallel::map_parts(0..items.len(), THREAD_RULES_MIN, read_part))
    }

    /// Joins the parts of a policy.
    fn joined(parts: Vec<Self>) -> Self {
        let mut all = Self::default();
        for mut part in parts {
            // A filter rule was read with the number of earlier rules in its own part.
            for filter in part.filters.iter_mut().filter_map(|(_, filter)| filter.as_mut()) {
                filter.flows_before += all.of_flows.len();
            }
            all.of_links.append(&mut part.of_links);
            all.filters.append(&mut part.filters);
            all.of_flows.append(&mut part.of_flows);
        }
        all
    }
}

fn read_flow_rule(
    item: &TomlValue<'_>,
    names: &Names<'_>,
    host: Option<&HostSettings>,
) -> Option<Arc<Rule>> {
    let rule = rule::read(item, names)?;
    Some(Arc::new(host::with_settings(host, item, rule)))
}

fn rules(
    top: &TomlTable<'_>,
    tables: (&Names<'_>, &link::Links<'_>),
    settings: (Option<&AgentSettings>, Option<&HostSettings>),
    shown: FindingsShown,
) -> Option<Rules> {
    let (names, links) = tables;
    let (_, host) = settings;
    let items = rule_items(top, links, host)?;
    let rules = ReadRules::of(&items, tables, host);
    let sound = rules.of_flows.iter();
    let sound: Vec<_> =
        sound.filter_map(|(value, rule)| Some(Read { value, rule: rule.as_ref()? })).collect();
    let Joined { other: takes_too_many, own: () } = parallel::join(
        sound.len(),
        || capture::takes_too_many(sound.iter().map(|read| read.rule)),
        || {
            review::names(&items);
            check_filters(host, &rules);
            review::rules(top.report, &sound, shown);
            tunnels::check(top.report, names, &sound);
            check_settings(settings, &sound);
        },
    );
    let ReadRules { of_links, filters, of_flows } = rules;
    let rules = Rules {
        of_flows: of_flows.into_iter().map(|(_, rule)| rule).collect::<Option<_>>()?,
        of_links: of_links.into_iter().collect::<Option<_>>()?,
        filters: filters.into_iter().map(|(_, filter)| filter).collect::<Option<_>>()?,
    };
    if takes_too_many {
        let message = format!(
            "the outbound rules need {CAPTURE_RANGES_MAX} or more ranges of addresses and ports, \
             which are too many for the kernel"
        );
        let fix = "replace several rules by one rule with a network or a port range";
        top.report.error(MessageId("too-many-ranges"), &(0..0), message, fix);
    }
    Some(rules)
}

/// Returns the texts of all rules.
fn rule_items<'a>(
    top: &TomlTable<'a>,
    links: &link::Links<'_>,
    host: Option<&HostSettings>,
) -> Option<Vec<TomlValue<'a>>> {
    let value = top.value("rule");
    if let Some(value) = value.as_ref().filter(|value| !value.value.is_array()) {
        value.error("`rule` is not a list of rules", "begin each rule with [[rule]]");
        return None;
    }
    let items = value.map_or(Some(Vec::new()), |value| value.list(RULES_MAX))?;
    // With such a link, the policy of the other side has the rules.
    let is_of_link_client = links.values().flatten().any(|link| link.connect.is_some());
    if items.is_empty() && !is_of_link_client {
        let (effect, fix) = match host {
            Some(_) => ("the policy has no rule, so it captures nothing", "add a [[rule]]"),
            None => (
                "the policy has no rule, so every connection is denied",
                "add a [[rule]]; connections that match no rule are denied",
            ),
        };
        top.report.warning(MessageId("no-rules"), START, effect, fix);
    }
    Some(items)
}

/// Checks the rules against the settings of the policy.
fn check_settings(
    (agent, host): (Option<&AgentSettings>, Option<&HostSettings>),
    rules: &[Read<'_, '_>],
) {
    if let Some(agent) = agent {
        aliases::check_rules(agent.aliases, rules);
    }
    match host {
        Some(host) => host::check_rules(host, rules),
        None => host::refuse_rules(rules),
    }
}

fn check_filters(host: Option<&HostSettings>, rules: &ReadRules<'_, '_>) {
    if rules.filters.is_empty() {
        return;
    }
    let of_flows: Vec<_> = rules.of_flows.iter().map(|(_, rule)| rule.as_deref()).collect();
    let filters = rules.filters.iter();
    let filters: Vec<_> =
        filters.filter_map(|(value, filter)| Some((*value, filter.as_ref()?))).collect();
    filter::check(host, &of_flows, &filters);
}
