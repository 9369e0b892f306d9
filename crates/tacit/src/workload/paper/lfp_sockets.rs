//! Measures short connections, and the memory that idle connections use. The module repeats these
//! measurements for each network path that `lfp.rs` compares.
//!
//! A short connection exchanges one byte in each direction. A test with four connections at a time
//! shows how many connections a path can open in a second. A test with one connection at a time
//! shows how long a connection takes. Ended connections do not stay in the state TIME-WAIT, because
//! the kernel would search for free ports.
//!
//! The measured memory is the memory of the processes between program and server, without the
//! memory of the kernel.

use tacit_sys::process::descendants;

use super::cell::{CellSamples, Gap, Measurement, PaperCell};
use super::paths::{NetworkPath, PathContext};
use super::session::SessionResult;
use super::sheet::PaperTable;
use super::stage::Stage;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketLoad {
    /// Short connections, four at a time.
    Many,
    /// Short connections, one at a time.
    Single,
}

/// The numbers of short connections, and of idle ones.
const MANY: u64 = 3_000;
const SINGLE: u64 = 1_000;
const IDLE: u64 = 1_000;

const OPENED: &str = "connections_per_s";
const CPU: &str = "cpu_us_per_connection";
const P50: &str = "p50_us";
const MEMORY: &str = "memory_kb";

/// The paths whose processes have memory for each connection, or may have.
const OF_TACIT: [NetworkPath; 4] =
    [NetworkPath::Relay, NetworkPath::Handed, NetworkPath::Link, NetworkPath::TlsLink];

impl SocketLoad {
    const ALL: [Self; 2] = [Self::Many, Self::Single];

    fn key(self, path: NetworkPath) -> String {
        let what = match self {
            Self::Many => "short connections",
            Self::Single => "one short connection at a time",
        };
        format!("{what}, {}", path.name())
    }

    fn words(self, stage: &Stage, server: &str) -> String {
        let (connections, at_once) = match self {
            Self::Many => (MANY, 4),
            Self::Single => (SINGLE, 1),
        };
        let connections = connections / stage.extent.divisor;
        format!(
            "{tacit} workload connect client --connections {connections} --at-once {at_once} \
             --connect {server}:7000 --wait 20s --steered",
            tacit = stage.tacit()
        )
    }

    fn figures(result: &SessionResult) -> Result<Vec<(String, f64)>, Gap> {
        let SessionResult { report, cpu_s } = result;
        let number = |key: &str| report["figures"][key].as_f64().filter(|value| *value > 0.0);
        let figures = (number("connections"), number(OPENED), number("latency_p50_us"));
        match figures {
            (Some(connections), Some(opened), Some(p50)) => Ok(vec![
                (OPENED.to_owned(), opened),
                (CPU.to_owned(), cpu_s * 1e6 / connections),
                (P50.to_owned(), p50),
            ]),
            _ => {
                Err(Gap::failed(format!("the workload's report lacks a required value: {report}")))
            }
        }
    }
}

/// Measures all paths once. `prepared` has the process of the server.
pub(super) fn measure(
    stage: &Stage,
    prepared: &Result<(u32, &PathContext), Gap>,
    samples: &mut CellSamples,
    round: usize,
) {
    for load in SocketLoad::ALL {
        for path in NetworkPath::turns(round) {
            once(stage, samples, &load.key(path), round, || {
                let (server, context) = prepared.as_ref().map_err(Clone::clone)?;
                short(stage, *server, context, load, path)
            });
        }
    }
    for path in OF_TACIT {
        once(stage, samples, &memory_key(path), round, || {
            let (_, context) = prepared.as_ref().map_err(Clone::clone)?;
            let many = idle_kb(stage, context, path, IDLE / stage.extent.divisor)?;
            let one = idle_kb(stage, context, path, 1)?;
            let connections = (IDLE / stage.extent.divisor - 1) as f64;
            Ok(vec![(MEMORY.to_owned(), (many - one).max(0.0) / connections)])
        });
    }
}

/// Adds a sample, unless an earlier one of the same failed.
fn once(
    stage: &Stage,
    samples: &mut CellSamples,
    subject: &str,
    round: usize,
    take: impl FnOnce() -> Result<Vec<(String, f64)>, Gap>,
) {
    if !samples.is_given_up(subject) {
        stage.progress(&format!("lfp: {subject}, round {round}"));
        samples.add(subject, take());
    }
}

fn short(
    stage: &Stage,
    server: u32,
    context: &PathContext,
    load: SocketLoad,
    path: NetworkPath,
) -> Result<Vec<(String, f64)>, Gap> {
    let words = load.words(stage, path.server());
    let words: Vec<_> = words.split(' ').collect();
    let (mut session, attached) = path.start(stage, context, &words)?;
    let mut others = path.others(context, attached.as_ref());
    others.push(server);
    let result = session.measure(&others)?;
    session.end();
    SocketLoad::figures(&result)
}

/// The memory of the processes on a path with this number of idle connections, in KB.
fn idle_kb(
    stage: &Stage,
    context: &PathContext,
    path: NetworkPath,
    connections: u64,
) -> Result<f64, Gap> {
    let words = format!(
        "{tacit} workload interactive client --connections {connections} --bytes 1 --warm-up 1ms \
         --seconds 1ms --connect {server}:7000 --wait 20s --steered",
        tacit = stage.tacit(),
        server = path.server()
    );
    let words: Vec<_> = words.split(' ').collect();
    let (session, attached) = path.start(stage, context, &words)?;
    let mut roots = path.others(context, attached.as_ref());
    roots.push(session.process.id());
    let families = roots
        .iter()
        .flat_map(|root| descendants(*root).unwrap_or_default().into_iter().chain([*root]));
    let kb = families.filter(|pid| !is_client(*pid)).filter_map(anonymous_kb).sum();
    session.end();
    Ok(kb)
}

/// Whether a process is the client, or starts it.
fn is_client(pid: u32) -> bool {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0);
    words.nth(1) == Some(b"workload")
}

/// The memory of a process without the pages of files, whose number in memory changes by chance.
fn anonymous_kb(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn memory_key(path: NetworkPath) -> String {
    format!("idle connections, {}", path.name())
}

/// The tables of short connections and of memory.
pub(super) fn tables(samples: &CellSamples) -> [PaperTable; 2] {
    [connections_table(samples), memory_table(samples)]
}

fn connections_table(samples: &CellSamples) -> PaperTable {
    let names = NetworkPath::ALL.map(NetworkPath::name);
    let columns = [&["figure", "unit"][..], &names[..]].concat();
    let mut table = PaperTable::new("connections", "Short connections", &columns);
    for (name, unit, load, figure) in [
        ("connections, 4 at a time", "/s", SocketLoad::Many, OPENED),
        ("CPU time of a connection", "us", SocketLoad::Many, CPU),
        ("p50 latency, one connection at a time", "us", SocketLoad::Single, P50),
    ] {
        let mut row = vec![PaperCell::name(name), PaperCell::name(unit)];
        row.extend(NetworkPath::ALL.map(|path| samples.cell(&load.key(path), figure)));
        table.rows.push(row);
    }
    let name = "difference in p50 latency from path `handed`";
    let mut row = vec![PaperCell::name(name), PaperCell::name("us")];
    row.extend(NetworkPath::ALL.map(|path| PaperCell::from(more_than_handed(samples, path))));
    table.rows.push(row);
    table
}

/// How much longer than with a handed socket a short connection takes.
fn more_than_handed(samples: &CellSamples, path: NetworkPath) -> Measurement {
    let p50 = |path| samples.median(&SocketLoad::Single.key(path), P50);
    Ok(p50(path)? - p50(NetworkPath::Handed)?)
}

fn memory_table(samples: &CellSamples) -> PaperTable {
    let names = OF_TACIT.map(NetworkPath::name);
    let columns = [&["memory of idle connections", "unit"][..], &names[..]].concat();
    let title = "Memory of the processes between program and server";
    let mut table = PaperTable::new("memory", title, &columns);
    for (name, unit, factor) in
        [("one connection", "KB", 1.0), ("1,000 connections", "MB", IDLE as f64 / 1024.0)]
    {
        let mut row = vec![PaperCell::name(name), PaperCell::name(unit)];
        row.extend(OF_TACIT.map(|path| {
            let kb = samples.median(&memory_key(path), MEMORY);
            PaperCell::from(kb.map(|kb| kb * factor))
        }));
        table.rows.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_compared_with_handed_ones_and_memory_is_that_of_1000() {
        let mut samples = CellSamples::default();
        for (path, p50) in NetworkPath::ALL.into_iter().zip(1_u8..) {
            for load in SocketLoad::ALL {
                let figures = [(OPENED, 5000.0), (CPU, 30.0), (P50, f64::from(p50))];
                let figures = figures.map(|(key, value)| (key.to_owned(), value));
                samples.add(&load.key(path), Ok(figures.to_vec()));
            }
        }
        for path in OF_TACIT {
            samples.add(&memory_key(path), Ok(vec![(MEMORY.to_owned(), 8.0)]));
        }
        let gap = Gap::failed("no namespace");
        samples.add(&memory_key(NetworkPath::TlsLink), Err(gap.clone()));
        let [connections, memory] = tables(&samples);
        let more = &connections.rows[3][2..];
        let of = |path| NetworkPath::ALL.iter().position(|other| *other == path).unwrap();
        assert_eq!(more[of(NetworkPath::Handed)], PaperCell::Measured(0.0));
        assert_eq!(more[of(NetworkPath::Link)], PaperCell::Measured(1.0));
        assert_eq!(memory.rows[1][2], PaperCell::Measured(7.8125));
        assert_eq!(memory.rows[0][5], PaperCell::Empty(gap));
    }

    #[test]
    fn the_own_process_has_memory_and_is_no_client() {
        let own = std::process::id();
        assert!(anonymous_kb(own).unwrap() > 0.0 && !is_client(own));
    }
}
