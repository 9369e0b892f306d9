//! One section to one rule.

use super::endpoint::Endpoint;
use super::options::StunnelOptions;
use super::service::{Keys, ServiceRole, StunnelService, Switch};
use super::tables::Tables;
use super::targets::Targets;
use super::{peer, tls};
use crate::draft::Toml;
use crate::finding::{Findings, Origin};
use tacit_core::policy::{Group, Suite, TlsVersion};

/// A rule to be written.
#[derive(Debug)]
pub(super) struct StunnelRule {
    /// As the section is called.
    pub(super) name: String,
    pub(super) at: Origin,
    pub(super) role: ServiceRole,
    /// Where it connects to, in order.
    pub(super) connect: Vec<String>,
    /// Keys and values of the rule.
    pub(super) keys: Keys,
    /// Those of its `tls`, but `identity`.
    pub(super) tls: Keys,
    /// Names of identities; a server has one at least.
    pub(super) identities: Vec<String>,
}

/// Reads a section; `None` after an error was reported.
pub(super) fn read(
    service: &StunnelService<'_>,
    options: &StunnelOptions,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<StunnelRule> {
    let at = &service.section.at;
    let role = service.role(findings)?;
    let program = refuse_program(service, findings);
    let transparent = refuse_transparent(service, findings);
    program.and(transparent)?;
    let listen = listen(service, findings)?;
    let targets = Targets::read(service, role, findings)?;
    let mut keys: Keys = vec![("listen", listen.at.clone().into())];
    keys.extend(targets.keys());
    keys.extend(owner(service).map(|owner| ("unix-owner", owner)));
    keys.extend(connect_timeout(service, &targets, findings)?.map(|s| ("connect-timeout", s)));
    if let Some(leaves) = clear_leg(service, role, &listen, &targets) {
        keys.push(("clear", true.into()));
        let fix = "the rule says `clear = true`; use loopback or a UNIX socket";
        findings.changed(at, leaves, fix);
    }
    let negotiated = protocol(service, role, findings)?;
    if negotiated == Some(Negotiated::Proxy) {
        keys.push(("send-proxy", true.into()));
    }
    let terms = tls::read(service, findings);
    let shown = identity(service, role, tables, findings);
    let peer = match role {
        ServiceRole::Client => server(service, &targets, options, tables, findings),
        ServiceRole::Server => peer::client(service, tables, findings),
    };
    let terms = terms?;
    let shown = shown?;
    let peer = peer?;
    if role == ServiceRole::Server && shown.is_none() {
        findings.error(at, "a server has no `cert`", "say cert = FILE, in PEM");
        return None;
    }
    let mut tls: Keys = vec![("role", role.word().into())];
    tls.extend(peer);
    if terms.min_version == Some(TlsVersion::V1_3) {
        tls.push(("min-version", TlsVersion::V1_3.word().into()));
    }
    let names = |all: Vec<Suite>| all.iter().map(|suite| suite.name()).collect::<Vec<_>>();
    tls.extend(terms.suites.map(|all| ("suites", names(all).into())));
    let names = |all: Vec<Group>| all.iter().map(|group| group.name()).collect::<Vec<_>>();
    tls.extend(terms.groups.map(|all| ("groups", names(all).into())));
    if service.switch("sessionResume", Switch::Yes, findings)? == Switch::No {
        tls.push(("resumption", false.into()));
    }
    tls.extend(seconds(service, "TIMEOUTbusy", 1, findings)?.map(|s| ("handshake-timeout", s)));
    if let Some(Negotiated::Upgrade(word)) = negotiated {
        tls.push(("starttls", word.into()));
    }
    sockets(service, findings)?;
    Some(StunnelRule {
        name: service.section.name.clone(),
        at: at.clone(),
        role,
        connect: targets.connect(),
        keys,
        tls,
        identities: shown.into_iter().collect(),
    })
}

/// Which bytes cross the network in clear, in words; `None`: none do.
fn clear_leg(
    service: &StunnelService<'_>,
    role: ServiceRole,
    listen: &Listen,
    targets: &Targets,
) -> Option<String> {
    let name = &service.section.name;
    match role {
        ServiceRole::Client if listen.on_host => None,
        ServiceRole::Client => {
            Some(format!("service `{name}` takes clear bytes from other hosts, as before"))
        }
        ServiceRole::Server => targets.off_host().map(|target| {
            format!("service `{name}` sends clear bytes to {}, as before", target.connect())
        }),
    }
}

/// A program that is started for each connection; tacit starts none.
fn refuse_program(service: &StunnelService<'_>, findings: &mut Findings) -> Option<()> {
    let Some(exec) = service.last("exec") else { return Some(()) };
    let words = service.last("execArgs").map_or("", |entry| entry.value.as_str());
    // The first is the name under which the program is started.
    let arguments = words.split_whitespace().skip(1).map(|word| format!(" {word}"));
    let command = format!("{}{}", exec.value, arguments.collect::<String>());
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
fn refuse_transparent(service: &StunnelService<'_>, findings: &mut Findings) -> Option<()> {
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

/// Where a rule listens.
struct Listen {
    at: Vec<String>,
    /// Whether other hosts cannot connect there.
    on_host: bool,
}

fn listen(service: &StunnelService<'_>, findings: &mut Findings) -> Option<Listen> {
    let entries = service.all("accept");
    if entries.is_empty() {
        let message = format!("service `{}` has no `accept`", service.section.name);
        let fix = "say where it listens: accept = 127.0.0.1:PORT; a service that inetd starts must \
                   listen itself";
        findings.error(&service.section.at, message, fix);
        return None;
    }
    let mut listen = Listen { at: Vec::new(), on_host: true };
    for entry in entries {
        let endpoint = Endpoint::read(entry, findings)?;
        listen.at.extend(endpoint.listen(entry, findings)?);
        listen.on_host &= endpoint.listens_on_host();
    }
    Some(listen)
}

/// What a rule of the role client says about its servers; `None` after an error was reported.
fn server(
    service: &StunnelService<'_>,
    targets: &Targets,
    options: &StunnelOptions,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Keys> {
    let target = targets.nameless_or_first();
    let mut keys = peer::server(service, target, options, tables, findings)?;
    let holds = |name: &str| keys.iter().any(|(key, _)| *key == name);
    if !targets.have_different_hosts() || holds("server-name") {
        return Some(keys);
    }
    let named = ["checkHost", "checkIP", "sni"].map(|name| service.last(name));
    if named.into_iter().flatten().any(|entry| !entry.value.is_empty()) {
        // It is the name of one target, and is asked of all.
        keys.extend(target.host().map(|host| ("server-name", host.into())));
    } else if !holds("verify") {
        let name = &service.section.name;
        let message = format!("each target of service `{name}` must be called as `connect` does");
        let fix = "say checkHost = NAME, if one certificate is for all of them";
        findings.changed(&service.section.at, message, fix);
    }
    Some(keys)
}

/// How long it may take to reach a target; several have the time of one each.
fn connect_timeout(
    service: &StunnelService<'_>,
    targets: &Targets,
    findings: &mut Findings,
) -> Option<Option<Toml>> {
    /// `TIMEOUTconnect` where it is not said.
    const SECONDS_DEFAULT: u64 = 10;
    let given = whole_seconds(service, "TIMEOUTconnect", 1, findings)?;
    let count = u64::try_from(targets.count()).unwrap_or(u64::MAX);
    if count == 1 {
        return Some(given.map(in_seconds));
    }
    let each = given.unwrap_or(SECONDS_DEFAULT);
    let all = each.saturating_mul(count);
    if all > SECONDS_MAX {
        let name = &service.section.name;
        let message = format!(
            "{count} targets of service `{name}` have {SECONDS_MAX} seconds together, not {each} \
             each"
        );
        findings.changed(&service.section.at, message, "see `connect-timeout` in tacit.toml(5)");
    }
    Some(Some(in_seconds(all.min(SECONDS_MAX))))
}

/// Who may connect to the UNIX socket of a service, as `unix-owner` says it.
fn owner(service: &StunnelService<'_>) -> Option<Toml> {
    let own = |name: &str| {
        let entries = &service.section.entries;
        entries.iter().rfind(|entry| entry.name.eq_ignore_ascii_case(name))
    };
    if !service.all("accept").iter().any(|entry| entry.value.starts_with('/')) {
        return None;
    }
    let owner = match (own("setuid"), own("setgid")) {
        (None, None) => return None,
        (Some(user), None) => user.value.clone(),
        (user, Some(group)) => {
            format!("{}:{}", user.map_or("", |user| user.value.as_str()), group.value)
        }
    };
    Some(owner.into())
}

/// What `connect-timeout` and `handshake-timeout` take.
const SECONDS_MAX: u64 = 600;

/// A number of seconds as a policy writes it, at most ten minutes.
fn seconds(
    service: &StunnelService<'_>,
    name: &str,
    min: u64,
    findings: &mut Findings,
) -> Option<Option<Toml>> {
    Some(whole_seconds(service, name, min, findings)?.map(in_seconds))
}

fn in_seconds(seconds: u64) -> Toml {
    format!("{seconds}s").into()
}

fn whole_seconds(
    service: &StunnelService<'_>,
    name: &str,
    min: u64,
    findings: &mut Findings,
) -> Option<Option<u64>> {
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
    Some(Some(used))
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
    service: &StunnelService<'_>,
    role: ServiceRole,
    findings: &mut Findings,
) -> Option<Option<Negotiated>> {
    let Some(entry) = service.last("protocol") else { return Some(None) };
    match entry.value.to_ascii_lowercase().as_str() {
        "smtp" => Some(Some(Negotiated::Upgrade("smtp"))),
        "pgsql" => Some(Some(Negotiated::Upgrade("postgres"))),
        "proxy" if role == ServiceRole::Server => {
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
    service: &StunnelService<'_>,
    role: ServiceRole,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Option<String>> {
    let key = service.last("key");
    let Some(cert) = service.last("cert") else {
        if let Some(key) = key {
            findings.error(&key.at, "`key` has no `cert`", "say cert = FILE, in PEM");
            return None;
        }
        return Some(None);
    };
    for entry in [Some(cert), key].into_iter().flatten() {
        let value = entry.value.to_ascii_lowercase();
        let fix = if value.starts_with("pkcs11:") {
            "put certificate and key into PEM files"
        } else if value.ends_with(".p12") || value.ends_with(".pfx") {
            "make a PEM file of it: openssl pkcs12 -in FILE -nodes -out FILE.pem; chmod 600"
        } else {
            continue;
        };
        let message = format!("`{} = {}` is not PEM", entry.name, entry.value);
        findings.error(&entry.at, message, fix);
        return None;
    }
    if role == ServiceRole::Client && !shows_global(service, tables, findings) {
        return Some(None);
    }
    tables.note_relative(cert, findings);
    Some(Some(tables.identity(cert, key)))
}

/// Whether a client shows a certificate that is set for all services: stunnel does, but servers
/// reject one that is not for clients.
fn shows_global(
    service: &StunnelService<'_>,
    tables: &Tables<'_>,
    findings: &mut Findings,
) -> bool {
    let Some(cert) = service.defaults_only("cert") else { return true };
    let name = &service.section.name;
    if tables.is_for_clients(cert) == Some(false) {
        let message = format!(
            "service `{name}` does not show it to its server any more: it is global, and its \
             extendedKeyUsage is not for clients"
        );
        let fix = "if the server asks for a certificate, say cert = FILE in the service, with one \
                   that has extendedKeyUsage = clientAuth";
        findings.changed(&cert.at, message, fix);
        return false;
    }
    let message = format!("service `{name}` shows it to its server, if that asks: it is global");
    findings.info(&cert.at, message);
    true
}

/// Options of sockets: those that the agent sets anyway, and those that it never does.
fn sockets(service: &StunnelService<'_>, findings: &mut Findings) -> Option<()> {
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
