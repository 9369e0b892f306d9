//! Parses the test file of `tacit test`. Each error has a line, a column and a fix.
//!
//! ```toml
//! policy = "policy.toml"
//! [[flow]]
//! name      = "psql reaches the database"
//! direction = "outbound"              # the default, unless `listen` is given
//! remote    = "db.corp.example"       # an address or a name, with or without a port
//! address   = "10.7.0.9"              # what the name resolves to
//! ports     = [5432, "6000-6002"]     # one test for each port
//! protocol  = "tcp"
//! program   = "/usr/bin/psql"
//! user      = "orders"
//! run       = "nightly"
//! link      = "guest"                 # a request of this link: omit program, user and run
//! at        = "2025-06-01T12:00:00Z"  # default: now
//! expect    = "db"                    # a rule, or "denied"
//! action    = "tls"
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tacit_core::flow::{Address, Direction, Flow, Protocol};
use tacit_core::message_id::MessageId;
use tacit_core::policy::text::{
    Diagnostics, TableKeys, TableSchema, TomlDocument, TomlTable, TomlValue, nearest_word,
    word_list,
};
use tacit_core::policy::{Diagnostic, DiagnosticSeverity, Policy, SourcePosition};

use crate::explain::flow::{FlowDescription, NoFlow};
use crate::explain::time;

/// Maximum number of `[[flow]]` tables in a file.
const FLOWS_MAX: usize = 10_000;
/// Maximum number of ports in one `[[flow]]`; each port is a test.
const PORTS_MAX: usize = 64;
/// The address of a remote name without `address`: a reserved one, which rules do not contain.
const UNKNOWN_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(240, 0, 0, 1));
/// The port of a client that connects to a listening address.
const CLIENT_PORT: u16 = 40_000;
/// The value of `expect` for a flow that is denied, by a rule or because no rule matches.
const DENIED: &str = "denied";

const TOP: TableSchema = schema(&["policy", "flow"]);
const FLOW: TableSchema = schema(&[
    "name",
    "direction",
    "protocol",
    "listen",
    "local",
    "remote",
    "address",
    "ports",
    "names",
    "program",
    "user",
    "group",
    "cgroup",
    "run",
    "link",
    "at",
    "expect",
    "action",
]);

const fn schema(keys: &'static [&'static str]) -> TableSchema {
    TableSchema { keys: TableKeys::Fixed(keys), planned: &[], home: |_| None }
}

/// A parsed file.
#[derive(Debug)]
pub(super) struct TestFile {
    /// The policy file, relative to this file.
    pub(super) policy: Option<PathBuf>,
    /// The tests, one for each flow and port.
    pub(super) flows: Vec<FlowTest>,
}

/// A flow and its expected decision.
#[derive(Debug)]
pub(super) struct FlowTest {
    /// The line of its `[[flow]]`.
    pub(super) line: usize,
    /// Its name, or its remote address if it has no name.
    pub(super) name: String,
    /// The flow.
    pub(super) flow: Flow,
    /// The link whose other side requests the flow.
    pub(super) link: Option<String>,
    /// The expected decision.
    pub(super) expectation: Expectation,
}

/// The expected decision: a rule, an action, or both.
#[derive(Clone, Debug)]
pub(super) struct Expectation {
    /// The rule.
    pub(super) rule: Option<ExpectedRule>,
    /// The action: `permit`, `deny` or `tls`.
    pub(super) action: Option<&'static str>,
}

/// The expected rule.
#[derive(Clone, Debug)]
pub(super) enum ExpectedRule {
    /// The flow is denied, by any rule or because no rule matches.
    Denied,
    /// This rule must decide.
    Rule {
        /// Its name.
        name: String,
        /// The position of its name in the file.
        position: SourcePosition,
    },
}

impl TestFile {
    /// Parses the text.
    ///
    /// # Errors
    /// All errors in the text.
    pub(super) fn parse(text: &str) -> Result<Self, Vec<Diagnostic>> {
        let document = TomlDocument::parse(text);
        let report = Diagnostics::new(&document);
        let file = read(&TomlTable::top(&report, &document, TOP, "the top of the file"));
        let found = report.finish();
        match file {
            Some(file) if found.iter().all(|one| one.severity == DiagnosticSeverity::Warning) => {
                Ok(file)
            }
            _ => Err(found),
        }
    }

    /// An error for each expected rule that the policy does not have.
    pub(super) fn unknown_rules(&self, policy: &Policy) -> Vec<Diagnostic> {
        let names: Vec<&str> = policy.rules.iter().map(|rule| rule.name.as_str()).collect();
        let of_links: Vec<&str> = policy.link_rules.iter().map(|rule| rule.name.as_str()).collect();
        let mut unknown = Vec::new();
        for test in &self.flows {
            let Some(ExpectedRule::Rule { name, position }) = &test.expectation.rule else {
                continue;
            };
            let known = if test.link.is_some() { &of_links } else { &names };
            if !known.contains(&name.as_str()) {
                let fix = match nearest_word(name, known) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("write the name of a rule, or `{DENIED}`"),
                };
                let message = format!("the policy has no rule `{name}`");
                unknown.push(
                    Diagnostic::error(MessageId("unknown-name"), *position, message).with_fix(fix),
                );
            }
        }
        // A flow with several ports has several tests, but one error.
        unknown.dedup();
        unknown
    }
}

fn read(top: &TomlTable<'_>) -> Option<TestFile> {
    let policy = top.value("policy").map(|value| value.string().map(PathBuf::from));
    let flows = top.required("flow", "add a [[flow]] with `remote` and `expect`")?;
    // Parses all tables, so that one run reports all errors.
    let read: Vec<Option<Vec<FlowTest>>> = flows.list(FLOWS_MAX)?.iter().map(flow).collect();
    let flows: Option<Vec<_>> = read.into_iter().collect();
    let policy = match policy {
        Some(policy) => Some(policy?),
        None => None,
    };
    Some(TestFile { policy, flows: flows?.into_iter().flatten().collect() })
}

/// The tests of one `[[flow]]`; `None` only if an error was reported.
fn flow(value: &TomlValue<'_>) -> Option<Vec<FlowTest>> {
    let table = value.table(FLOW, "[[flow]]")?;
    let line = value.report.position(value.at.start).line;
    let name = optional(&table, "name", TomlValue::string);
    let expectation = expectation(&table);
    let direction = optional(&table, "direction", |value| {
        value.choice(&[("inbound", Direction::Inbound), ("outbound", Direction::Outbound)])
    });
    let protocol = optional(&table, "protocol", |value| {
        value.choice(&[("tcp", Protocol::Tcp), ("udp", Protocol::Udp)])
    });
    let listen = optional(&table, "listen", address);
    let local = optional(&table, "local", address);
    let link = link(&table);
    let is_bound =
        link.as_ref().is_some_and(Option::is_some) && direction == Some(Some(Direction::Inbound));
    let remote = if is_bound { bound(&table) } else { remote(&table) };
    let ip = optional(&table, "address", |value| {
        let ip = value.string()?.parse::<IpAddr>().ok();
        if ip.is_none() {
            value.error("`address` is not an IP address", "write address = \"10.7.0.9\"");
        }
        ip
    });
    let ports = optional(&table, "ports", ports);
    let names =
        optional(&table, "names", |value| value.each(|value| value.string().map(str::to_owned)));
    let [program, user, group, cgroup, run] = ["program", "user", "group", "cgroup", "run"]
        .map(|key| optional(&table, key, |value| value.string().map(str::to_owned)));
    let at = optional(&table, "at", |value| {
        time(value.string()?).map_err(|fix| value.error("`at` is not a time", fix)).ok()
    });
    let description = FlowDescription {
        direction: direction?,
        protocol: protocol?.unwrap_or(Protocol::Tcp),
        listen: listen?,
        link: link?,
        local: local?,
        remote: Address::Unnamed,
        names: names?.unwrap_or_default(),
        program: program?.map(PathBuf::from),
        user: user?,
        group: group?,
        cgroup: cgroup?,
        run: run?,
        at: at?,
    };
    let name = name?;
    let expectation = expectation?;
    // Rules usually do not depend on the client's own port.
    let usual_port = description.listen.is_some().then_some(CLIENT_PORT);
    let remotes = remotes(&table, remote?, ip?, ports?, usual_port)?;
    let several = remotes.len() > 1;
    let description_link = description.link.clone();
    let mut tests = Vec::with_capacity(remotes.len());
    for End { address, host, shown } in remotes {
        let mut description = FlowDescription { remote: address.clone(), ..description.clone() };
        description.names.extend(host);
        let flow = match description.into_flow() {
            Ok(flow) => flow,
            Err(error) => return refuse(&table, error),
        };
        let name = match (name, address.port()) {
            (None, _) if is_bound => flow.local.to_string(),
            (None, _) => shown,
            (Some(name), Some(port)) if several => format!("{name}, port {port}"),
            (Some(name), _) => name.to_owned(),
        };
        let link = description_link.clone();
        tests.push(FlowTest { line, name, flow, link, expectation: expectation.clone() });
    }
    Some(tests)
}

fn remote(table: &TomlTable<'_>) -> Option<Remote> {
    let fix = "add remote = \"10.7.0.9:5432\" or remote = \"db.example:5432\"";
    table.required("remote", fix).and_then(|value| Remote::read(&value))
}

/// The end of an address that the other side of a link binds: its clients are not known.
fn bound(table: &TomlTable<'_>) -> Option<Remote> {
    let why = "a flow with `link` and direction = \"inbound\" has no remote address: the program \
               only binds a local address, and no client has connected yet";
    let fix = "remove `{key}`, and set `local` to the address that the program binds";
    table.refuse(&["remote", "address", "ports"], why, fix);
    let fix = "add the address that the program binds: local = \"192.0.2.1:8080\"";
    table.required("local", fix).map(|_| Remote::Unix(Address::Unnamed))
}

/// The link whose other side requests the flow.
#[expect(
    clippy::option_option,
    reason = "returns `None` after an error, and `Some(None)` if the key is missing"
)]
fn link(table: &TomlTable<'_>) -> Option<Option<String>> {
    let link = optional(table, "link", |value| value.string().map(str::to_owned));
    if table.holds("link") {
        let keys = ["listen", "names", "program", "user", "group", "cgroup", "run"];
        let why = "rules with `link` compare only address, port, protocol and time, because tacit \
                   cannot verify the other facts that the run reports";
        table.refuse(&keys, why, "remove this key from [[flow]]");
    }
    link
}

fn refuse<T>(table: &TomlTable<'_>, error: NoFlow) -> Option<T> {
    match error {
        NoFlow::ListenMissing => {
            let fix = "add listen = \"ADDRESS\", the listening address of a rule";
            table.incomplete("a test of an inbound flow needs the key `listen`", fix);
        }
        NoFlow::ListenUnexpected => {
            table.refuse(&["listen"], "an outbound flow has no listening address", "remove it");
        }
    }
    None
}

/// The value of an optional key: `Some(None)` if it is absent, `None` if it is invalid.
#[expect(
    clippy::option_option,
    reason = "returns `None` after an error, and `Some(None)` if the key is missing"
)]
fn optional<'t, T>(
    table: &TomlTable<'t>,
    key: &'static str,
    read: impl Fn(&TomlValue<'t>) -> Option<T>,
) -> Option<Option<T>> {
    table.value(key).map_or(Some(None), |value| read(&value).map(Some))
}

fn address(value: &TomlValue<'_>) -> Option<Address> {
    let read = value.string()?.parse();
    read.map_err(|error: String| value.error(error, "write \"192.0.2.1:443\" or \"unix:/PATH\""))
        .ok()
}

/// The remote address as written in the file.
enum Remote {
    /// A UNIX socket.
    Unix(Address),
    Address(IpAddr, Option<u16>),
    Name(String, Option<u16>),
}

impl Remote {
    fn read(value: &TomlValue<'_>) -> Option<Self> {
        let text = value.string()?;
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Some(Self::Address(address.ip(), Some(address.port())));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Some(Self::Address(ip, None));
        }
        if text.starts_with("unix:") {
            return text.parse().ok().map(Self::Unix);
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, port.parse().ok().map(Some)),
            None => (text, Some(None)),
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        match port {
            Some(port) if !host.is_empty() && host.chars().all(is_host) => {
                let host = host.trim_end_matches('.').to_ascii_lowercase();
                Some(Self::Name(host, port))
            }
            _ => {
                let message = format!("`{text}` is not a valid `remote`");
                value.error(
                    message,
                    "write \"10.7.0.9:5432\", \"[2001:db8::1]:443\" or \"db.example:5432\"",
                );
                None
            }
        }
    }
}

/// The remote end of one test.
struct End {
    address: Address,
    /// The name that the program resolved.
    host: Option<String>,
    /// The name in the results.
    shown: String,
}

fn remotes(
    table: &TomlTable<'_>,
    remote: Remote,
    address: Option<IpAddr>,
    ports: Option<Vec<u16>>,
    usual_port: Option<u16>,
) -> Option<Vec<End>> {
    let (ip, host, port) = match remote {
        Remote::Unix(address) => {
            let shown = address.to_string();
            return Some(vec![End { address, host: None, shown }]);
        }
        Remote::Address(ip, port) => {
            if address.is_some() {
                let why = "`address` is not needed, because `remote` is already an address";
                table.refuse(&["address"], why, "remove `address`");
                return None;
            }
            (ip, None, port)
        }
        Remote::Name(host, port) => (address.unwrap_or(UNKNOWN_ADDRESS), Some(host), port),
    };
    if port.is_some() && ports.is_some() {
        let why = "`ports` is not needed, because `remote` already has a port";
        table.refuse(&["ports"], why, "remove `ports`, or the port in `remote`");
        return None;
    }
    let Some(ports) = ports.or_else(|| port.or(usual_port).map(|port| vec![port])) else {
        table.missing("ports", "write remote = \"ADDRESS:PORT\", or add ports = [443]");
        return None;
    };
    let end = |port: u16| {
        let address = SocketAddr::new(ip, port);
        let shown = match &host {
            Some(host) => format!("{host}:{port}"),
            None => address.to_string(),
        };
        End { address: address.into(), host: host.clone(), shown }
    };
    Some(ports.into_iter().map(end).collect())
}

fn ports(value: &TomlValue<'_>) -> Option<Vec<u16>> {
    let fix = "write 443, \"8000-8003\" or a list of such values";
    let ranges = value.each(|value| {
        if value.value.as_integer().is_some() {
            let port = value.integer(1, u16::MAX.into())?;
            return u16::try_from(port).ok().map(|port| port..=port);
        }
        let range = value.string()?.split_once('-').and_then(|(first, last)| {
            let range = first.trim().parse().ok()?..=last.trim().parse::<u16>().ok()?;
            (*range.start() > 0 && !range.is_empty()).then_some(range)
        });
        if range.is_none() {
            value.error("`ports` is not a range of ports", fix);
        }
        range
    })?;
    let count: usize = ranges.iter().map(ExactSizeIterator::len).sum();
    if count > PORTS_MAX {
        let message = format!("`ports` has {count} ports, more than the limit of {PORTS_MAX}");
        value.error_of(
            MessageId("too-many"),
            message,
            "test only the first and the last port of each range",
        );
        return None;
    }
    Some(ranges.into_iter().flatten().collect())
}

fn expectation(table: &TomlTable<'_>) -> Option<Expectation> {
    let rule = optional(table, "expect", |value| {
        let name = value.string()?;
        Some(match name {
            DENIED => ExpectedRule::Denied,
            _ => ExpectedRule::Rule {
                name: name.to_owned(),
                position: value.report.position(value.at.start),
            },
        })
    });
    let actions = ["permit", "deny", "tls", "ipsec"];
    let action =
        optional(table, "action", |value| value.choice(&actions.map(|action| (action, action))));
    let expectation = Expectation { rule: rule?, action: action? };
    match (&expectation.rule, expectation.action) {
        (None, None) => {
            let fix = format!(
                "add expect = \"RULE\", expect = \"{DENIED}\", or `action` with one of the values \
                 {values}",
                values = word_list(&actions)
            );
            table.incomplete("[[flow]] has neither `expect` nor `action`", &fix);
            None
        }
        (Some(ExpectedRule::Denied), Some("permit" | "tls" | "ipsec")) => {
            let why = format!("`action` contradicts `expect`, which is already `{DENIED}`");
            table.refuse(&["action"], &why, "remove `action` or `expect`");
            None
        }
        _ => Some(expectation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_a_position_and_a_fix() {
        let flow = "[[flow]]\nremote = \"10.0.0.1:1\"\nexpect = \"a\"\n";
        for (text, wanted) in [
            (
                "policy = \"p\"\n".to_owned(),
                "1:1: error[missing-key]: the top of the file has no `flow`",
            ),
            (
                "[[flow]]\nexpect = \"a\"\n".to_owned(),
                "1:1: error[missing-key]: [[flow]] has no `remote`",
            ),
            (
                "[[flow]]\nremote = \"10.0.0.1:1\"\n".to_owned(),
                "1:1: error[missing-key]: [[flow]] has neither `expect` nor `action`",
            ),
            (
                format!("{flow}colour = 1\n"),
                "4:1: error[unknown-key]: unknown key `colour` in [[flow]]",
            ),
            (
                format!("{flow}action = \"allow\"\n"),
                "4:10: error[unknown-word]: `action` cannot be `allow`",
            ),
            (
                format!("{flow}ports = 1\n"),
                "4:1: error[misplaced-key]: `ports` does not belong here",
            ),
            (
                format!("{flow}address = \"10.0.0.2\"\n"),
                "4:1: error[misplaced-key]: `address` does not belong",
            ),
            (format!("{flow}at = \"now\"\n"), "4:6: error[invalid-value]: `at` is not a time"),
            (
                format!("{flow}direction = \"inbound\"\n"),
                "1:1: error[missing-key]: a test of an inbound flow needs",
            ),
            (
                format!("{flow}direction = \"outbound\"\nlisten = \"0.0.0.0:1\"\n"),
                "5:1: error[misplaced-key]: `listen` does not belong here",
            ),
            (flow.replace(":1\"", "\""), "1:1: error[missing-key]: [[flow]] has no `ports`"),
            (
                flow.replace("10.0.0.1:1", "a b:1"),
                "2:10: error[invalid-value]: `a b:1` is not a valid `remote`",
            ),
            (
                flow.replace("10.0.0.1:1", "a:1x"),
                "2:10: error[invalid-value]: `a:1x` is not a valid `remote`",
            ),
            (
                format!("{}ports = [\"1-65\"]\n", flow.replace(":1\"", "\"")),
                "4:9: error[too-many]: `ports` has 65 ports",
            ),
            (
                format!("{}ports = [\"9-1\"]\n", flow.replace(":1\"", "\"")),
                "4:10: error[invalid-value]: `ports` is not a range",
            ),
            (
                flow.replace("\"a\"", "\"denied\"\naction = \"tls\""),
                "4:1: error[misplaced-key]: `action` does not belong here",
            ),
        ] {
            let errors = TestFile::parse(&text).unwrap_err();
            let rendered: Vec<_> = errors.iter().map(|error| error.render("f")).collect();
            assert!(rendered.iter().any(|one| one.contains(wanted)), "{text}\n{rendered:#?}");
            assert!(errors.iter().all(|error| error.fix.is_some()), "{rendered:#?}");
        }
    }

    #[test]
    fn any_text_is_parsed_or_refused_with_a_reason() {
        let whole = "policy = \"p\"\n[[flow]]\nremote = \"10.0.0.1\"\nports = [1, \"2-3\"]\n\
                     expect = \"a\"\n";
        assert_eq!(TestFile::parse(whole).unwrap().flows.len(), 3);
        for end in 0..whole.len() {
            if let Err(errors) = TestFile::parse(&whole[..end]) {
                assert!(!errors.is_empty(), "{:?}", &whole[..end]);
            }
        }
    }
}
