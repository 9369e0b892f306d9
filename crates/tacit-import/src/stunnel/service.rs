//! One section to one rule.

use super::endpoint::Endpoint;
use super::lines::{Entry, Section};
use super::tables::Tables;
use super::words::{self, Fate, Place};
use super::{Options, peer, tls};
use crate::draft::Toml;
use crate::{Findings, Origin};
use tacit_core::policy::text::nearest_word;
use tacit_core::policy::{Group, Suite, TlsVersion};

/// A section with the defaults that stand before all sections.
pub(super) struct Service<'s> {
    pub(super) section: &'s Section,
    pub(super) defaults: &'s [Entry],
}

impl<'s> Service<'s> {
    /// Every entry of one of these names, in the order in which stunnel reads them.
    pub(super) fn in_order(&self, names: &[&str]) -> Vec<&'s Entry> {
        let named = |entry: &&Entry| names.iter().any(|n| entry.name.eq_ignore_ascii_case(n));
        self.defaults.iter().chain(&self.section.entries).filter(named).collect()
    }

    /// Every entry of that name.
    pub(super) fn all(&self, name: &str) -> Vec<&'s Entry> {
        self.in_order(&[name])
    }

    /// The entry of that name that counts: the last.
    pub(super) fn last(&self, name: &str) -> Option<&'s Entry> {
        self.all(name).pop()
    }

    /// The entry of that name that counts, if it is a default.
    fn defaults_only(&self, name: &str) -> Option<&'s Entry> {
        self.last(name).filter(|entry| self.defaults.contains(entry))
    }

    /// `yes` or `no`; `None` after an error was reported.
    pub(super) fn is(&self, name: &str, default: bool, findings: &mut Findings) -> Option<bool> {
        self.last(name).map_or(Some(default), |entry| yes(entry, findings))
    }
}

/// What an entry says that says `yes` or `no`; `None` after an error was reported.
pub(super) fn yes(entry: &Entry, findings: &mut Findings) -> Option<bool> {
    match entry.value.to_ascii_lowercase().as_str() {
        "yes" => Some(true),
        "no" => Some(false),
        _ => {
            let message = format!("`{} = {}` is neither yes nor no", entry.name, entry.value);
            findings.error(&entry.at, message, "write `yes` or `no`");
            None
        }
    }
}

/// Keys with their values.
pub(super) type Keys = Vec<(&'static str, Toml)>;

/// A rule to be written.
#[derive(Debug)]
pub(super) struct Rule {
    /// As the section is called.
    pub(super) name: String,
    pub(super) at: Origin,
    pub(super) is_client: bool,
    pub(super) connect: String,
    /// Keys and values of the rule.
    pub(super) keys: Keys,
    /// Those of its `tls`, but `identity`.
    pub(super) tls: Keys,
    /// Names of identities; a server has one at least.
    pub(super) identities: Vec<String>,
}

/// Reads a section; `None` after an error was reported.
pub(super) fn read(
    service: &Service<'_>,
    options: &Options,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Rule> {
    let at = &service.section.at;
    let is_client = service.is("client", false, findings)?;
    let program = refuse_program(service, findings);
    let transparent = refuse_transparent(service, findings);
    program.and(transparent)?;
    let (listen, listens_on_host) = listen(service, findings)?;
    let connect = connect(service, findings)?;
    let mut keys: Keys = vec![("listen", listen.into()), ("connect", connect.connect().into())];
    keys.extend(owner(service));
    keys.extend(seconds(service, "TIMEOUTconnect", 1, findings)?.map(|s| ("connect-timeout", s)));
    let crosses = if is_client { !listens_on_host } else { !connect.stays_on_host() };
    if crosses {
        keys.push(("clear", true.into()));
        tell_clear(service, is_client, &connect, findings);
    }
    let protocol = protocol(service, is_client, findings)?;
    if protocol == Some(Negotiated::Proxy) {
        keys.push(("send-proxy", true.into()));
    }
    let terms = tls::read(service, findings);
    let identity = identity(service, tables, findings);
    let peer = match is_client {
        true => peer::server(service, &connect, options, tables, findings),
        false => peer::client(service, tables, findings),
    };
    let (terms, identity, peer) = (terms?, identity?, peer?);
    if !is_client && identity.is_none() {
        findings.error(at, "a server has no `cert`", "say cert = FILE, in PEM");
        return None;
    }
    if let (true, Some(cert)) = (is_client, service.defaults_only("cert")) {
        let name = &service.section.name;
        let message =
            format!("service `{name}` shows it to its server, if that asks: it is global");
        findings.info(&cert.at, message);
    }
    let role = if is_client { "client" } else { "server" };
    let mut tls: Keys = vec![("role", role.into())];
    tls.extend(peer);
    if terms.min_version == Some(TlsVersion::V1_3) {
        tls.push(("min-version", TlsVersion::V1_3.word().into()));
    }
    let names = |all: Vec<Suite>| all.iter().map(|suite| suite.name()).collect::<Vec<_>>();
    tls.extend(terms.suites.map(|all| ("suites", names(all).into())));
    let names = |all: Vec<Group>| all.iter().map(|group| group.name()).collect::<Vec<_>>();
    tls.extend(terms.groups.map(|all| ("groups", names(all).into())));
    if !service.is("sessionResume", true, findings)? {
        tls.push(("resumption", false.into()));
    }
    tls.extend(seconds(service, "TIMEOUTbusy", 1, findings)?.map(|s| ("handshake-timeout", s)));
    if let Some(Negotiated::Upgrade(word)) = protocol {
        tls.push(("starttls", word.into()));
    }
    sockets(service, findings)?;
    let name = service.section.name.clone();
    let identities = identity.into_iter().collect();
    let connect = connect.connect();
    Some(Rule { name, at: at.clone(), is_client, connect, keys, tls, identities })
}

/// Says which bytes cross the network in clear.
fn tell_clear(service: &Service<'_>, is_client: bool, connect: &Endpoint, findings: &mut Findings) {
    let name = &service.section.name;
    let message = match is_client {
        true => format!("service `{name}` takes clear bytes from other hosts, as before"),
        false => format!("service `{name}` sends clear bytes to {}, as before", connect.connect()),
    };
    let fix = "the rule says `clear = true`; use loopback or a UNIX socket";
    findings.changed(&service.section.at, message, fix);
}

/// Reports every option that does not exist, or that nobody here reads.
pub(super) fn check_words(entries: &[Entry], place: Place, findings: &mut Findings) {
    for entry in entries {
        let Entry { name, value, at } = entry;
        let Some(word) = words::word(name) else {
            let known: Vec<&str> = words::WORDS.iter().map(|word| word.name).collect();
            let fix = match nearest_word(name, &known) {
                Some(word) => format!("did you mean `{word}`?"),
                None => "remove it, or look it up in stunnel(8)".to_owned(),
            };
            findings.error(at, format!("no option is called `{name}`"), fix);
            continue;
        };
        if place == Place::Service && word.place == Place::Global {
            let message = format!("`{name}` is global and stands in a service");
            findings.error(at, message, "put it before the first [service], or remove it");
            continue;
        }
        if word.harmless.iter().any(|harmless| value.eq_ignore_ascii_case(harmless)) {
            continue;
        }
        match word.fate_in(place) {
            Fate::Read => {}
            Fate::Info(why) => findings.info(at, format!("`{name}`: {why}")),
            Fate::Changed(what, fix) => findings.changed(at, format!("`{name}`: {what}"), fix),
            Fate::Refused(why, fix) => findings.error(at, format!("`{name}`: {why}"), fix),
        }
    }
}

/// A program that is started for each connection; tacit starts none.
fn refuse_program(service: &Service<'_>, findings: &mut Findings) -> Option<()> {
    let Some(exec) = service.last("exec") else { return Some(()) };
    let arguments = service.last("execArgs").map_or("", |entry| entry.value.as_str());
    let arguments = arguments.split_whitespace().skip(1).collect::<Vec<_>>().join(" ");
    let command = format!("{} {arguments}", exec.value);
    let command = command.trim_end();
    let message = format!("`exec = {}`: the agent starts no programs", exec.value);
    let fix = match service.last("connect") {
        Some(connect) => format!(
            "remove the service; tacit puts TLS under the program itself, with a rule about runs \
             (direction = \"outbound\") for {}:\ntacit run --policy policy.toml -- {command}",
            connect.value
        ),
        None => format!(
            "start it where it is asked for, and put `connect = 127.0.0.1:PORT` in place of \
             exec:\nsystemd-socket-activate --listen=127.0.0.1:PORT --accept --inetd {command}"
        ),
    };
    findings.error(&exec.at, message, fix);
    None
}

/// Addresses taken over from others need the rights and the routes of the host.
fn refuse_transparent(service: &Service<'_>, findings: &mut Findings) -> Option<()> {
    let Some(entry) = service.last("transparent") else { return Some(()) };
    let fix = match entry.value.to_ascii_lowercase().as_str() {
        "none" | "no" => return Some(()),
        "destination" | "both" => {
            "start the program by `tacit run`, with a rule direction = \"outbound\": it may \
             connect to any address, without iptables"
        }
        _ => {
            "start the program by `tacit run`, with a rule direction = \"inbound\": it sees its \
             clients' own addresses"
        }
    };
    let message = format!("`transparent = {}` cannot be done at a fixed address", entry.value);
    findings.error(&entry.at, message, fix);
    None
}

/// Where the rule listens, and whether other hosts cannot connect there.
fn listen(service: &Service<'_>, findings: &mut Findings) -> Option<(Vec<String>, bool)> {
    let entries = service.all("accept");
    if entries.is_empty() {
        let message = format!("service `{}` has no `accept`", service.section.name);
        let fix = "say where it listens: accept = 127.0.0.1:PORT; a service that inetd starts must \
                   listen itself";
        findings.error(&service.section.at, message, fix);
        return None;
    }
    let (mut listen, mut on_host) = (Vec::new(), true);
    for entry in entries {
        let endpoint = Endpoint::read(entry, findings)?;
        listen.extend(endpoint.listen(entry, findings)?);
        on_host &= endpoint.listens_on_host();
    }
    Some((listen, on_host))
}

fn connect(service: &Service<'_>, findings: &mut Findings) -> Option<Endpoint> {
    let entries = service.all("connect");
    let [entry] = entries.as_slice() else {
        let (at, message, fix) = match entries.get(1) {
            None => (
                &service.section.at,
                format!("service `{}` has no `connect`", service.section.name),
                "say where it connects to: connect = HOST:PORT",
            ),
            Some(second) => (
                &second.at,
                format!("service `{}` connects to several addresses", service.section.name),
                "keep one; of a name with several addresses, tacit tries each until one answers",
            ),
        };
        findings.error(at, message, fix);
        return None;
    };
    Endpoint::read(entry, findings)
}

/// Who may connect to the UNIX socket of a service.
fn owner(service: &Service<'_>) -> Option<(&'static str, Toml)> {
    let own = |name: &str| {
        let entries = &service.section.entries;
        entries.iter().rfind(|entry| entry.name.eq_ignore_ascii_case(name))
    };
    let (user, group) = (own("setuid"), own("setgid"));
    if !service.all("accept").iter().any(|entry| entry.value.starts_with('/')) {
        return None;
    }
    let owner = match (user, group) {
        (None, None) => return None,
        (Some(user), None) => user.value.clone(),
        (user, Some(group)) => {
            format!("{}:{}", user.map_or("", |user| user.value.as_str()), group.value)
        }
    };
    Some(("unix-owner", owner.into()))
}

/// A number of seconds as a policy writes it, at most ten minutes.
fn seconds(
    service: &Service<'_>,
    name: &str,
    min: u64,
    findings: &mut Findings,
) -> Option<Option<Toml>> {
    /// What `connect-timeout` and `handshake-timeout` take.
    const SECONDS_MAX: u64 = 600;
    let Some(entry) = service.last(name) else { return Some(None) };
    let Ok(given) = entry.value.parse::<u64>() else {
        let message = format!("`{name} = {}` is no number of seconds", entry.value);
        findings.error(&entry.at, message, "write a number, without unit");
        return None;
    };
    let used = given.clamp(min, SECONDS_MAX);
    if used != given {
        let message = format!("`{name} = {given}` becomes {used} seconds");
        findings.changed(&entry.at, message, format!("the policy takes {min} to {SECONDS_MAX}"));
    }
    Some(Some(format!("{used}s").into()))
}

/// What is said before TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Negotiated {
    /// In clear, until one side asks for TLS.
    Upgrade(&'static str),
    /// Who the client is, to the program.
    Proxy,
}

fn protocol(
    service: &Service<'_>,
    is_client: bool,
    findings: &mut Findings,
) -> Option<Option<Negotiated>> {
    let Some(entry) = service.last("protocol") else { return Some(None) };
    match entry.value.to_ascii_lowercase().as_str() {
        "smtp" => Some(Some(Negotiated::Upgrade("smtp"))),
        "pgsql" => Some(Some(Negotiated::Upgrade("postgres"))),
        "proxy" if !is_client => {
            let message = "the header of the PROXY protocol is sent in version 2, not 1";
            let fix = "the program must read that version, or do without: remove `protocol`";
            findings.changed(&entry.at, message, fix);
            Some(Some(Negotiated::Proxy))
        }
        other => {
            let message = format!("`protocol = {other}` is not built");
            let fix = "use the port where TLS begins at the first byte, or keep stunnel for it";
            findings.error(&entry.at, message, fix);
            None
        }
    }
}

/// The name of the identity, where there is one; `None` after an error was reported.
fn identity(
    service: &Service<'_>,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Option<String>> {
    let (cert, key) = (service.last("cert"), service.last("key"));
    let Some(cert) = cert else {
        if let Some(key) = key {
            findings.error(&key.at, "`key` has no `cert`", "say cert = FILE, in PEM");
            return None;
        }
        return Some(None);
    };
    for entry in [Some(cert), key].into_iter().flatten() {
        let value = entry.value.to_ascii_lowercase();
        let fix = match (value.starts_with("pkcs11:"), value.ends_with(".p12")) {
            (true, _) => "put certificate and key into PEM files",
            (_, is_p12) if is_p12 || value.ends_with(".pfx") => {
                "make a PEM file of it: openssl pkcs12 -in FILE -nodes -out FILE.pem; chmod 600"
            }
            _ => continue,
        };
        let message = format!("`{} = {}` is not PEM", entry.name, entry.value);
        findings.error(&entry.at, message, fix);
        return None;
    }
    tables.note_relative(cert, findings);
    Some(Some(tables.identity(cert, key)))
}

/// Options of sockets: those that the agent sets anyway, and those that it never does.
fn sockets(service: &Service<'_>, findings: &mut Findings) -> Option<()> {
    let mut sound = Some(());
    for entry in service.all("socket") {
        if entry.value.contains("TCP_NODELAY") || entry.value.contains("SO_REUSEADDR") {
            findings.info(&entry.at, format!("`{}`: the agent sees to that", entry.value));
        } else if entry.value.contains("BINDTODEVICE") {
            let message = format!("`{}`: a socket is bound to addresses alone", entry.value);
            findings.error(
                &entry.at,
                message,
                "say accept = ADDRESS:PORT, with one of that device",
            );
            sound = None;
        } else {
            let message = format!("`{}` is not set", entry.value);
            findings.changed(&entry.at, message, "remove it; the kernel's defaults hold");
        }
    }
    sound
}
