//! Parses the policy table `[engine]`, and the keys of `[agent]` that assign CPUs.

use super::value;
use super::words::Scope;
use crate::policy::engine::{CPU_MAX, EngineClass, EngineSettings, Placement};
use crate::policy::text::{TomlTable, TomlValue};

/// The largest `queue`. No machine completes more handshakes before their timeout.
const QUEUE_MAX: u64 = 65_536;
/// The kernel's own range of nice values.
const NICE: std::ops::RangeInclusive<i32> = -20..=19;

/// Reads `[engine]`; `Some(None)` if there is none.
pub(super) fn read(top: &TomlTable<'_>) -> Option<Option<EngineSettings>> {
    let Some(value) = top.value("engine") else { return Some(None) };
    let table = value.table(Scope::Engine, "[engine]")?;
    let cpus = table
        .required("cpus", "set the CPUs of the engines, for example cpus = \"2-3\"")
        .and_then(|value| cpus(&value));
    let spill = table.boolean("spill", true);
    let poll = table.boolean("poll", true);
    let queue = value::count(&table, "queue", QUEUE_MAX);
    let class = table.value("class").map_or(Some(EngineClass::Normal), |value| class(&value));
    let nice = table.value("nice").map_or(Some(0), |value| nice(&value));
    Some(Some(EngineSettings {
        cpus: cpus?,
        spill: spill?,
        poll: poll?,
        queue: queue?.unwrap_or(EngineSettings::QUEUE_DEFAULT),
        class: class?,
        nice: nice?,
        position: table.report.position(table.at.start),
    }))
}

/// The placement of workers and programs of runs.
pub(super) struct Places {
    pub(super) placement: Placement,
    /// The CPUs to choose from.
    pub(super) cpus: Vec<usize>,
}

/// Reads `placement` and `placement-cpus` of `[agent]`.
pub(super) fn placement(table: &TomlTable<'_>) -> Option<Places> {
    let words = [
        ("adaptive", Placement::Adaptive),
        ("none", Placement::None),
        ("split", Placement::Split),
        ("one-cpu", Placement::OneCpu),
    ];
    let placement =
        table.value("placement").map_or(Some(Placement::Adaptive), |value| value.choice(&words))?;
    let Some(value) = table.value("placement-cpus") else {
        return Some(Places { placement, cpus: Vec::new() });
    };
    let cpus = cpus(&value)?;
    if matches!(placement, Placement::Adaptive | Placement::None) {
        let fix = "set placement = \"split\" or \"one-cpu\", or remove `placement-cpus`";
        value.error("`placement-cpus` needs placement = \"split\" or placement = \"one-cpu\"", fix);
        return None;
    }
    Some(Places { placement, cpus })
}

/// Reports CPUs that are reserved for engines and also used for placement.
pub(super) fn check_apart(top: &TomlTable<'_>, engine: &EngineSettings, placed: &[usize]) -> bool {
    let both: Vec<_> = placed.iter().filter(|cpu| engine.cpus.contains(cpu)).collect();
    let [first, ..] = both.as_slice() else { return true };
    let Some(agent) = top.value("agent") else { return true };
    let message = format!("CPU {first} is in `placement-cpus`, and is also reserved by [engine]");
    agent.error(
        message,
        "list the CPU either in `placement-cpus` or in `cpus` of [engine], but not in both",
    );
    false
}

/// Parses CPUs in the format of the kernel: `"2"`, `"2-3"`, `"0,4-7"`.
fn cpus(value: &TomlValue<'_>) -> Option<Vec<usize>> {
    let text = value.string()?;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let ends = part.split_once('-').unwrap_or((part, part));
        let (Some(first), Some(last)) = (number(ends.0.trim()), number(ends.1.trim())) else {
            let message =
                format!("`{key}` cannot be `{text}`: this is not a list of CPUs", key = value.name);
            value.error(message, "write numbers and ranges, such as \"2\", \"2-3\" or \"0,4-7\"");
            return None;
        };
        if last > CPU_MAX {
            let message = format!(
                "`{key}` names CPU {last}, but the highest possible CPU number is {CPU_MAX}",
                key = value.name
            );
            value.error(message, format!("write numbers up to {CPU_MAX}"));
            return None;
        }
        if first > last {
            let message = format!(
                "`{key}`: the last CPU of the range {first}-{last} is lower than the first CPU",
                key = value.name
            );
            value.error(message, format!("write \"{last}-{first}\""));
            return None;
        }
        cpus.extend(first..=last);
        if cpus.len() > CPU_MAX + 1 {
            break;
        }
    }
    cpus.sort_unstable();
    if let Some(twice) = cpus.windows(2).find(|pair| pair[0] == pair[1]) {
        let message = format!("`{}` names CPU {} twice", value.name, twice[0]);
        value.error(message, "list each CPU only once");
        return None;
    }
    Some(cpus)
}

/// Parses a number that has only digits.
fn number(text: &str) -> Option<usize> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| plain)
}

fn class(value: &TomlValue<'_>) -> Option<EngineClass> {
    if value.value.as_str() == Some("idle") {
        let fix = "write \"normal\" or \"batch\"; use `nice` to lower the priority";
        value.error("`class` cannot be `idle`: connections could wait forever for a CPU", fix);
        return None;
    }
    value.choice(&[("normal", EngineClass::Normal), ("batch", EngineClass::Batch)])
}

fn nice(value: &TomlValue<'_>) -> Option<i32> {
    let Some(number) = value.value.as_integer() else {
        value.wrong_type("a whole number, without quotes");
        return None;
    };
    let read = i32::from_str_radix(&number.digits, number.radix).ok();
    let nice = read.filter(|nice| NICE.contains(nice));
    if nice.is_none() {
        let min = NICE.start();
        let max = NICE.end();
        value.error(
            format!("`nice` is {number}, but must be {min} to {max}"),
            format!("write a number from {min} (highest priority) to {max} (lowest)"),
        );
    }
    nice
}
