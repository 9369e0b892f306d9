//! Parses the tables `[activate.NAME]` of a policy, and the key `activate` of rules.

use std::collections::BTreeMap;

use super::names::{Names, tables};
use super::value;
use super::words::Scope;
use crate::message_id::MessageId;
use crate::policy::activate::{ActivateOn, Activation, ProcessFor, RuleActivation, SocketAs};
use crate::policy::rule::{Action, Rule};
use crate::policy::text::{TomlTable, TomlValue};
use crate::policy::tls::Tls;

/// The largest value of `max` and `max-per-source`: the kernel's default limit of processes is
/// lower on most hosts.
const PROCESSES_MAX: u64 = 1 << 20;
/// The largest value of `starts`.
const STARTS_MAX: u64 = 1 << 20;
/// The largest number of words of a command.
const WORDS_MAX: usize = 256;
/// The largest length of the words of a command together.
const COMMAND_BYTES_MAX: usize = 32 << 10;

/// Reads all tables `[activate.NAME]`; the value of a table with an error is `None`.
pub(super) fn read_all<'a>(top: &TomlTable<'a>) -> BTreeMap<&'a str, Option<Activation>> {
    let user_needed = if top.holds("host") { UserNeeded::Other } else { UserNeeded::Any };
    let read = |name: &str, value: &TomlValue<'_>| activation(name, value, user_needed);
    tables(top, "activate", Scope::Activations, read)
}

/// Which user a program may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UserNeeded {
    /// Also that of the agent, the default.
    Any,
    /// Another one than the agent, because the nftables rules of a captured host let packets of the
    /// agent's user pass.
    Other,
}

fn activation(name: &str, value: &TomlValue<'_>, needed: UserNeeded) -> Option<Activation> {
    let table = value.table(Scope::Activation, format!("[activate.{name}]"))?;
    let fix = "set the program and its arguments: command = [\"/usr/bin/cat\"]";
    let command = table.required("command", fix).and_then(|value| command(&value));
    let on = table
        .value("on")
        .map_or_else(|| Some(ActivateOn::default()), |value| value.choice(&ActivateOn::WORDS));
    let process = table
        .value("process")
        .map_or_else(|| Some(ProcessFor::default()), |value| value.choice(&ProcessFor::WORDS));
    let shared = process.unwrap_or_default();
    let socket = table
        .value("socket")
        .map_or_else(|| Some(shared.socket_default()), |value| value.choice(&SocketAs::WORDS));
    if shared == ProcessFor::All {
        let why = "process = \"all\" starts only one process, which serves all connections";
        let fix =
            "remove `{key}`; to limit the connections, set `connections-per-rule` in [limits]";
        table.refuse(&["max", "max-per-source"], why, fix);
    }
    let processes_max = value::count(&table, "max", PROCESSES_MAX);
    let per_source = value::count(&table, "max-per-source", PROCESSES_MAX);
    let starts_max = value::count(&table, "starts", STARTS_MAX);
    let user = table.value("user").map_or(Some(None), |value| user(&value).map(Some));
    if needed == UserNeeded::Other && !table.holds("user") {
        let message = format!(
            "the program of [activate.{name}] would run as the agent's user. With [host], tacit \
             does not protect the connections of this user"
        );
        let fix = "set `user` to another user, and run the agent as root; or move this table and \
                   the rules that use it to the policy of another agent";
        table.report.error(MessageId("conflicting-keys"), &table.at, message, fix);
        return None;
    }
    Some(Activation {
        command: command?,
        on: on?,
        process: process?,
        socket: socket?,
        processes_max: processes_max?.unwrap_or(Activation::PROCESSES_DEFAULT),
        processes_per_source: per_source?,
        starts_max: starts_max?.unwrap_or_else(|| shared.starts_default()),
        user: user?,
        position: table.report.position(table.at.start),
    })
}

fn command(value: &TomlValue<'_>) -> Option<Vec<String>> {
    if value.value.is_array() {
        value.list(WORDS_MAX)?;
    }
    let words = value.each(|value| value.string().map(str::to_owned))?;
    let fault = match words.first() {
        None => Some("`command` is empty".to_owned()),
        Some(program) if !program.starts_with('/') => {
            Some(format!("`command` begins with `{program}`, which is not an absolute path"))
        }
        Some(_) if words.iter().any(|word| word.contains('\0')) => {
            Some("`command` contains NUL".to_owned())
        }
        Some(_) if words.iter().map(String::len).sum::<usize>() > COMMAND_BYTES_MAX => {
            Some(format!("`command` is longer than {COMMAND_BYTES_MAX} bytes"))
        }
        Some(_) => None,
    };
    if let Some(fault) = fault {
        let fix = "write the absolute path of the program, and each argument as a string of its \
                   own: command = [\"/usr/bin/cat\", \"-u\"]; no shell reads the command";
        value.error(fault, fix);
        return None;
    }
    Some(words)
}

fn user(value: &TomlValue<'_>) -> Option<String> {
    if value.value.is_integer() {
        return value::owner_number(value);
    }
    let text = value.string()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    if text.is_empty() || !text.bytes().all(plain) {
        value.error(format!("`user` cannot be `{text}`"), "write the name or number of a user");
        return None;
    }
    Some(text.to_owned())
}

/// Reads the key `activate` of a rule.
pub(super) fn named(table: &TomlTable<'_>, names: &Names<'_>) -> Option<RuleActivation> {
    let why = "a rule with `activate` starts a program, and does not connect to a server";
    let keys = ["connect", "order", "connect-timeout", "send-proxy"];
    table.refuse(&keys, why, "remove `{key}`, or remove `activate`");
    let name = table.value("activate").and_then(|value| names.activation(&value));
    let name = name.filter(|_| !keys.into_iter().any(|key| table.holds(key)))?;
    let on = names.activation_named(&name).map_or_else(ActivateOn::default, |it| it.on);
    Some(RuleActivation { name, on })
}

/// Checks that the program of a rule with `activate` gets clear text after the TLS of the client.
pub(super) fn check(table: &TomlTable<'_>, rule: &Rule) -> bool {
    let Some(activation) = rule.activation() else { return true };
    let (message, fix) = match &rule.action {
        Action::Tls(Tls::Client(_)) => (
            "a rule with `activate` accepts connections from clients, so it cannot have role = \
             \"client\"",
            "set role = \"server\", which gives the program the decrypted bytes",
        ),
        Action::Tls(Tls::Server(tls))
            if tls.common.start.starttls().is_some() && activation.on == ActivateOn::Message =>
        {
            (
                "the STARTTLS exchange may need the program, but with on = \"message\", the \
                 program starts only after this exchange",
                "set on = \"connection\" in [activate.NAME], or remove `starttls`",
            )
        }
        _ => return true,
    };
    if let Some(value) = table.value("activate") {
        table.report.error(MessageId("conflicting-keys"), &value.name_at, message, fix);
    }
    false
}
