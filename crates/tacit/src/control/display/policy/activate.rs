//! Lists the settings of `[activate.NAME]` for `tacit show policy`.

use tacit_core::policy::{ActivateOn, Activation, Policy, ProcessFor, SocketAs};

use super::{PolicyTable, Settings};

/// The activations of the policy.
pub(super) fn tables(policy: &Policy) -> impl Iterator<Item = PolicyTable> {
    policy.activations.iter().map(move |(name, activation)| table(policy, name, activation))
}

fn table(policy: &Policy, name: &str, activation: &Activation) -> PolicyTable {
    let Activation {
        command,
        on,
        process,
        socket,
        processes_max,
        processes_per_source,
        starts_max,
        user,
        position,
    } = activation;
    let mut settings = Settings::default();
    settings.add("command", command.clone(), false);
    settings.add("on", word(&ActivateOn::WORDS, *on), *on == ActivateOn::default());
    settings.add("process", word(&ProcessFor::WORDS, *process), *process == ProcessFor::default());
    let is_default = *socket == process.socket_default();
    settings.add("socket", word(&SocketAs::WORDS, *socket), is_default);
    if *process == ProcessFor::Each {
        let is_default = *processes_max == Activation::PROCESSES_DEFAULT;
        settings.add("max", *processes_max, is_default);
        settings.add("max-per-source", *processes_per_source, processes_per_source.is_none());
    }
    settings.add("starts", *starts_max, *starts_max == process.starts_default());
    settings.add("user", user.clone(), user.is_none());
    settings.table(&format!("[activate.{name}]"), Some(name)).at(policy, *position)
}

fn word<T: PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    words.iter().find(|(_, one)| *one == value).map_or("", |(word, _)| word)
}
