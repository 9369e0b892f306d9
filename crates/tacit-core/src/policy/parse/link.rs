//! Parses the tables `[link.NAME]` of a policy, and the rules with the key `link`.
//!
//! A link connects this host to an environment without a network, for example a network namespace
//! or a virtual machine. This environment is the *other side* of the link. Over the link, its
//! programs request sockets of this host.
//!
//! Rules with `link` can select flows only by address, protocol, port and time. Such a rule cannot
//! select by program, because this host cannot verify what the other side reports about programs.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use super::names::{Names, tables};
use super::rule::{self, Word};
use super::selectors::{addresses, ports, refuse_filter_keys};
use super::tls::{self, Role, RoleDefault, ServerNameDefault, Setting};
use super::words::{FORWARDING_KEYS, Scope};
use super::{address, value, when};
use crate::flow::{Address, Direction, Protocol};
use crate::message_id::MessageId;
use crate::policy::client_cert::{Absent, ChainCheck, ClientCert, Invalid};
use crate::policy::link::{
    Link, LinkConnect, LinkNames, LinkRule, LinkSelection, LinkSharing, LinkTcp, LinkVerdict,
    LinkVsock,
};
use crate::policy::selector::{AddressSelector, Selectors};
use crate::policy::starttls::Start;
use crate::policy::suite::TlsVersion;
use crate::policy::target::Target;
use crate::policy::text::{TomlTable, TomlValue, word_list};
use crate::policy::tls::{ClientTls, ServerTls, Tls, TlsCommon, Verify};

/// The largest value of `sockets`: the kernel's default limit of open files.
const SOCKETS_MAX: u64 = 1 << 20;

/// The tables `[link.NAME]`; the value of a table with an error is `None`.
pub(super) type Links<'a> = BTreeMap<&'a str, Option<Link>>;

/// Reads all tables `[link.NAME]`.
pub(super) fn read_all<'a>(top: &TomlTable<'a>, names: &Names<'_>) -> Links<'a> {
    let default = Cell::new(None);
    tables(top, "link", Scope::Links, |name, value| {
        let link = link(name, value, names)?;
        if link.selection == LinkSelection::Default
            && let Some(other) = default.replace(Some(name.to_owned()))
        {
            let message = format!(
                "[link.{other}] and [link.{name}] both have default = true, but a run uses only \
                 one link"
            );
            let fix = "remove `default` from one of the two links";
            value.error_of(MessageId("conflicting-keys"), message, fix);
            return None;
        }
        Some(link)
    })
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
            && link.connect.is_none()
            && link.selection == LinkSelection::Named
            && !rules.iter().any(is_named)
        {
            let message = format!(
                "no rule has link = \"{name}\", so tacit refuses every request that arrives over \
                 this link"
            );
            let fix = format!("add a rule with link = \"{name}\", or remove [link.{name}]");
            top.report.warning(MessageId("unused"), link.position, message, fix);
        }
    }
}

fn link(name: &str, value: &TomlValue<'_>, names: &Names<'_>) -> Option<Link> {
    let table = value.table(Scope::Link, format!("[link.{name}]"))?;
    let listen = table.value("listen").map_or(Some(Listen::Default), |value| listen(&value));
    let connect = table.value("connect").map_or(Some(None), |value| target(&value).map(Some));
    let local = table.value("local").map_or(Some(Vec::new()), |value| local(&value));
    let sockets = value::count(&table, "sockets", SOCKETS_MAX);
    let sockets_per_host = value::count(&table, "sockets-per-host", SOCKETS_MAX);
    let runs = value::count(&table, "runs", Link::RUNS_MAX as u64);
    let default = table.boolean("default", false);
    let resolved = table.boolean("names", true);
    let shared = table.boolean("share", false);
    let listen = listen?;
    let connect = connect?;
    if connect.is_some() {
        let fix = "remove `{key}`, and set it in the policy of the other side of the link";
        let why = "for a link with `connect`, the policy of the other side decides whether names \
                   are resolved";
        table.refuse(&["names"], why, fix);
        let why = "for a link with `connect`, the other side opens the sockets";
        table.refuse(&["local"], why, fix);
    }
    if connect.is_some() && matches!(listen, Listen::Tcp(_) | Listen::Vsock(_)) {
        let fix = "remove `listen`, or write the absolute path of a UNIX socket";
        let problem = "a link with `connect` cannot listen for connections from other hosts";
        table.incomplete(problem, fix);
        return None;
    }
    let connect = match connect {
        Some(to) => Some(connects(&table, to, names)?),
        None => None,
    };
    let mut path = None;
    let mut tcp = None;
    let mut vsock = None;
    match listen {
        Listen::Default => {}
        Listen::Path(at) => path = Some(at),
        Listen::Vsock(at) => vsock = Some(at),
        Listen::Tcp(address) => {
            tcp = Some(LinkTcp { address, tls: server_tls(&table, names)? });
        }
    }
    if tcp.is_none() && !matches!(connect, Some(LinkConnect::Tcp { .. })) {
        let why = "only a link over TCP uses TLS";
        let fix = "remove `{key}`, or set `listen` or `connect` to an address with a port";
        table.refuse(&["tls"], why, fix);
    }
    if tcp.is_none() {
        let why = "tacit identifies a host by its certificate, and only hosts that connect over \
                   TCP send a certificate";
        let fix = "remove `{key}`, or set `listen` to an address with a port";
        table.refuse(&["sockets-per-host"], why, fix);
    }
    Some(Link {
        listen: path,
        tcp,
        vsock,
        connect,
        local: local?,
        runs_max: runs?.unwrap_or(Link::RUNS_MAX),
        sockets_per_host: sockets_per_host?,
        sockets_max: sockets?.unwrap_or(Link::SOCKETS_DEFAULT),
        names: if resolved? { LinkNames::Resolved } else { LinkNames::Refused },
        sharing: if shared? { LinkSharing::Shared } else { LinkSharing::Isolated },
        selection: if default? { LinkSelection::Default } else { LinkSelection::Named },
        position: table.report.position(table.at.start),
    })
}

/// The value of `listen`.
enum Listen {
    Default,
    Path(PathBuf),
    Tcp(std::net::SocketAddr),
    Vsock(LinkVsock),
}

fn listen(value: &TomlValue<'_>) -> Option<Listen> {
    let text = value.string()?;
    if text.starts_with("vsock:") {
        let fix = "write the context ID (CID) of the virtual machine and a port of this host: \
                   \"vsock:3:7000\"";
        return vsock(value, "listen", fix).map(Listen::Vsock);
    }
    if !text.contains('/') && text.contains(':') {
        return match address::listen(value)? {
            Address::Inet(address) => Some(Listen::Tcp(address)),
            _ => {
                let fix = "write the absolute path of a UNIX socket, or an address with a port";
                value.error("`listen` of a link cannot be an abstract UNIX socket", fix);
                None
            }
        };
    }
    let path = value::file(value)?;
    if !path.is_absolute() {
        let message =
            format!("`listen` cannot be `{}`: this is not an absolute path", path.display());
        value.error(message, "write the absolute path of a UNIX socket: \"/run/guest.sock\"");
        return None;
    }
    Some(Listen::Path(path))
}

/// The value of `local`: at most one address of each IP version.
fn local(value: &TomlValue<'_>) -> Option<Vec<IpAddr>> {
    let all = value.each(|value| {
        let text = value.string()?;
        let parsed = text.parse::<IpAddr>().ok();
        let found = parsed.filter(|one| !one.is_unspecified() && !one.is_multicast());
        if found.is_none() {
            let fix = "write an address of this host: \"192.0.2.1\"";
            value.error(format!("`local` of a link cannot be `{text}`"), fix);
        }
        found
    })?;
    let count = |is_it: fn(&IpAddr) -> bool| all.iter().filter(|one| is_it(one)).count();
    if count(IpAddr::is_ipv4) > 1 || count(IpAddr::is_ipv6) > 1 {
        let fix = "keep at most one IPv4 and one IPv6 address";
        value.error("`local` of a link has several addresses of one IP version", fix);
        return None;
    }
    Some(all)
}

/// The value of `connect`, without TLS.
enum ConnectTarget {
    Tcp { host: String, port: u16 },
    Other(LinkConnect),
}

fn target(value: &TomlValue<'_>) -> Option<ConnectTarget> {
    let text = value.string()?;
    if text.starts_with("vsock:") {
        let fix = "write the context ID (CID) and the port: \"vsock:2:7000\"";
        let at = vsock(value, "connect", fix)?;
        return Some(ConnectTarget::Other(LinkConnect::Vsock(at)));
    }
    match address::target(value)? {
        Target::Name { host, port } => Some(ConnectTarget::Tcp { host, port }),
        Target::Address(Address::Inet(at)) => {
            Some(ConnectTarget::Tcp { host: at.ip().to_string(), port: at.port() })
        }
        Target::Address(Address::Path(path)) => Some(ConnectTarget::Other(LinkConnect::Unix(path))),
        Target::Address(_) => {
            let fix = "write \"host.example:7000\", \"vsock:2:7000\" or \"unix:/run/x.sock\"";
            value.error("`connect` of a link cannot be an abstract UNIX socket", fix);
            None
        }
    }
}

/// Reads `vsock:CID:PORT`. 0 and the largest numbers are no contexts and ports.
fn vsock(value: &TomlValue<'_>, key: &str, fix: &str) -> Option<LinkVsock> {
    let text = value.string()?;
    let numbers = text.strip_prefix("vsock:").and_then(|numbers| numbers.split_once(':'));
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < u32::MAX);
    let parsed = numbers.and_then(|(cid, port)| {
        Some(LinkVsock { cid: number(cid).filter(|cid| *cid > 0)?, port: number(port)? })
    });
    if parsed.is_none() {
        value.error(format!("`{key}` cannot be `{text}`: this is not a vsock address"), fix);
    }
    parsed
}

fn connects(table: &TomlTable<'_>, to: ConnectTarget, names: &Names<'_>) -> Option<LinkConnect> {
    match to {
        ConnectTarget::Tcp { host, port } => {
            let tls = client_tls(table, &host, names)?;
            Some(LinkConnect::Tcp { host, port, tls })
        }
        ConnectTarget::Other(other) => Some(other),
    }
}

/// Reads `tls` of a link that listens: the other side must have a certificate.
fn server_tls(table: &TomlTable<'_>, names: &Names<'_>) -> Option<Arc<ServerTls>> {
    let fix = "set tls = { identity = \"host\", trust = \"guests\", client-cert = \"required\" }";
    let value = table.required("tls", fix)?;
    let setting = Setting { role: RoleDefault::Is(Role::Server), server: None };
    let Tls::Server(mut tls) = tls::read(&value, &setting, names)? else {
        value.error("on a link, the side that listens has the server role", "remove `role`");
        return None;
    };
    if !requires_certificate(&tls.client_cert) {
        let fix = "set client-cert = \"required\", or set client-cert = \"full\" and `map`";
        value.error("a link must require a valid certificate from its other side", fix);
        return None;
    }
    restrict(&value, &mut Arc::make_mut(&mut tls).common)?;
    Some(tls)
}

fn requires_certificate(level: &ClientCert) -> bool {
    level.requested().is_some_and(|requested| {
        let is_checked = matches!(requested.chain, ChainCheck::Made { invalid: Invalid::Deny, .. });
        requested.absent == Absent::Deny && is_checked
    })
}

/// Reads `tls` of a link that connects: both sides must have certificates.
fn client_tls(table: &TomlTable<'_>, host: &str, names: &Names<'_>) -> Option<Arc<ClientTls>> {
    let fix = "set tls = { identity = \"guest\", trust = \"hosts\" }";
    let value = table.required("tls", fix)?;
    let server = Some(ServerNameDefault::Host(host.to_owned()));
    let setting = Setting { role: RoleDefault::Is(Role::Client), server };
    let Tls::Client(mut tls) = tls::read(&value, &setting, names)? else {
        value.error("on a link, the side that connects has the client role", "remove `role`");
        return None;
    };
    if tls.identity.is_none() {
        let fix =
            "set `identity` to the name of a table: identity = \"guest\" for [identity.guest]";
        value.error("this side of the link needs a certificate", fix);
        return None;
    }
    if matches!(tls.verify, Verify::None { .. }) {
        let fix = "remove `verify`, and set `trust`";
        value.error("a link must check the certificate of its other side", fix);
        return None;
    }
    restrict(&value, &mut Arc::make_mut(&mut tls).common)?;
    Some(tls)
}

/// Restricts a link to TLS 1.3 that starts with the connection.
fn restrict(value: &TomlValue<'_>, common: &mut TlsCommon) -> Option<()> {
    if common.start != Start::Immediate {
        let fix = "remove `starttls` and `start`";
        value.error("TLS of a link starts at the first byte of the connection", fix);
        return None;
    }
    common.min_version = TlsVersion::V1_3;
    common.suites.retain(|suite| suite.version() == TlsVersion::V1_3);
    if common.suites.is_empty() {
        let fix = "add `TLS_AES_128_GCM_SHA256` to `suites`, or remove `suites`";
        value.error("a link uses TLS 1.3, and `suites` has no suite of TLS 1.3", fix);
        return None;
    }
    Some(())
}

/// Whether a rule is for links.
pub(super) fn is_for_links(value: &TomlValue<'_>) -> bool {
    value.value.get("link").is_some()
}

/// Reads a rule with `link`; `None` after an error was reported.
pub(super) fn rule(value: &TomlValue<'_>, links: &Links<'_>) -> Option<LinkRule> {
    let table = value.table(Scope::Rule, rule::title(value))?;
    refuse(&table);
    refuse_filter_keys(&table);
    let name = rule::name(&table);
    let fix = "set the name of the link: link = \"guest\", and add a table [link.guest]";
    let of_links = table.required("link", fix).and_then(|value| {
        value.each_once(|value| {
            let text = value::name(value)?;
            match links.get(text) {
                Some(Some(link)) if link.connect.is_some() => {
                    let message = format!(
                        "[link.{text}] has `connect`, so the policy of the other side of the link \
                         decides about requests over this link"
                    );
                    value.error(
                        message,
                        "put the rule into the policy of the other side of the link",
                    );
                    return None;
                }
                Some(_) => return Some(text.to_owned()),
                None => {}
            }
            let known: Vec<_> = links.keys().copied().collect();
            let fix = match known.as_slice() {
                [] => format!("add a table [link.{text}]"),
                known => format!("write the name of a link of the policy: {}", word_list(known)),
            };
            let message = format!("the policy has no table [link.{text}]");
            value.error_of(MessageId("unknown-name"), message, fix);
            None
        })
    });
    let directions = [("inbound", Direction::Inbound), ("outbound", Direction::Outbound)];
    let fix = "for connections from programs on the other side of the link, set direction = \
               \"outbound\"; for connections to these programs, set direction = \"inbound\"";
    let direction = table.required("direction", fix).and_then(|value| value.choice(&directions));
    let selectors = match direction? {
        Direction::Outbound => outbound(&table),
        Direction::Inbound => inbound(&table),
    };
    let verdict = match rule::action_word(&table)? {
        Word::Permit => LinkVerdict::Permit,
        Word::Deny => deny(&table.value("deny")?)?,
        Word::Tls | Word::Ipsec => {
            let why = "only the policy of the other side of a link can require TLS or IPsec";
            let fix = "set `permit = true` here, and set `tls` or `ipsec` in the policy of the \
                       other side of the link";
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
    let why = "the local address of an outbound connection is not known until the other side of \
               the link opens the connection";
    table.refuse(&["local", "local-ports"], why, "remove `{key}`");
    let words = [Protocol::Tcp, Protocol::Udp].map(|one| (one.word(), one));
    let protocol =
        table.value("protocol").map_or(Some(Protocol::Tcp), |value| value.choice(&words));
    let remote = addresses(table, "remote", |value| {
        read_ip(
            value,
            "`remote` of a rule with `link` cannot be a name: the other side of the link sends \
             only the address",
        )
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
    let why = "the other side of the link accepts inbound connections, so only the rules of the \
               other side can select clients";
    table.refuse(&["remote", "remote-ports"], why, "remove `{key}`");
    let why = "the other side of a link accepts only TCP connections";
    table.refuse(&["protocol"], why, "remove `protocol`");
    let fix =
        "set the addresses on which the other side of the link may listen: local = \"192.0.2.1\"";
    let local = table.required("local", fix).and_then(|value| {
        value.each(|value| {
            read_ip(value, "`local` of a rule with `link` must be an IP address, not a host name")
        })
    });
    let fix = "set the ports on which the other side of the link may listen: local-ports = 8080";
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
    let why = "tacit cannot verify what the other side of a link reports about programs and users, \
               so this key would never match";
    let fix = "remove `{key}`; the rules of the other side of the link can select programs";
    table.refuse(&owners, why, fix);
    let others = ["names", "mode", "log", "idle", "answers", "path", "listen"];
    let why = "a rule with `link` permits or denies sockets that the other side of the link \
               requests, and has no other settings";
    let fix = "remove `{key}`, or remove `link`";
    table.refuse(&others, why, fix);
    table.refuse(&FORWARDING_KEYS, why, fix);
}
