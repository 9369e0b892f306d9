//! Parses the rules that apply to programs. There are two cases: programs under `tacit run`, and
//! programs of a captured host (`tacit agent --host`). Each of these rules applies either to
//! connections that programs open, or to connections that programs accept.

use super::selectors::{addresses, cgroups, groups, ports, programs, runs, units, users};
use super::tls::{Role, RoleDefault, ServerNameDefault, Setting};
use super::words::FORWARDING_KEYS;
use super::{address, value, when};
use crate::flow::{Address, Direction, Protocol};
use crate::policy::rule::{InboundRule, RuleForm};
use crate::policy::selector::AddressSelector;
use crate::policy::selector::Selectors;
use crate::policy::text::{TomlTable, TomlValue};

/// A rule for runs without its action.
pub(super) struct RunRule {
    pub(super) selectors: Selectors,
    /// Inbound or outbound.
    pub(super) form: RuleForm,
}

/// Reads all parts except the action; `None` after an error.
pub(super) fn read(table: &TomlTable<'_>) -> Option<RunRule> {
    let directions = [("inbound", Direction::Inbound), ("outbound", Direction::Outbound)];
    let fix = "set direction = \"inbound\" or \"outbound\"; or, for a forwarding rule, set \
               `listen` and `connect`";
    let direction = table.required("direction", fix).and_then(|value| value.choice(&directions));
    let no_sockets = refuse_sockets(table);
    let rule = match direction? {
        Direction::Outbound => outbound(table),
        Direction::Inbound => inbound(table),
    };
    rule.filter(|_| no_sockets)
}

/// Returns the TLS defaults of a rule for runs.
pub(super) fn setting(rule: Option<&RunRule>) -> Setting {
    let role = match rule.map(|rule| rule.selectors.direction) {
        Some(Direction::Inbound) => RoleDefault::Is(Role::Server),
        Some(Direction::Outbound) => RoleDefault::Is(Role::Client),
        None => RoleDefault::Unknown,
    };
    Setting { role, server: Some(ServerNameDefault::Resolved) }
}

fn outbound(table: &TomlTable<'_>) -> Option<RunRule> {
    let why = "this policy key is only for inbound connections, but this rule is for connections \
               that programs open";
    table.refuse(&["listen"], why, "remove `listen`, or set direction = \"inbound\"");
    let protocol = protocol(table);
    let local = addresses(table, "local", |value| {
        read_ip(value, "`local` cannot be a name", "write the address or network")
    });
    let local_ports = ports(table, "local-ports");
    let remote = addresses(table, "remote", address::selector);
    let remote_ports = ports(table, "remote-ports");
    let program = programs(table);
    let user = users(table);
    let group = groups(table);
    let cgroup = cgroups(table);
    let unit = units(table);
    let run = runs(table);
    let when = when::read(table);
    let selectors = Selectors {
        direction: Direction::Outbound,
        protocol: protocol?,
        local: local?,
        local_ports: local_ports?,
        remote: remote?,
        remote_ports: remote_ports?,
        program: program?,
        user: user?,
        group: group?,
        cgroup: cgroup?,
        unit: unit?,
        run: run?,
        when: when?,
    };
    (!table.holds("listen")).then_some(RunRule { selectors, form: RuleForm::Outbound })
}

fn inbound(table: &TomlTable<'_>) -> Option<RunRule> {
    let why = "`listen` sets the local address of inbound connections";
    table.refuse(&["local"], why, "remove `local`");
    let why = "tacit chooses the rule for a connection before it knows which program accepts this \
               connection";
    table.refuse(
        &["program"],
        why,
        "remove `program`, and select the program by its port, with `local-ports`",
    );
    let why = "an inbound rule cannot select a single run: the rule applies to all runs of the \
               agent, or to the captured host";
    table.refuse(
        &["run"],
        why,
        "remove `run`, or start the program with a private agent: `tacit run --policy`",
    );
    let why = "this policy key selects programs on this host, but the client of an inbound \
               connection may be on another host";
    let keys = ["group", "cgroup", "slice", "unit"];
    let fix = "remove the misplaced key, and select clients by address, with `remote`";
    table.refuse(&keys, why, fix);
    let protocol = protocol(table);
    if protocol == Some(Protocol::Udp)
        && let Some(value) = table.value("protocol")
    {
        let message = "inbound rules are for TCP; tacit does not relay datagrams into a run";
        value.error(message, "remove `protocol`, or set direction = \"outbound\"");
    }
    // Without `listen` the rule is for the host.
    let listen = table.value("listen").map(|value| value.each_once(read_listen));
    let fix = "set the port that the program listens on: local-ports = 8080; or, for a \
               forwarding rule, remove `direction` and set `connect`";
    let local_ports = table.required("local-ports", fix).and_then(|value| value.each(value::ports));
    let remote = addresses(table, "remote", |value| {
        let message = "`remote` of an inbound rule cannot be a name: tacit knows only the client's \
                       address";
        read_ip(value, message, "write the client's address or network")
    });
    let remote_ports = ports(table, "remote-ports");
    let user = users(table);
    let when = when::read(table);
    let selectors = Selectors {
        direction: Direction::Inbound,
        protocol: protocol.filter(|protocol| *protocol == Protocol::Tcp)?,
        local: Vec::new(),
        local_ports: Vec::new(),
        remote: remote?,
        remote_ports: remote_ports?,
        program: Vec::new(),
        user: user?,
        group: Vec::new(),
        cgroup: Vec::new(),
        unit: Vec::new(),
        run: Vec::new(),
        when: when?,
    };
    let local_ports = local_ports?;
    let rule = match listen {
        Some(listen) => {
            let inbound = InboundRule { listen: listen?, local_ports };
            RunRule { selectors, form: RuleForm::Inbound(inbound) }
        }
        None => {
            let selectors = Selectors { local_ports, ..selectors };
            RunRule { selectors, form: RuleForm::HostInbound }
        }
    };
    let refused = table.holds("local") || table.holds("program");
    (!refused).then_some(rule)
}

fn protocol(table: &TomlTable<'_>) -> Option<Protocol> {
    let protocols = [("tcp", Protocol::Tcp), ("udp", Protocol::Udp)];
    let Some(value) = table.value("protocol") else { return Some(Protocol::Tcp) };
    if value.value.as_str() == Some(Protocol::Icmp.word()) {
        let fix =
            "set protocol = \"tcp\" or \"udp\"; or, for ICMP, use a rule with `ipsec` or `filter`";
        value.error(
            "`protocol` of this rule cannot be `icmp`, because tacit handles ICMP only in rules \
             with `ipsec` or `filter`",
            fix,
        );
        return None;
    }
    value.choice(&protocols)
}

/// Parses a selector that must not be a name.
fn read_ip(value: &TomlValue<'_>, message: &str, fix: &str) -> Option<AddressSelector> {
    let selector = address::selector(value)?;
    if matches!(selector, AddressSelector::Name { .. }) {
        value.error(message, fix);
        return None;
    }
    Some(selector)
}

/// Clients of a program in another network have an address. Clients on a UNIX socket would have
/// none.
fn read_listen(value: &TomlValue<'_>) -> Option<Address> {
    let listen = address::listen(value)?;
    if listen.ip().is_none() {
        let message = format!("`listen` of an inbound rule cannot be {listen}");
        value.error(message, "write an address with a port, for example \"0.0.0.0:8443\"");
        return None;
    }
    Some(listen)
}

/// Rejects keys of forwarding rules. Returns whether there were none.
fn refuse_sockets(table: &TomlTable<'_>) -> bool {
    let has_any = if table.holds("listen") {
        let why = "this key is only for forwarding rules, but this rule has `direction` or \
                   `local-ports`, so it applies to programs";
        let fix = "remove the misplaced key, or remove `direction` and `local-ports`";
        table.refuse(&FORWARDING_KEYS, why, fix)
    } else {
        let why = "this key is only for forwarding rules, and every forwarding rule has `listen`";
        table.refuse(&FORWARDING_KEYS, why, "remove the misplaced key, or add `listen`")
    };
    !has_any
}
