//! Defines the output of `tacit show policy`: every setting of the installed policy and its value,
//! including defaults.
//!
//! The output contains the paths of private key files, but no private keys.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tacit_core::dns::{AliasPolicy, AliasRanges};
use tacit_core::flow::{Direction, Protocol};
use tacit_core::policy::map::{CONDITIONS, Conditions};
use tacit_core::policy::{
    Absent, Action, AgentSettings, Answers, Cancel, ChainCheck, ClearClients, ClientCert,
    ClientCertPolicy, ClientTls, ConnectAfter, DataResumption, Deny, EngineClass, EngineSettings,
    ExpiredAnchors, ForwardRule, Group, Identity, IdentityMap, InboundRule, Invalid, Limits,
    NamePattern, OwnTls, PeerName, Placement, Policy, RecheckAction, RelayOn, Revocation, Rule,
    RuleForm, Selectors, ServerTls, SourcePosition, Start, Starttls, StarttlsMode,
    StarttlsProtocol, Suite, Tls, TlsCommon, TlsVersion, Trust, TrustSource, TunnelKeying, Verify,
};

use crate::clock::Rfc3339;
use crate::live::Live;

use super::VERSION;

mod activate;
mod filter;
mod forward;
mod host;
mod ike;
mod link;
mod sa;

/// The installed policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyDisplay {
    /// The version of this format.
    pub version: u32,
    /// The policy file.
    pub file: PathBuf,
    /// The files that it includes, in their order.
    #[serde(default)]
    pub included: Vec<String>,
    /// The number of the installation, from 1.
    pub generation: u64,
    /// When the policy was installed.
    pub installed: Rfc3339,
    /// All tables except the rules, in the order of the manual.
    pub tables: Vec<PolicyTable>,
    /// The rules in their order; those for links last.
    pub rules: Vec<PolicyTable>,
}

/// One table of the policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PolicyTable {
    /// Its header, such as `[trust.corp]`.
    pub title: String,
    /// The name of an identity, a trust, a map or a rule.
    pub name: Option<String>,
    /// The included file that has the table; `None`: the policy file.
    #[serde(default)]
    pub file: Option<String>,
    /// The line of the table in its file; `None` if the file does not have the table.
    pub line: Option<usize>,
    /// Its keys with their values.
    pub settings: Vec<Setting>,
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Setting {
    /// The key, with the keys of the tables that contain it, such as `tls.rekey.after`.
    pub key: String,
    /// The value in force.
    pub value: SettingValue,
    /// Whether the value is the default.
    pub default: bool,
}

/// A value of a policy. Durations and selectors are text, as the policy writes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SettingValue {
    /// No value: no condition, no limit, or not used.
    None,
    /// A boolean.
    Boolean(bool),
    /// A number.
    Number(i64),
    /// Text.
    Text(String),
    /// A list; an empty list is no condition.
    List(Vec<String>),
}

/// The installed policy, read from `file`.
#[must_use]
pub fn policy(live: &Live, file: &Path, installed: SystemTime) -> PolicyDisplay {
    let policy = &live.policy;
    let rules = policy.rules.iter().enumerate();
    let rules = rules.map(|(place, one)| rule(policy, one, live.position(place)));
    let rules = filter::with_filters(policy, rules);
    PolicyDisplay {
        version: VERSION,
        file: file.to_owned(),
        included: policy.included.iter().map(ToString::to_string).collect(),
        generation: live.generation,
        installed: Rfc3339(installed),
        tables: tables(policy),
        rules: rules.into_iter().chain(link::rules(policy)).collect(),
    }
}

fn tables(policy: &Policy) -> Vec<PolicyTable> {
    let Policy { identities, trusts, maps, ikes, sas, agent: own, engine, host, limits, .. } =
        policy;
    let mut tables = vec![agent(own)];
    tables.extend(engine.as_ref().map(reserved));
    tables.extend(host.as_ref().map(host::table));
    tables.push(limit(limits));
    tables.extend(identities.iter().map(|(name, one)| identity(policy, name, one)));
    tables.extend(trusts.iter().map(|(name, one)| trust(policy, name, one)));
    tables.extend(maps.iter().flat_map(|(name, one)| map(policy, name, one)));
    tables.extend(ikes.iter().map(|(name, one)| ike::table(policy, name, one)));
    tables.extend(sas.iter().map(|(name, one)| sa::table(policy, name, one)));
    tables.extend(link::tables(policy));
    tables.extend(activate::tables(policy));
    tables
}

fn agent(agent: &AgentSettings) -> PolicyTable {
    let AgentSettings {
        workers,
        congestion_control,
        chain_cache,
        signer,
        sandbox,
        accounting,
        trace,
        placement,
        placement_cpus,
        metrics,
        metrics_clear,
        aliases,
    } = agent;
    let given = match aliases.given {
        AliasPolicy::Conflict => "conflict",
        AliasPolicy::Always => "always",
        AliasPolicy::Never => "never",
    };
    let placement_word = match placement {
        Placement::Adaptive => "adaptive",
        Placement::None => "none",
        Placement::Split => "split",
        Placement::OneCpu => "one-cpu",
    };
    let cpus: Vec<_> = placement_cpus.iter().map(ToString::to_string).collect();
    let mut settings = Settings::default();
    settings.add("workers", *workers, workers.is_none());
    settings.add("congestion-control", congestion_control.clone(), congestion_control.is_none());
    settings.add("chain-cache", *chain_cache, *chain_cache);
    settings.add("signer", *signer, *signer);
    settings.add("sandbox", *sandbox, *sandbox);
    settings.add("accounting", *accounting, *accounting);
    settings.add("trace", *trace, *trace);
    settings.add("placement", placement_word, *placement == Placement::default());
    settings.add("placement-cpus", cpus, placement_cpus.is_empty());
    settings.add("metrics", metrics.as_ref().map(ToString::to_string), metrics.is_none());
    settings.add("metrics-clear", *metrics_clear, !*metrics_clear);
    settings.add("aliases", given, aliases.given == AliasPolicy::default());
    let is_default = aliases.ranges == AliasRanges::default();
    settings.add("alias-ranges", aliases.ranges.to_string(), is_default);
    settings.table("[agent]", None)
}

fn reserved(engine: &EngineSettings) -> PolicyTable {
    let EngineSettings { cpus, spill, poll, queue, class, nice, position } = engine;
    let class_word = match class {
        EngineClass::Normal => "normal",
        EngineClass::Batch => "batch",
    };
    let mut settings = Settings::default();
    settings.add("cpus", cpus.iter().map(ToString::to_string).collect::<Vec<_>>(), false);
    settings.add("spill", *spill, *spill);
    settings.add("poll", *poll, *poll);
    settings.add("queue", *queue, *queue == EngineSettings::QUEUE_DEFAULT);
    settings.add("class", class_word, *class == EngineClass::default());
    settings.add("nice", i64::from(*nice), *nice == 0);
    PolicyTable { line: Some(position.line), ..settings.table("[engine]", None) }
}

fn limit(limits: &Limits) -> PolicyTable {
    let default = Limits::default();
    let Limits {
        connections,
        handshakes,
        handshakes_per_rule,
        handshakes_per_source,
        connections_per_source,
        connections_per_rule,
        connections_per_run,
        drain,
    } = limits;
    let mut settings = Settings::default();
    settings.add("connections", *connections, *connections == default.connections);
    settings.add("handshakes", *handshakes, *handshakes == default.handshakes);
    let is_default = *handshakes_per_rule == default.handshakes_per_rule;
    settings.add("handshakes-per-rule", *handshakes_per_rule, is_default);
    let is_default = *handshakes_per_source == default.handshakes_per_source;
    settings.add("handshakes-per-source", *handshakes_per_source, is_default);
    for (key, limit) in [
        ("connections-per-source", connections_per_source),
        ("connections-per-rule", connections_per_rule),
        ("connections-per-run", connections_per_run),
    ] {
        settings.add(key, *limit, limit.is_none());
    }
    settings.add("drain", drain.map(duration), drain.is_none());
    settings.table("[limits]", None)
}

fn identity(policy: &Policy, name: &str, identity: &Identity) -> PolicyTable {
    let Identity { cert, key, position, file_positions: _ } = identity;
    let mut settings = Settings::default();
    settings.add("cert", cert.display().to_string(), false);
    settings.add("key", key.display().to_string(), false);
    settings.table(&format!("[identity.{name}]"), Some(name)).at(policy, *position)
}

fn trust(policy: &Policy, name: &str, trust: &Trust) -> PolicyTable {
    let Trust { source, pinned, crls, revocation, expired_anchors, position, .. } = trust;
    let files = |files: &[PathBuf]| -> Vec<String> {
        files.iter().map(|file| file.display().to_string()).collect()
    };
    let mut settings = Settings::default();
    match source {
        TrustSource::Files(ca) => settings.add("ca", files(ca), false),
        TrustSource::System => settings.add("ca", "system", false),
        TrustSource::Pinned => settings.add("ca", SettingValue::None, true),
    }
    settings.add("pinned", files(pinned), pinned.is_empty());
    settings.add("crl", files(crls), crls.is_empty());
    settings.add("revocation", revocation.word(), *revocation == Revocation::default());
    let word = match expired_anchors {
        ExpiredAnchors::Reject => "reject",
        ExpiredAnchors::Accept => "accept",
    };
    settings.add("expired-anchors", word, *expired_anchors == ExpiredAnchors::default());
    settings.table(&format!("[trust.{name}]"), Some(name)).at(policy, *position)
}

fn map(policy: &Policy, name: &str, map: &IdentityMap) -> Vec<PolicyTable> {
    let title = format!("[[map.{name}]]");
    let entry = |entry: &tacit_core::policy::map::MapEntry| {
        let Conditions { uri, dns, email, ip, subject, issuer, address } = &entry.conditions;
        let given = [
            uri.is_some(),
            dns.is_some(),
            email.is_some(),
            ip.is_some(),
            subject.is_some(),
            issuer.is_some(),
            address.is_some(),
        ];
        let given = CONDITIONS.into_iter().zip(given).filter(|(_, given)| *given);
        let given: Vec<_> = given.map(|(condition, _)| condition.to_owned()).collect();
        let mut settings = Settings::default();
        settings.add("conditions", given, false);
        settings.add("outcome", entry.outcome.to_string(), false);
        settings.table(&title, Some(name)).at(policy, entry.position)
    };
    map.entries().iter().map(entry).collect()
}

fn rule(policy: &Policy, rule: &Rule, position: Option<SourcePosition>) -> PolicyTable {
    let mut settings = Settings::default();
    selectors(&mut settings, rule);
    match &rule.form {
        RuleForm::Forward(forward) => forward::forwarding(&mut settings, forward),
        RuleForm::Inbound(InboundRule { listen, local_ports }) => {
            settings.add("listen", texts(listen), false);
            settings.add("local-ports", ports(local_ports), false);
        }
        RuleForm::HostInbound | RuleForm::TunnelInbound => {
            settings.add("local-ports", ports(&rule.selectors.local_ports), false)
        }
        RuleForm::Outbound => {}
    }
    match rule.audited.as_ref().unwrap_or(&rule.action) {
        Action::Permit => settings.add("permit", true, false),
        Action::Deny(deny) => {
            let word = match deny {
                Deny::Refused => "refused",
                Deny::Prohibited => "prohibited",
            };
            settings.add("deny", word, *deny == Deny::default());
        }
        Action::Tls(tls) => {
            tls_settings(&mut settings, tls, &rule.form, own_tls_default(policy, rule));
        }
        Action::Ipsec(ipsec) => {
            let key = match ipsec.keyed_by {
                TunnelKeying::Ike => "ipsec.ike",
                TunnelKeying::Manual => "ipsec.sa",
            };
            settings.add(key, ipsec.peer.clone(), false);
        }
    }
    if !matches!(rule.form, RuleForm::Forward(_)) {
        let mode = if rule.audited.is_some() { "audit" } else { "enforce" };
        settings.add("mode", mode, rule.audited.is_none());
    }
    settings.add("log", rule.log, !rule.log);
    settings.add("idle", rule.idle.map(duration), rule.idle.is_none());
    if is_datagrams(rule) {
        let word = match rule.answers {
            Answers::Destination => "destination",
            Answers::Any => "any",
        };
        settings.add("answers", word, rule.answers == Answers::default());
    }
    if rule.permits_connections() {
        let path = rule.path.unwrap_or(policy.path);
        settings.add("path", path.word(), rule.path.is_none());
    }
    let table = settings.table("[[rule]]", Some(&rule.name));
    match position {
        Some(position) => table.at(policy, position),
        None => table,
    }
}

/// Whether the rule permits datagrams of programs.
fn is_datagrams(rule: &Rule) -> bool {
    let Selectors { direction, protocol, .. } = &rule.selectors;
    rule.action == Action::Permit && (*direction, *protocol) == (Direction::Outbound, Protocol::Udp)
}

/// The selectors that a rule of this form may have.
fn selectors(settings: &mut Settings, rule: &Rule) {
    let Selectors {
        direction,
        protocol,
        local,
        local_ports,
        remote,
        remote_ports,
        when,
        program,
        user,
        group,
        cgroup,
        unit,
        run,
    } = &rule.selectors;
    let is_forwarding = matches!(rule.form, RuleForm::Forward(_));
    let is_outbound = matches!(rule.form, RuleForm::Outbound);
    let word = match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    };
    settings.add("direction", word, is_forwarding);
    settings.add("protocol", protocol.word(), *protocol == Protocol::Tcp);
    if is_outbound {
        settings.add("local", texts(local), local.is_empty());
        settings.add("local-ports", ports(local_ports), local_ports.is_empty());
    }
    settings.add("remote", texts(remote), remote.is_empty());
    settings.add("remote-ports", ports(remote_ports), remote_ports.is_empty());
    let is_inbound =
        matches!(rule.form, RuleForm::Inbound(_) | RuleForm::HostInbound | RuleForm::TunnelInbound);
    if !is_inbound {
        let programs: Vec<_> = program.iter().map(|path| path.display().to_string()).collect();
        settings.add("program", programs, program.is_empty());
    }
    settings.add("user", user.clone(), user.is_empty());
    if is_outbound {
        settings.add("group", group.clone(), group.is_empty());
        settings.add("cgroup", cgroup.clone(), cgroup.is_empty());
        settings.add("unit", unit.clone(), unit.is_empty());
        settings.add("run", run.clone(), run.is_empty());
        let names: Vec<_> = rule.names.iter().map(name_pattern).collect();
        settings.add("names", names, rule.names.is_empty());
    }
    settings.add("when", when.as_ref().map(ToString::to_string), when.is_none());
}

/// The value of `on-tls` in a rule that does not have it.
fn own_tls_default(policy: &Policy, rule: &Rule) -> OwnTls {
    let is_of_host = policy.host.is_some() && rule.is_of_host();
    if is_of_host { OwnTls::Pass } else { OwnTls::default() }
}

fn tls_settings(settings: &mut Settings, tls: &Tls, form: &RuleForm, usual: OwnTls) {
    let usual_role = match form {
        RuleForm::Forward(_) => None,
        RuleForm::Inbound(_) | RuleForm::HostInbound => Some("server"),
        RuleForm::Outbound | RuleForm::TunnelInbound => Some("client"),
    };
    settings.add("tls.role", tls.role(), usual_role == Some(tls.role()));
    match tls {
        Tls::Server(server) => {
            let ServerTls { identities, client_cert: requested, clear_clients: clear, common: _ } =
                &**server;
            settings.add("tls.identity", identities.clone(), false);
            client_cert(settings, requested);
            clear_clients(settings, clear.as_ref());
        }
        Tls::Client(client) => client_settings(settings, client, form, usual),
    }
    common(settings, tls.common());
}

fn client_cert(settings: &mut Settings, requested: &ClientCert) {
    settings.add("tls.client-cert", requested.to_string(), false);
    let ClientCert::Requested(ClientCertPolicy { preset: _, absent, chain }) = requested else {
        return;
    };
    let word = match absent {
        Absent::Allow => "allow",
        Absent::Deny => "deny",
    };
    settings.add("tls.client-cert.absent", word, false);
    let ChainCheck::Made { trust, invalid, name } = chain else {
        settings.add("tls.client-cert.invalid", "allow", false);
        return;
    };
    let word = match invalid {
        Invalid::Log => "log",
        Invalid::Deny => "deny",
    };
    settings.add("tls.client-cert.invalid", word, false);
    settings.add("tls.trust", trust.clone(), false);
    let (word, map) = match name {
        PeerName::None => ("none", None),
        PeerName::Certificate => ("name", None),
        PeerName::Map(map) => ("map", Some(map.clone())),
    };
    settings.add("tls.client-cert.identity", word, false);
    settings.add("tls.map", map, false);
}

fn clear_clients(settings: &mut Settings, clear: Option<&ClearClients>) {
    let word = if clear.is_some() { "both" } else { "tls" };
    settings.add("tls.accept", word, clear.is_none());
    let Some(ClearClients { sources, until }) = clear else { return };
    let sources: Vec<_> = sources.iter().map(ToString::to_string).collect();
    settings.add("tls.clear-sources", sources.clone(), sources.is_empty());
    let until = until.map(|until| until.to_string());
    settings.add("tls.clear-until", until.clone(), until.is_none());
}

fn client_settings(settings: &mut Settings, client: &ClientTls, form: &RuleForm, usual: OwnTls) {
    let ClientTls { identity, verify, sni, connect, own_tls, common: _ } = client;
    settings.add("tls.identity", identity.clone(), identity.is_none());
    settings.add("tls.verify", verify.word(), matches!(verify, Verify::Full { .. }));
    if let Some(trust) = verify.trust() {
        settings.add("tls.trust", trust.to_owned(), false);
    }
    let (Verify::Full { server_name, .. }
    | Verify::Chain { server_name, .. }
    | Verify::None { server_name }) = verify;
    settings.add("tls.server-name", server_name.clone(), is_default_name(server_name, form));
    settings.add("tls.sni", *sni, *sni);
    if matches!(form, RuleForm::Forward(_)) {
        return;
    }
    let word = match connect {
        ConnectAfter::Answered => "answered",
        ConnectAfter::Verified => "verified",
    };
    settings.add("tls.connect", word, *connect == ConnectAfter::default());
    if let Some(own_tls) = own_tls {
        let word = match own_tls {
            OwnTls::Refuse => "refuse",
            OwnTls::Pass => "pass",
        };
        settings.add("tls.on-tls", word, *own_tls == usual);
    }
}

/// Whether this is the default of `server-name`: the host of the targets if all have the same one,
/// otherwise none.
fn is_default_name(name: &Option<String>, form: &RuleForm) -> bool {
    let RuleForm::Forward(ForwardRule { connect: Some(connect), .. }) = form else {
        return name.is_none();
    };
    let hosts: Option<BTreeSet<_>> = connect.targets.iter().map(|target| target.host()).collect();
    let hosts = hosts.unwrap_or_default();
    let only = hosts.first().filter(|_| hosts.len() == 1);
    name.as_ref() == only
}

fn common(settings: &mut Settings, common: &TlsCommon) {
    let TlsCommon {
        start,
        min_version,
        suites,
        groups,
        alpn,
        resumption,
        handshake_timeout,
        rekey,
        relay,
        recheck,
        max_age,
    } = common;
    let spoken = start.starttls();
    start_settings(settings, start);
    settings.add("tls.min-version", min_version.word(), *min_version == TlsVersion::V1_2);
    let usual: Vec<_> =
        Suite::DEFAULT.into_iter().filter(|suite| suite.version() >= *min_version).collect();
    let names: Vec<_> = suites.iter().map(|suite| suite.name().to_owned()).collect();
    settings.add("tls.suites", names, *suites == usual);
    let names: Vec<_> = groups.iter().map(|group| group.name().to_owned()).collect();
    settings.add("tls.groups", names, *groups == Group::DEFAULT);
    let usual = spoken.and_then(|spoken| spoken.protocol.alpn());
    let is_default = alpn.iter().map(String::as_str).eq(usual);
    settings.add("tls.alpn", alpn.clone(), is_default);
    settings.add("tls.resumption", *resumption, *resumption);
    let usual = match spoken.map(|spoken| &spoken.protocol) {
        Some(StarttlsProtocol::Smtp | StarttlsProtocol::Ftp(_)) => Duration::from_secs(60),
        _ => Duration::from_secs(10),
    };
    let is_default = *handshake_timeout == usual;
    settings.add("tls.handshake-timeout", duration(*handshake_timeout), is_default);
    settings.add("tls.rekey.bytes", rekey.bytes.map(|bytes| bytes.get()), rekey.bytes.is_none());
    settings.add("tls.rekey.after", rekey.after.map(duration), rekey.after.is_none());
    let word = match relay {
        RelayOn::Worker => "worker",
        RelayOn::Engine => "engine",
    };
    settings.add("tls.relay", word, *relay == RelayOn::default());
    let word = match recheck {
        RecheckAction::Log => "log",
        RecheckAction::Close => "close",
    };
    settings.add("tls.recheck", word, *recheck == RecheckAction::default());
    settings.add("tls.max-age", max_age.map(duration), max_age.is_none());
}

/// `tls.start` and `tls.starttls`.
fn start_settings(settings: &mut Settings, start: &Start) {
    let word = match start {
        Start::Immediate => "immediate",
        Start::Controlled => "controlled",
        Start::Starttls(_) => "starttls",
    };
    settings.add("tls.start", word, *start == Start::default());
    let Start::Starttls(starttls) = start else { return };
    let Starttls { protocol, mode } = &**starttls;
    settings.add("tls.starttls.protocol", protocol.word(), false);
    settings.add("tls.starttls.mode", mode.word(), *mode == StarttlsMode::Required);
    match protocol {
        StarttlsProtocol::Ftp(ftp) => {
            settings.add("tls.starttls.implicit", ftp.implicit, !ftp.implicit);
            let ranges = ports(&ftp.data_ports);
            settings.add("tls.starttls.data-ports", ranges, ftp.data_ports.is_empty());
            let address = ftp.data_address.map(|ip| ip.to_string());
            settings.add("tls.starttls.data-address", address, ftp.data_address.is_none());
            let word = match ftp.data_resumption {
                DataResumption::Required => "required",
                DataResumption::Off => "off",
            };
            let is_default = ftp.data_resumption == DataResumption::default();
            settings.add("tls.starttls.data-resumption", word, is_default);
        }
        StarttlsProtocol::Postgres(postgres) => {
            let word = match postgres.cancel {
                Cancel::Refuse => "refuse",
                Cancel::Clear => "clear",
            };
            settings.add("tls.starttls.cancel", word, postgres.cancel == Cancel::default());
        }
        StarttlsProtocol::Telnet | StarttlsProtocol::Smtp => {}
    }
}

/// Collects the keys of a table.
#[derive(Default)]
struct Settings(Vec<Setting>);

impl Settings {
    #[expect(
        clippy::fn_params_excessive_bools,
        reason = "`default` is true if the setting has its default value"
    )]
    fn add(&mut self, key: &str, value: impl Into<SettingValue>, default: bool) {
        self.0.push(Setting { key: key.to_owned(), value: value.into(), default });
    }

    fn table(self, title: &str, name: Option<&str>) -> PolicyTable {
        let Self(settings) = self;
        let name = name.map(str::to_owned);
        PolicyTable { title: title.to_owned(), name, file: None, line: None, settings }
    }
}

impl PolicyTable {
    fn at(self, policy: &Policy, position: SourcePosition) -> Self {
        let file = policy.file_of(position).map(ToString::to_string);
        Self { file, line: Some(position.line), ..self }
    }
}

impl From<bool> for SettingValue {
    fn from(value: bool) -> Self {
        Self::Boolean(value)
    }
}

impl From<i64> for SettingValue {
    fn from(value: i64) -> Self {
        Self::Number(value)
    }
}

impl From<u64> for SettingValue {
    fn from(value: u64) -> Self {
        Self::Number(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<usize> for SettingValue {
    fn from(value: usize) -> Self {
        Self::Number(i64::try_from(value).unwrap_or(i64::MAX))
    }
}

impl From<&str> for SettingValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for SettingValue {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<Vec<String>> for SettingValue {
    fn from(value: Vec<String>) -> Self {
        Self::List(value)
    }
}

impl<T: Into<Self>> From<Option<T>> for SettingValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}

pub(super) fn texts<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

pub(super) fn ports(ranges: &[RangeInclusive<u16>]) -> Vec<String> {
    let text = |range: &RangeInclusive<u16>| {
        let (first, last) = range.clone().into_inner();
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(text).collect()
}

fn name_pattern(pattern: &NamePattern) -> String {
    match pattern {
        NamePattern::Any => "*".to_owned(),
        NamePattern::Host { host, wildcard: true } => format!("*.{host}"),
        NamePattern::Host { host, wildcard: false } => host.clone(),
    }
}

/// A duration as a policy writes it: `1h30m`.
fn duration(duration: Duration) -> String {
    const UNITS: [(u128, &str); 5] =
        [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms")];
    let mut rest = duration.as_millis();
    let mut text = String::new();
    for (unit, word) in UNITS {
        if rest >= unit {
            text += &format!("{}{word}", rest / unit);
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
mod tests;
