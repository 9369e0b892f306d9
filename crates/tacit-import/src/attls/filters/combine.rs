//! Combines z/OS IP filters and TLS rules into one list of tacit rules.
//!
//! ```text
//!   z/OS        a connection must pass the filters; then the first matching TLS rule decides
//!   tacit       the first matching rule decides
//! ```
//!
//! If a filter denies flows, it becomes a rule with `deny`. If a filter permits flows, it becomes
//! several rules. The first rules are copies of the TLS rules, limited to the flows of the filter.
//! The last rule has `permit`, and applies to all other flows of the filter.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use super::filter::{Action, Filter, Flow};
use super::space;
use crate::attls::flows::{LISTEN_PORTS_MAX, port_list};
use crate::draft::{Item, Toml};
use crate::finding::Findings;
use tacit_core::flow::{Direction, Protocol};
use tacit_core::policy::RULES_MAX;

/// Combines TLS rules and filters; reports combinations that a policy cannot express.
pub(crate) fn combine(rules: &[Item], filters: &[Filter], findings: &mut Findings) -> Vec<Item> {
    let sockets = sockets(rules, filters, findings);
    let mut combined = Vec::new();
    for filter in filters {
        for (flow, number) in filter.flows.iter().zip(1_usize..) {
            let mut protected = Vec::new();
            if filter.action == Action::Permit && flow.protocol == Protocol::Tcp {
                let both = |rule| both(rule, filter, flow, findings);
                protected.extend(rules.iter().filter_map(both));
            }
            let suffix = if number == 1 { String::new() } else { format!("-{number}") };
            let name = format!("{}{suffix}", filter.name);
            let mut rest = match flow.direction {
                Direction::Inbound => inbound(&name, filter, flow, &sockets, findings),
                Direction::Outbound => vec![outbound(&name, filter, flow)],
            };
            rest.retain(|rest| !protected.iter().any(|rule| is_all_of(rule, rest)));
            combined.extend(protected.into_iter().chain(rest));
            if combined.len() > RULES_MAX {
                let message = format!(
                    "the filters and the TLS rules together result in more than {RULES_MAX} policy \
                     rules"
                );
                findings.error(
                    &filter.at,
                    message,
                    "use networks and port ranges, so that fewer policy rules are needed",
                );
                return Vec::new();
            }
        }
    }
    combined
}

/// A TLS rule, limited to the flows that a filter permits; `None` if no flow is left, or after an
/// error.
fn both(rule: &Item, filter: &Filter, flow: &Flow, findings: &mut Findings) -> Option<Item> {
    if direction(rule) != flow.direction || rule.text("protocol") == Some("udp") {
        return None;
    }
    let mut item = rule.clone();
    match meet(&mut item, filter, flow) {
        Ok(shared) => shared?,
        Err(why) => {
            let name = rule.text("name").unwrap_or_default();
            let message = format!(
                "rule `{name}` and filter `{filter}` cannot be combined: {why}",
                filter = filter.name
            );
            let fix = "give the rule and the filter the same addresses and the same time \
                       condition, or set the rule's addresses in the map file";
            findings.error(&filter.at, message, fix);
            return None;
        }
    }
    let name = format!("{}.{}", rule.text("name").unwrap_or_default(), filter.name);
    set(&mut item, "name", name.into());
    item.comments.push(format!(
        "this rule matches only flows that the filter {filter} at {line} permits",
        filter = filter.name,
        line = filter.at
    ));
    if filter.log {
        set(&mut item, "log", true.into());
    }
    Some(item)
}

fn direction(rule: &Item) -> Direction {
    match rule.text("direction") {
        Some("inbound") => Direction::Inbound,
        _ => Direction::Outbound,
    }
}

/// Limits a rule to the flows that a filter permits; `Ok(None)` if none is left.
fn meet(item: &mut Item, filter: &Filter, flow: &Flow) -> Result<Option<()>, String> {
    let near = match flow.direction {
        Direction::Inbound => meet_listen(item, flow)?,
        Direction::Outbound => meet_end(item, LOCAL, &flow.local, &flow.local_ports)?,
    };
    if near.is_none() {
        return Ok(None);
    }
    if meet_end(item, REMOTE, &flow.remote, &flow.remote_ports)?.is_none() {
        return Ok(None);
    }
    meet_times(item, filter)
}

/// Whether a rule has exactly the same conditions as another one.
fn is_all_of(rule: &Item, other: &Item) -> bool {
    const CONDITIONS: [&str; 10] = [
        "direction",
        "listen",
        "local",
        "local-ports",
        "remote",
        "remote-ports",
        "program",
        "user",
        "run",
        "when",
    ];
    CONDITIONS.iter().all(|key| rule.value(key) == other.value(key))
}

/// The keys of one end of a rule.
#[derive(Clone, Copy)]
struct EndKeys {
    addresses: &'static str,
    ports: &'static str,
}

const LOCAL: EndKeys = EndKeys { addresses: "local", ports: "local-ports" };
const REMOTE: EndKeys = EndKeys { addresses: "remote", ports: "remote-ports" };

/// Limits one end of a rule; `Ok(None)` if nothing is left.
fn meet_end(
    item: &mut Item,
    keys: EndKeys,
    addresses: &[String],
    ports: &[RangeInclusive<u16>],
) -> Result<Option<()>, String> {
    let own = item.texts(keys.addresses);
    let shared_addresses = space::addresses(&own, addresses)
        .map_err(|name| format!("`{name}` is a host name, but filters match addresses only"))?;
    let Some(shared_addresses) = shared_addresses else { return Ok(None) };
    let Some(shared_ports) = space::ports(&port_ranges(item, keys.ports), ports) else {
        return Ok(None);
    };
    if !shared_addresses.is_empty() {
        set(item, keys.addresses, shared_addresses.into());
    }
    if !shared_ports.is_empty() {
        set(item, keys.ports, port_list(&shared_ports));
    }
    Ok(Some(()))
}

/// Limits the addresses on which a rule listens; `Ok(None)` if none is left.
fn meet_listen(item: &mut Item, flow: &Flow) -> Result<Option<()>, String> {
    let Some(listen) = listening(item, flow)? else { return Ok(None) };
    set(item, "listen", strings(&listen).into());
    Ok(Some(()))
}

fn meet_times(item: &mut Item, filter: &Filter) -> Result<Option<()>, String> {
    match (item.value("when"), &filter.when) {
        (Some(own), Some(other)) if own != other => {
            Err("the rule and the filter have different time conditions".to_owned())
        }
        (None, Some(other)) => {
            set(item, "when", other.clone());
            Ok(Some(()))
        }
        _ => Ok(Some(())),
    }
}

/// The sockets of a rule that belong to the flows; `Ok(None)` if none does.
fn listening(rule: &Item, flow: &Flow) -> Result<Option<Vec<SocketAddr>>, String> {
    let mut listen = Vec::new();
    for socket in rule.texts("listen").iter().filter_map(|text| text.parse().ok()) {
        listen.extend(narrowed(socket, flow)?);
    }
    Ok((!listen.is_empty()).then_some(listen))
}

/// The part of a socket's addresses that belongs to the flows.
fn narrowed(socket: SocketAddr, flow: &Flow) -> Result<Vec<SocketAddr>, String> {
    let port = socket.port();
    if !flow.local_ports.is_empty() && !flow.local_ports.iter().any(|all| all.contains(&port)) {
        return Ok(Vec::new());
    }
    let ip = socket.ip();
    let own = match ip {
        ip if !ip.is_unspecified() => ip.to_string(),
        _ if flow.local.is_empty() => return Ok(vec![socket]),
        IpAddr::V4(_) => "0.0.0.0/0".to_owned(),
        IpAddr::V6(_) => "::/0".to_owned(),
    };
    let common = space::addresses(&[own], &flow.local)?.unwrap_or_default();
    common.iter().map(|text| listen_at(text).map(|ip| SocketAddr::new(ip, port))).collect()
}

/// A single address, or the unspecified address for all addresses of a family.
fn listen_at(addresses: &str) -> Result<IpAddr, String> {
    match addresses {
        "0.0.0.0/0" => Ok(Ipv4Addr::UNSPECIFIED.into()),
        "::/0" => Ok(Ipv6Addr::UNSPECIFIED.into()),
        _ => addresses.parse().map_err(|_| {
            format!(
                "tacit can listen on single addresses or on all addresses, but not on {addresses}"
            )
        }),
    }
}

/// All sockets on which some rule listens: those of TLS rules that a filter permits, and those of
/// filters with ports.
fn sockets(rules: &[Item], filters: &[Filter], findings: &mut Findings) -> Vec<SocketAddr> {
    let mut sockets: Vec<SocketAddr> = Vec::new();
    for filter in filters.iter().filter(|filter| filter.action == Action::Permit) {
        for flow in filter.flows.iter().filter(|flow| flow.direction == Direction::Inbound) {
            let of_rules = rules.iter().filter(|rule| direction(rule) == Direction::Inbound);
            // Sockets that are not possible are reported when the rules are combined.
            sockets.extend(of_rules.filter_map(|rule| listening(rule, flow).ok()?).flatten());
            sockets.extend(own_sockets(filter, flow, findings));
        }
    }
    sockets.sort();
    sockets.dedup();
    for socket in &sockets {
        let wide = |other: &&SocketAddr| {
            other.ip().is_unspecified()
                && other.is_ipv4() == socket.is_ipv4()
                && other.port() == socket.port()
        };
        if !socket.ip().is_unspecified()
            && sockets.iter().any(|other| wide(&other))
            && let Some(filter) = filters.first()
        {
            let message = format!(
                "tacit cannot listen both on {socket} and on the same port of all addresses"
            );
            let fix =
                "in the filters for this port, use either single addresses or `All`, not both";
            findings.error(&filter.at, message, fix);
        }
    }
    sockets
}

/// The sockets that result from a filter itself.
fn own_sockets(filter: &Filter, flow: &Flow, findings: &mut Findings) -> Vec<SocketAddr> {
    let count: usize = flow.local_ports.iter().map(ExactSizeIterator::len).sum();
    if count == 0 || count > LISTEN_PORTS_MAX {
        let message = format!(
            "filter `{filter}` permits inbound connections to {count} ports, but tacit listens \
             only on the ports that a rule uses",
            filter = filter.name,
            count = if count == 0 { "all".to_owned() } else { count.to_string() }
        );
        let fix = "in the IpService, write only the ports on which programs listen";
        findings.changed(&filter.at, message, fix);
        return Vec::new();
    }
    let every = ["0.0.0.0/0".to_owned(), "::/0".to_owned()];
    let local = if flow.local.is_empty() { &every[..] } else { &flow.local };
    let mut sockets = Vec::new();
    for text in local {
        match listen_at(text) {
            Ok(ip) => {
                let ports = flow.local_ports.iter().cloned().flatten();
                sockets.extend(ports.map(|port| SocketAddr::new(ip, port)));
            }
            Err(why) => {
                let message = format!(
                    "filter `{filter}` permits inbound connections, but {why}",
                    filter = filter.name
                );
                findings.error(
                    &filter.at,
                    message,
                    "in the filter, write the addresses on which programs listen",
                );
            }
        }
    }
    sockets
}

/// The rules for inbound connections: one for each port, because a rule connects to the same port.
fn inbound(
    name: &str,
    filter: &Filter,
    flow: &Flow,
    sockets: &[SocketAddr],
    findings: &mut Findings,
) -> Vec<Item> {
    let mut by_port: std::collections::BTreeMap<u16, Vec<SocketAddr>> = Default::default();
    for socket in sockets {
        match narrowed(*socket, flow) {
            // A rule cannot match a part of the addresses of its socket.
            Ok(left) if left.contains(socket) => {
                by_port.entry(socket.port()).or_default().push(*socket);
            }
            Ok(left) if left.is_empty() => {}
            Ok(_) | Err(_) => {
                let message = format!(
                    "rules listen on {socket} (all addresses of this host), but filter \
                     `{filter}` applies to only some of these addresses",
                    filter = filter.name
                );
                let fix = "in the filters for this port, write each address on which programs \
                           listen";
                findings.error(&filter.at, message, fix);
            }
        }
    }
    let several = by_port.len() > 1;
    let items = by_port.into_iter().map(|(port, sockets)| {
        let suffix = if several { format!("-{port}") } else { String::new() };
        let mut item = Item::new("[[rule]]", &filter.at);
        item.set("name", format!("{name}{suffix}"));
        item.set("direction", "inbound");
        item.set("listen", strings(&sockets));
        item.set("local-ports", port);
        finish(&mut item, filter, flow);
        item
    });
    items.collect()
}

fn outbound(name: &str, filter: &Filter, flow: &Flow) -> Item {
    let mut item = Item::new("[[rule]]", &filter.at);
    item.set("name", name);
    item.set("direction", "outbound");
    if flow.protocol == Protocol::Udp {
        item.set("protocol", "udp");
    }
    if !flow.local.is_empty() {
        item.set("local", flow.local.clone());
    }
    if !flow.local_ports.is_empty() {
        item.set("local-ports", port_list(&flow.local_ports));
    }
    finish(&mut item, filter, flow);
    item
}

/// Adds the conditions that filters of both directions have.
fn finish(item: &mut Item, filter: &Filter, flow: &Flow) {
    if !flow.remote.is_empty() {
        item.set("remote", flow.remote.clone());
    }
    if !flow.remote_ports.is_empty() {
        item.set("remote-ports", port_list(&flow.remote_ports));
    }
    item.keys.extend(filter.when.clone().map(|when| ("when".to_owned(), when)));
    match filter.action {
        Action::Permit => item.set("permit", true),
        Action::Deny => item.set("deny", true),
    }
    if filter.log {
        item.set("log", true);
    }
}

/// Replaces a value, or adds it before the action.
fn set(item: &mut Item, key: &str, value: Toml) {
    match item.keys.iter_mut().find(|(name, _)| name == key) {
        Some((_, old)) => *old = value,
        None => {
            let actions = ["tls", "permit", "deny"];
            let action = item.keys.iter().position(|(name, _)| actions.contains(&name.as_str()));
            let place = action.unwrap_or(item.keys.len());
            item.keys.insert(place, (key.to_owned(), value));
        }
    }
}

/// Ports as policies write them.
fn port_ranges(item: &Item, key: &str) -> Vec<RangeInclusive<u16>> {
    let range = |value: &Toml| match value {
        Toml::Number(port) => u16::try_from(*port).ok().map(|port| port..=port),
        Toml::Text(text) => {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        }
        _ => None,
    };
    match item.value(key) {
        Some(Toml::List(items)) => items.iter().filter_map(range).collect(),
        Some(one) => range(one).into_iter().collect(),
        None => Vec::new(),
    }
}

fn strings(sockets: &[SocketAddr]) -> Vec<String> {
    sockets.iter().map(SocketAddr::to_string).collect()
}
