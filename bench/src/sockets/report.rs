//! Prints the results of `bench sockets` as text or as JSON.

use std::fmt::Write;

use clap::ValueEnum;
use serde_json::{Value, json};
use tacit_core::statistics::Histogram;

use super::arguments::SocketsArgs;
use super::table::{Measured, cpus};

/// One number.
pub(super) struct Figure {
    /// The key in JSON; ends with the unit.
    key: String,
    /// The title in the text.
    title: String,
    unit: &'static str,
    value: f64,
}

/// The figures of a measurement.
pub(super) fn figures(measured: &Measured) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut add = |key: &str, title: &str, unit, value| {
        figures.push(Figure { key: key.to_owned(), title: title.to_owned(), unit, value });
    };
    let results = &measured.results;
    let all = results.transactions as f64;
    let cpu_s = measured.cpu_ns as f64 / 1e9;
    let waited_ns = results.waits.ns as f64;
    let thread_ns = measured.threads as f64 * measured.seconds * 1e9;
    add("transactions_per_s", "transactions", "/s", all / measured.seconds);
    // z/TPF states its gain as throughput divided by utilisation.
    add("transactions_per_cpu_s", "transactions per CPU s", "", all / cpu_s);
    add("spin_percent", "time spent spinning", "%", 100.0 * waited_ns / thread_ns);
    add("spin_us_per_transaction", "spinning per transaction", "us", waited_ns / 1000.0 / all);
    add("waits_per_transaction", "waits per transaction", "", results.waits.count as f64 / all);
    add("cpu_us_per_transaction", "CPU time per transaction", "us", cpu_s * 1e6 / all);
    latency(&mut figures, "latency", "transaction", &results.latency);
    if results.display.count() > 0 {
        latency(&mut figures, "display", "display", &results.display);
    }
    figures
}

fn latency(figures: &mut Vec<Figure>, key: &str, title: &str, values: &Histogram) {
    for (name, per_mille) in [("p50", 500), ("p99", 990), ("p999", 999)] {
        figures.push(Figure {
            key: format!("{key}_{name}_us"),
            title: format!("{title} {name}"),
            unit: "us",
            value: values.per_mille(per_mille) as f64 / 1000.0,
        });
    }
}

/// The figures as text.
pub(super) fn text(
    args: &SocketsArgs,
    measured: &Measured,
    figures: &[Figure],
) -> Result<String, String> {
    let mut out = format!(
        "lock {}, lock for send: {}, --displays {}, {} threads, {} connections, {:.1} s\n",
        word(args.lock),
        word(args.send()?),
        if args.displays { "on" } else { "off" },
        measured.threads,
        args.connections,
        measured.seconds
    );
    for Figure { title, unit, value, .. } in figures {
        let shown = format!("{value:.2}");
        let _ = writeln!(out, "{title:24} {shown:>14} {unit}");
    }
    let _ = writeln!(
        out,
        "For comparison: in z/TPF, throughput rose by 28 % on 8 CPUs and by 40 % on 16 CPUs after \
         read-only calls stopped taking the global lock. This machine has {}.",
        cpus()
    );
    Ok(out)
}

/// The figures as JSON.
pub(super) fn json(args: &SocketsArgs, figures: &[Figure]) -> Result<Value, String> {
    let values: serde_json::Map<_, _> =
        figures.iter().map(|figure| (figure.key.clone(), json!(figure.value))).collect();
    Ok(json!({
        "lock": word(args.lock),
        "send": word(args.send()?),
        "displays": args.displays,
        "connections": args.connections,
        "bytes": args.bytes,
        "figures": values,
    }))
}

/// The value as written on the command line.
fn word(value: impl ValueEnum) -> String {
    let named = value.to_possible_value();
    named.map_or_else(String::new, |named| named.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::table::{Measured, Results};
    use super::*;

    #[test]
    fn text_and_json_have_the_figures() {
        let mut results = Results { transactions: 1000, ..Results::default() };
        results.latency.record(5000);
        let measured = Measured { results, threads: 2, seconds: 0.5, cpu_ns: 1_000_000_000 };
        let args = SocketsArgs::try_parse_from(["", "--lock", "rw"]).unwrap();
        let figures = figures(&measured);
        let json = json(&args, &figures).unwrap();
        assert_eq!(json["figures"]["transactions_per_s"], 2000.0);
        assert_eq!(json["figures"]["transactions_per_cpu_s"], 1000.0);
        assert_eq!(json["lock"], "rw");
        assert_eq!(json["send"], "throughout");
        let text = text(&args, &measured, &figures).unwrap();
        let first = "lock rw, lock for send: throughout, --displays off, 2 threads";
        assert!(text.contains(first), "{text}");
        assert!(text.contains("rose by 28 % on 8 CPUs"), "{text}");
    }
}
