//! Converts one section of a stunnel configuration (one service) to a forwarding rule.

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
    /// The name of the section.
    pub(super) name: String,
    pub(super) at: Origin,
    pub(super) role: ServiceRole,
    /// Where it connects to, in order.
    pub(super) connect: Vec<String>,
    /// Keys and values of the rule.
    pub(super) keys: Keys,
    /// The keys of its `tls`, except `identity`.
    pub(super) tls: Keys,
    /// The names of its identities; a server has at least one.
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
    if let Some(leaves) = clear_bytes_message(service, role, &listen, &targets) {
        keys.push(("clear", true.into()));
        let fix = "to hide the clear text from other hosts, use a UNIX socket or a loopback \
                   address, and remove `clear = true` from the rule";
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
        let message = "the service is a TLS server, but has no `cert`";
        findings.error(at, message, "set cert = FILE, a PEM file");
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

/// A message about bytes that cross the network in clear; `None` if there are none.
fn clear_bytes_message(
    service: &StunnelService<'_>,
    role: ServiceRole,
    listen: &Listen,
    targets: &Targets,
) -> Option<String> {
    let name = &service.section.name;
    match role {
        ServiceRole::Client if listen.on_host => None,
        ServiceRole::Client => Some(format!(
            "as in stunnel, the rule of service `{name}` accepts connections in clear from other \
             hosts"
        )),
        ServiceRole::Server => targets.off_host().map(|target| {
            format!(
                "as in stunnel, the rule of service `{name}` connects in clear to {target}",
                target = target.connect()
            )
        }),
    }
}

/// Rejects `exec`: the import writes no rules with `activate`.
fn refuse_program(service: &StunnelService<'_>, findings: &mut Findings) -> Option<()> {
    let Some(exec) = service.last("exec") else { return Some(()) };
    let words = service.last("execArgs").map_or("", |entry| entry.value.as_str());
    // The first word is the name under which the program is started.
    let arguments = words.split_whitespace().skip(1).map(|word| format!(" {word}"));
    let command = format!("{}{}", exec.value, arguments.collect::<String>());
    let message = format!(
        "`exec = {program}`: the import does not convert services that start a program",
        program = exec.value
    );
    let fix = match service.last("connect") {
        Some(connect) => format!(
            "remove the service, and start the program with `tacit run` and a rule with direction \
             = \"outbound\" for {target}:\ntacit run --policy policy.toml -- {command}",
            target = connect.value
        ),
        None => format!(
            "either replace the service by a rule with `activate` (see tacit.toml(5)), or set \
             `connect = 127.0.0.1:PORT` instead of exec, and start the program on demand with \
             systemd:\nsystemd-socket-activate --listen=127.0.0.1:PORT --accept --inetd {command}"
        ),
    };
    findings.error(&exec.at, message, fix);
    None
}

/// Rejects `transparent`: the use of other hosts' addresses needs rights and routes of this host.
fn refuse_transparent(service: &StunnelService<'_>, findings: &mut Findings) -> Option<()> {
    let Some(entry) = service.last("transparent") else { return Some(()) };
    let fix = match entry.value.to_ascii_lowercase().as_str() {
        "none" | "no" => return Some(()),
        "destination" | "both" => {
            "start the program with `tacit run` and a rule with direction = \"outbound\"; the \
             program may then connect to any address, without iptables"
        }
        _ => {
            "start the program with `tacit run` and a rule with direction = \"inbound\"; the \
             program then sees the addresses of its clients"
        }
    };
    let message = format!(
        "`transparent = {value}` is not possible in a forwarding rule",
        value = entry.value
    );
    findings.error(&entry.at, message, fix);
    None
}

/// The addresses on which a rule listens.
struct Listen {
    at: Vec<String>,
    /// Whether other hosts cannot connect there.
    on_host: bool,
}

fn listen(service: &StunnelService<'_>, findings: &mut Findings) -> Option<Listen> {
    let entries = service.all("accept");
    if entries.is_empty() {
        let message = format!("service `{name}` has no `accept`", name = service.section.name);
        let fix = "inetd cannot start tacit, so set an address, such as accept = 127.0.0.1:PORT";
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

/// The keys of a client rule that describe its servers; `None` after an error was reported.
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
        // The name belongs to one target, and stunnel requires it of all.
        keys.extend(target.host().map(|host| ("server-name", host.into())));
    } else if !holds("verify") {
        let name = &service.section.name;
        let message = format!(
            "service `{name}` has several targets: tacit checks that the certificate of each \
             target contains the host name of this target"
        );
        let fix = "if all targets have the same certificate, set checkHost to a host name in \
                   this certificate";
        findings.changed(&service.section.at, message, fix);
    }
    Some(keys)
}

/// The time to connect to a target; several targets share the sum of their times.
fn connect_timeout(
    service: &StunnelService<'_>,
    targets: &Targets,
    findings: &mut Findings,
) -> Option<Option<Toml>> {
    /// The default of `TIMEOUTconnect`.
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
            "service `{name}` waits at most {SECONDS_MAX} seconds for all of its {count} targets \
             together; stunnel waited {each} seconds for each target"
        );
        findings.changed(&service.section.at, message, "see `connect-timeout` in tacit.toml(5)");
    }
    Some(Some(in_seconds(all.min(SECONDS_MAX))))
}

/// The owner of the UNIX socket of a service, as the value of `unix-owner`.
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

/// Largest value of `connect-timeout` and `handshake-timeout`.
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
        let message = format!("`{name} = {value}` is not a number of seconds", value = entry.value);
        findings.error(&entry.at, message, "write a whole number without a unit");
        return None;
    };
    let used = given.clamp(min, SECONDS_MAX);
    if used != given {
        let message = format!("the import changes `{name} = {given}` to {used} seconds");
        findings.changed(
            &entry.at,
            message,
            format!("set a value from {min} to {SECONDS_MAX} seconds"),
        );
    }
    Some(Some(used))
}

/// What is exchanged before TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Negotiated {
    /// An exchange in clear, until one side requests TLS.
    Upgrade(&'static str),
    /// A header with the client's address for the program.
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
            let message = "tacit sends the PROXY protocol header in version 2, not 1";
            let fix = "configure the program behind this service for version 2 of the PROXY \
                       protocol, or remove `protocol`";
            findings.changed(&entry.at, message, fix);
            Some(Some(Negotiated::Proxy))
        }
        other => {
            let message = format!("`protocol = {other}` is not supported");
            let fix = "use the server's port for implicit TLS (TLS from the first byte), or keep \
                       stunnel for this service";
            findings.error(&entry.at, message, fix);
            None
        }
    }
}

/// The name of the identity, if the service has one; `None` after an error was reported.
fn identity(
    service: &StunnelService<'_>,
    role: ServiceRole,
    tables: &mut Tables<'_>,
    findings: &mut Findings,
) -> Option<Option<String>> {
    let key = service.last("key");
    let Some(cert) = service.last("cert") else {
        if let Some(key) = key {
            findings.error(&key.at, "`key` is set without `cert`", "set cert = FILE, a PEM file");
            return None;
        }
        return Some(None);
    };
    for entry in [Some(cert), key].into_iter().flatten() {
        let value = entry.value.to_ascii_lowercase();
        let fix = if value.starts_with("pkcs11:") {
            "export the certificate and key to PEM files"
        } else if value.ends_with(".p12") || value.ends_with(".pfx") {
            "convert the file to PEM: openssl pkcs12 -in FILE -nodes -out FILE.pem; chmod 600 \
             FILE.pem"
        } else {
            continue;
        };
        let message = format!(
            "`{option} = {value}` is not a PEM file",
            option = entry.name,
            value = entry.value
        );
        findings.error(&entry.at, message, fix);
        return None;
    }
    if role == ServiceRole::Client && !shows_global(service, tables, findings) {
        return Some(None);
    }
    tables.report_relative(cert, findings);
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
            "service `{name}` no longer sends this certificate to its server, because the \
             extendedKeyUsage of the certificate does not include clientAuth"
        );
        let fix = "if the server requests a certificate, set cert = FILE in the service; FILE must \
                   contain a certificate with extendedKeyUsage = clientAuth";
        findings.changed(&cert.at, message, fix);
        return false;
    }
    let message = format!(
        "service `{name}` sends this certificate to servers that request a certificate, because \
         `cert` is a global option"
    );
    findings.info(&cert.at, message);
    true
}

/// Options of sockets: those that the agent sets anyway, and those that it never does.
fn sockets(service: &StunnelService<'_>, findings: &mut Findings) -> Option<()> {
    let mut sound = Some(());
    for entry in service.all("socket") {
        if entry.value.contains("TCP_NODELAY") || entry.value.contains("SO_REUSEADDR") {
            findings.info(
                &entry.at,
                format!(
                    "`{option}`: the agent sets this socket option itself",
                    option = entry.value
                ),
            );
        } else if entry.value.contains("BINDTODEVICE") {
            let message = format!(
                "`{option}`: tacit binds sockets to addresses, not to network devices",
                option = entry.value
            );
            findings.error(
                &entry.at,
                message,
                "set accept = ADDRESS:PORT, where ADDRESS is an address of the network device",
            );
            sound = None;
        } else {
            let message = format!(
                "the import ignores `{option}`, because the agent does not set this socket option",
                option = entry.value
            );
            let fix = "remove the option; the agent always uses the kernel's default";
            findings.changed(&entry.at, message, fix);
        }
    }
    sound
}
