//! Parses the rules for IPsec tunnels (the rules with the key `ipsec`).
//!
//! The kernel selects the packets of a tunnel by routes. So a rule with `ipsec` can select only by
//! address, protocol and port.

use super::names::Names;
use super::run::RunRule;
use super::selectors::{addresses, ports, runs};
use super::words::{FORWARDING_KEYS, Scope};
use super::{address, value};
use crate::flow::{Direction, Protocol};
use crate::message_id::MessageId;
use crate::policy::rule::{Action, Ipsec, RuleForm, TunnelKeying};
use crate::policy::selector::{AddressSelector, Selectors};
use crate::policy::text::{TomlTable, TomlValue};

/// Reads `ipsec = { ike = "NAME" }` or `ipsec = { sa = "NAME" }`.
pub(super) fn action(value: &TomlValue<'_>, names: &Names<'_>) -> Option<Action> {
    let table = value.table(Scope::Ipsec, "`ipsec`")?;
    if let Some(sa) = table.value("sa") {
        if table.holds("ike") {
            let message = "`ipsec` cannot contain both `ike` and `sa`";
            let fix = "remove one of the two keys: a rule has only one tunnel";
            table.report.error(MessageId("conflicting-keys"), &sa.name_at, message, fix);
            return None;
        }
        let peer = names.sa(&sa)?;
        return Some(Action::Ipsec(Ipsec { peer, keyed_by: TunnelKeying::Manual }));
    }
    let fix = "set the name of the peer: ipsec = { ike = \"branch\" }, and add a table \
               [ike.branch]; or, for manual keying, set ipsec = { sa = \"branch\" }, and add a \
               table [sa.branch]";
    let peer = table.required("ike", fix).and_then(|value| names.ike(&value))?;
    Some(Action::Ipsec(Ipsec { peer, keyed_by: TunnelKeying::Ike }))
}

/// Reads all parts except the action; `None` after an error.
pub(super) fn read(table: &TomlTable<'_>) -> Option<RunRule> {
    refuse(table);
    let directions = [("inbound", Direction::Inbound), ("outbound", Direction::Outbound)];
    let fix = "set direction = \"outbound\" for connections that programs open, or direction = \
               \"inbound\" for connections that programs accept";
    let direction = table.required("direction", fix).and_then(|value| value.choice(&directions));
    let words = [Protocol::Tcp, Protocol::Udp, Protocol::Icmp].map(|one| (one.word(), one));
    let protocol =
        table.value("protocol").map_or(Some(Protocol::Tcp), |value| value.choice(&words));
    if protocol == Some(Protocol::Icmp) {
        table.refuse(&["local-ports", "remote-ports"], "ICMP has no ports", "remove `{key}`");
    }
    let remote = addresses(table, "remote", remote);
    let remote_ports = ports(table, "remote-ports");
    let local_ports = match (direction, protocol) {
        (Some(Direction::Inbound), Some(Protocol::Tcp | Protocol::Udp)) => {
            let fix = "set the ports that the program listens on: local-ports = 8080";
            table.required("local-ports", fix).and_then(|value| value.each(value::ports))
        }
        _ => ports(table, "local-ports"),
    };
    let run = runs(table);
    let direction = direction?;
    let selectors = Selectors {
        direction,
        protocol: protocol?,
        local: Vec::new(),
        local_ports: local_ports?,
        remote: remote?,
        remote_ports: remote_ports?,
        program: Vec::new(),
        user: Vec::new(),
        group: Vec::new(),
        cgroup: Vec::new(),
        unit: Vec::new(),
        run: run?,
        when: None,
    };
    let form = match direction {
        Direction::Inbound => RuleForm::TunnelInbound,
        Direction::Outbound => RuleForm::Outbound,
    };
    Some(RunRule { selectors, form })
}

/// Reports keys that have no meaning for packets.
fn refuse(table: &TomlTable<'_>) {
    let why = "the kernel delivers the packets of a tunnel directly to programs, so tacit has no \
               socket to which this key could apply";
    let fix = "remove `{key}`; to select the ports at which programs listen, set `local-ports`";
    table.refuse(&["listen"], why, fix);
    table.refuse(&FORWARDING_KEYS, why, fix);
    let owners = ["program", "user", "group", "cgroup", "slice", "unit"];
    let why = "the kernel selects the packets of a tunnel by routes, which do not depend on the \
               program";
    table.refuse(&owners, why, "remove `{key}`; to select programs, set `run`");
    let why =
        "the kernel selects the packets of a tunnel by routes, which do not depend on the time";
    table.refuse(&["when"], why, "remove `when`");
    let why = "the table of the peer ([ike.NAME] or [sa.NAME]) sets the local address of a flow in \
               a tunnel";
    table.refuse(&["local"], why, "remove `local`");
    let why = "tacit handles each packet of a tunnel separately, so a rule cannot have settings \
               for connections";
    table.refuse(&["log", "idle"], why, "remove `{key}`");
    let why = "in audit mode, tacit would send the packets in clear";
    table.refuse(&["mode"], why, "remove `mode`");
}

/// Parses an entry of `remote`: addresses behind the peer.
fn remote(value: &TomlValue<'_>) -> Option<AddressSelector> {
    let selector = address::selector(value)?;
    let (problem, fix) = match selector {
        AddressSelector::Name { .. } => (
            "the routes of a tunnel contain addresses, and no DNS names",
            "set `remote` to the addresses that programs reach through the tunnel; to let programs \
             resolve a name, list the name in `names`",
        ),
        _ if selector.near().is_some() => (
            "a loopback or link-local address cannot be reached through a tunnel",
            "set `remote` to the addresses that programs reach through the tunnel",
        ),
        _ => return Some(selector),
    };
    let text = value.value.as_str().unwrap_or_default();
    value.error(format!("`remote` of a rule with `ipsec` cannot be `{text}`: {problem}"), fix);
    None
}
