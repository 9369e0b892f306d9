//! Parses the addresses of a forwarding rule: the keys `listen` and `connect`, and related keys.

use std::net::SocketAddr;
use std::time::Duration;

use super::{address, value};
use crate::flow::Address;
use crate::message_id::MessageId;
use crate::policy::activate::RuleActivation;
use crate::policy::rule::{Action, ForwardRule, Rule, SendProxy, UnixSocket};
use crate::policy::starttls::Start;
use crate::policy::target::{Connect, TARGETS_MAX, Target, TargetOrder};
use crate::policy::text::{TomlTable, TomlValue};
use crate::policy::tls::Tls;

/// The default of `connect-timeout`.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT_MIN: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(600);

/// The default of `unix-mode`: only the agent's own user has access.
const UNIX_MODE_DEFAULT: u32 = 0o600;

/// Rejects keys about the destination in a deny; `None` after an error.
pub(super) fn refuse_connect(table: &TomlTable<'_>) -> Option<Destination> {
    let keys = ["connect", "activate", "order", "connect-timeout", "send-proxy"];
    table.refuse(
        &keys,
        "a rule with `deny` rejects connections, so this key has no effect",
        "remove `{key}`",
    );
    (!keys.into_iter().any(|key| table.holds(key))).then_some(Destination::Nowhere)
}

/// Parses `connect`; `None` after an error.
pub(super) fn connect(table: &TomlTable<'_>) -> Option<Destination> {
    // A rule with an invalid `deny` gets the error about `deny`, and not one about `connect`.
    if table.holds("deny") && !table.holds("connect") {
        return None;
    }
    let fix = "set the address to connect to: connect = \"127.0.0.1:8080\"";
    let targets = table.required("connect", fix).and_then(|value| targets(&value));
    let order = order(table, targets.as_deref());
    Some(Destination::Server(Connect { targets: targets?, order: order? }))
}

fn targets(value: &TomlValue<'_>) -> Option<Vec<Target>> {
    if value.value.is_array() {
        value.list(TARGETS_MAX)?;
    }
    value.each_once(address::target)
}

/// Parses `order`. A rule with a single target has no order.
fn order(table: &TomlTable<'_>, targets: Option<&[Target]>) -> Option<TargetOrder> {
    let Some(value) = table.value("order") else { return Some(TargetOrder::default()) };
    let orders = [TargetOrder::First, TargetOrder::RoundRobin].map(|order| (order.word(), order));
    let order = value.choice(&orders)?;
    if targets.is_some_and(|targets| targets.len() == 1) {
        let fix =
            "remove `{key}`, or set several targets: connect = [\"10.0.0.1:80\", \"10.0.0.2:80\"]";
        table.refuse(&["order"], "`connect` has only one target", fix);
        return None;
    }
    Some(order)
}

/// Returns an entry of a list, or the single value that stands instead of a list.
pub(super) fn item<'a>(
    table: &TomlTable<'a>,
    key: &'static str,
    place: usize,
) -> Option<TomlValue<'a>> {
    table.value(key)?.items()?.into_iter().nth(place)
}

/// Where the connections of a forwarding rule go.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    /// Nowhere: the rule denies.
    Nowhere,
    /// To a server.
    Server(Connect),
    /// To a program that they start.
    Program(RuleActivation),
}

/// Parses the remaining keys. `None` as the destination: after an error.
pub(super) fn read(table: &TomlTable<'_>, destination: Option<Destination>) -> Option<ForwardRule> {
    let listen = table.value("listen").and_then(|value| value.each_once(address::listen));
    let accept_proxy = table.boolean("accept-proxy", false);
    let send_proxy = table.value("send-proxy").map_or(Some(None), |value| send_proxy(&value));
    let connect_timeout =
        table.value("connect-timeout").map_or(Some(CONNECT_TIMEOUT_DEFAULT), |value| {
            value::duration(&value, CONNECT_TIMEOUT_MIN, CONNECT_TIMEOUT_MAX)
        });
    let unix = unix_socket(table);
    let clear = table.boolean("clear", false);
    let (connect, activate) = match destination? {
        Destination::Nowhere => (None, None),
        Destination::Server(connect) => (Some(connect), None),
        Destination::Program(activation) => (None, Some(activation)),
    };
    let forward = ForwardRule {
        listen: listen?,
        connect,
        activate,
        accept_proxy: accept_proxy?,
        send_proxy: send_proxy?,
        connect_timeout: connect_timeout?,
        unix: unix?,
        clear: clear?,
    };
    let sound = check_unix_keys(table, &forward) & check_loop(table, &forward);
    sound.then_some(forward)
}

fn send_proxy(value: &TomlValue<'_>) -> Option<Option<SendProxy>> {
    if value.value.is_str() {
        return value.choice(&[("tls", SendProxy::Tls)]).map(Some);
    }
    Some(value.boolean()?.then_some(SendProxy::Addresses))
}

fn unix_socket(table: &TomlTable<'_>) -> Option<UnixSocket> {
    let mode = table.value("unix-mode").map_or(Some(UNIX_MODE_DEFAULT), |value| mode(&value));
    let owner = table.value("unix-owner").map_or(Some(None), |value| owner(&value).map(Some));
    let replace_stale = table.boolean("replace-stale", false);
    Some(UnixSocket { mode: mode?, owner: owner?, replace_stale: replace_stale? })
}

fn mode(value: &TomlValue<'_>) -> Option<u32> {
    if value.value.is_integer() {
        value.wrong_type("the permission bits in quotes: \"0660\"");
        return None;
    }
    let text = value.string()?;
    let octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    let number = octal.then(|| u32::from_str_radix(text, 8).ok()).flatten();
    let mode = number.filter(|mode| *mode <= 0o777);
    if mode.is_none() {
        let message = format!("`unix-mode` cannot be `{text}`: only permission bits are allowed");
        value.error(message, "write an octal number from \"0000\" to \"0777\", such as \"0660\"");
    }
    mode
}

fn owner(value: &TomlValue<'_>) -> Option<String> {
    let text = value.string()?;
    let parts = text.split_once(':');
    let user = parts.map_or(text, |(user, _)| user);
    let group = parts.map(|(_, group)| group);
    let plain = |name: &str| {
        name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
    };
    let is_given = match group {
        None => !user.is_empty(),
        Some(group) => !group.is_empty(),
    };
    if !is_given || !plain(user) || !group.is_none_or(plain) {
        let message = format!("`unix-owner` cannot be `{text}`");
        value.error(message, "write \"user\", \"user:group\" or \":group\", by name or number");
        return None;
    }
    Some(text.to_owned())
}

/// Checks that keys for UNIX sockets are used only with a UNIX socket.
fn check_unix_keys(table: &TomlTable<'_>, forward: &ForwardRule) -> bool {
    if forward.listen.iter().any(|address| matches!(address, Address::Path(_))) {
        return true;
    }
    let keys = ["unix-mode", "unix-owner", "replace-stale"];
    let why = "this rule does not listen at the path of a UNIX socket";
    table.refuse(&keys, why, "remove `{key}`, or listen at \"unix:/run/x.sock\"");
    !keys.into_iter().any(|key| table.holds(key))
}

/// Checks that the rule does not connect to its own listening address, which would be an endless
/// loop.
fn check_loop(table: &TomlTable<'_>, forward: &ForwardRule) -> bool {
    let targets = forward.connect.iter().flat_map(|connect| &connect.targets);
    let mut is_sound = true;
    for (place, target) in targets.enumerate() {
        let Target::Address(address) = target else { continue };
        let Some(listen) = forward.listen.iter().find(|listen| reaches(address, listen)) else {
            continue;
        };
        if let Some(value) = item(table, "connect", place) {
            let message = format!("{rule} connects to itself at {listen}", rule = table.title);
            value.error(
                message,
                "set `connect` to the address of the server; it must not be the address of \
                 `listen`",
            );
        }
        is_sound = false;
    }
    is_sound
}

fn reaches(target: &Address, listen: &Address) -> bool {
    let every_address = |listen: &SocketAddr, target: &SocketAddr| {
        listen.ip().is_unspecified() && target.ip().is_loopback() && listen.port() == target.port()
    };
    target == listen
        || matches!((listen, target), (Address::Inet(l), Address::Inet(t)) if every_address(l, t))
}

/// Checks that `send-proxy = "tls"` is used only if the client's TLS is known.
pub(super) fn check_send_proxy(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let wanted = rule.forward().and_then(|forward| forward.send_proxy);
    let is_known = match &rule.action {
        Action::Tls(Tls::Server(tls)) => tls.common.start == Start::Immediate,
        _ => false,
    };
    if wanted != Some(SendProxy::Tls) || is_known {
        return true;
    }
    if let Some(value) = table.value("send-proxy") {
        let message = "`send-proxy` cannot be `tls` in this rule: when tacit sends the PROXY \
                       header, the client has not done a TLS handshake with tacit";
        let fix = "set send-proxy = true, or write the rule with role = \"server\" and without \
                   `starttls`";
        value.error(message, fix);
    }
    false
}

/// Checks that no bytes of a `tls` rule are sent over the network in clear, unless the rule permits
/// it.
///
/// TLS ends in the agent. In the server role the agent sends decrypted bytes to `connect`, and in
/// the client role it receives clear bytes at `listen`. The clear socket is safe only if its
/// traffic cannot leave this host.
pub(super) fn check_clear(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let Some(forward) = rule.forward() else { return true };
    match (clear_socket(rule, forward), table.value("clear")) {
        (Some(ClearSocket { key, place, message }), _) if !forward.clear => {
            let at = item(table, key, place).map_or_else(|| table.at.clone(), |value| value.at);
            let fix = "use loopback or a UNIX socket; or, if you trust the network between tacit \
                       and this address, set clear = true";
            table.report.error(MessageId("clear-leaves-host"), &at, message, fix);
            false
        }
        (None, Some(clear)) if forward.clear => {
            let position = table.report.position(clear.name_at.start);
            let message = "`clear = true` has no effect: this rule sends no data in clear to other \
                           hosts";
            table.report.warning(MessageId("no-effect"), position, message, "remove `clear`");
            true
        }
        _ => true,
    }
}

/// A clear socket whose traffic can leave this host.
struct ClearSocket {
    /// The key with its address.
    key: &'static str,
    /// The index of the entry in this key.
    place: usize,
    message: String,
}

fn clear_socket(rule: &Rule, forward: &ForwardRule) -> Option<ClearSocket> {
    let name = &rule.name;
    match &rule.action {
        Action::Tls(Tls::Server(_)) => {
            let targets = forward.connect.iter().flat_map(|connect| &connect.targets);
            let (place, target) =
                targets.enumerate().find(|(_, target)| !target.stays_on_host())?;
            let message = format!("rule `{name}` would send decrypted data to {target} in clear");
            Some(ClearSocket { key: "connect", place, message })
        }
        Action::Tls(Tls::Client(_)) => {
            let mut listens = forward.listen.iter().enumerate();
            let (place, listen) = listens.find(|(_, listen)| !listen.stays_on_host())?;
            let message =
                format!("at {listen}, rule `{name}` would accept data in clear from other hosts");
            Some(ClearSocket { key: "listen", place, message })
        }
        Action::Permit | Action::Deny(_) | Action::Ipsec(_) => None,
    }
}
