//! Repeats the measurements of zIIP-assisted IPsec: interactive sessions and bulk data in both
//! directions, in clear and through a tunnel.
//!
//! ```text
//! clear     client ─────────────── pair of interfaces ─────────────── server
//! secured   client ── tacit run ══ pair of interfaces ══ tacit run ── server
//! ```
//!
//! The paper measured without and with a processor for IPsec (zIIP). An engine is such a processor.

use serde_json::Value;

use super::cell::{CellSamples, Gap, PaperCell};
use super::drawn::{Load, LoadKind};
use super::paths::{HERE, THERE, other_side};
use super::session::{Session, SessionResult};
use super::sheet::{PaperSheet, PaperTable};
use super::stage::{Stage, StagedProcess};

/// The published changes of a load against the same in clear, in percent: CPU time and rate, first
/// without a zIIP, then with one; and the CPU time of everything with a zIIP.
struct PublishedLoad {
    cpu: [f64; 2],
    rate: [f64; 2],
    whole: f64,
}

/// The addresses of the programs in the tunnel.
const NEAR: &str = "10.1.0.1";
const FAR: &str = "10.2.0.1";
const PORT: u16 = 7000;

const CLEAR: &str = "clear";
const SECURED: &str = "secured";
const RATE: &str = "rate";
const CPU: &str = "cpu";
const AGENT: &str = "agent";
const ELIGIBLE: &str = "eligible";
const SHARE: &str = "share";
const NEEDED: &str = "needed";
const ON_ENGINE: &str = "on engine";
const SPILLED: &str = "spilled";

/// Reads the CPU time of the networking part from the options.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkShare {
    /// Of interactive loads, in percent of all CPU time.
    pub(super) interactive: f64,
    /// Of bulk loads.
    pub(super) bulk: f64,
}

impl NetworkShare {
    fn of(self, kind: LoadKind) -> f64 {
        if kind == LoadKind::Interactive { self.interactive } else { self.bulk }
    }
}

fn published(kind: LoadKind) -> PublishedLoad {
    match kind {
        LoadKind::Interactive => {
            PublishedLoad { cpu: [189.0, 61.0], rate: [-17.0, -17.0], whole: 5.0 }
        }
        LoadKind::In => PublishedLoad { cpu: [912.0, 13.0], rate: [-56.0, -4.0], whole: 4.0 },
        LoadKind::Out => PublishedLoad { cpu: [1405.0, 45.0], rate: [-56.0, -4.0], whole: 14.0 },
    }
}

pub(super) fn measure(stage: &Stage, share: NetworkShare, seed: Option<u64>) -> PaperSheet {
    let loads = match seed {
        Some(seed) => Load::drawn(seed),
        None => Load::PUBLISHED,
    };
    let mut samples = CellSamples::default();
    let peer = other_side(stage).and_then(|peer| prepare(stage).map(|()| peer));
    for round in 1..=stage.extent.rounds {
        for load in loads {
            for way in [CLEAR, SECURED] {
                let subject = subject(way, load);
                if samples.is_given_up(&subject) {
                    continue;
                }
                stage.progress(&format!("ipsec: {subject}, round {round}"));
                let peer = peer.as_ref().map_err(Clone::clone);
                samples.add(
                    &subject,
                    peer.and_then(|peer| match way {
                        CLEAR => in_clear(stage, peer, load),
                        _ => secured(stage, peer, load),
                    }),
                );
            }
        }
    }
    sheet(&samples, loads, share, seed)
}

fn subject(way: &str, load: Load) -> String {
    format!("{way}, {}", load.name())
}

/// Writes the policies and the key of both sides.
fn prepare(stage: &Stage) -> Result<(), Gap> {
    stage.shell(
        "mkdir -m 700 near far\n(umask 077; head -c 32 /dev/urandom | base64 >near/psk)\n\
         cp near/psk far/psk\n",
    )?;
    let [near, far] = policies();
    stage.write("near/policy.toml", &near)?;
    stage.write("far/policy.toml", &far)
}

/// The policies of the client's run and of the server's run.
fn policies() -> [String; 2] {
    let policy = |own: &str, other: &str, peer: &str, inner: &str, rule: &str| {
        format!(
            "version = 1\n[ike.paper]\npeer = \"{peer}\"\npsk-file = \"psk\"\n\
             local-id = \"{own}.example\"\nremote-id = \"{other}.example\"\ninner = \"{inner}\"\n\
             [[rule]]\nname = \"paper\"\n{rule}\nipsec = {{ ike = \"paper\" }}\n"
        )
    };
    let out = format!("direction = \"outbound\"\nremote = \"{FAR}\"\nremote-ports = {PORT}");
    let into = format!("direction = \"inbound\"\nremote = \"{NEAR}\"\nlocal-ports = {PORT}");
    [policy("near", "far", THERE, NEAR, &out), policy("far", "near", HERE, FAR, &into)]
}

fn in_clear(stage: &Stage, peer: &StagedProcess, load: Load) -> Result<Vec<(String, f64)>, Gap> {
    let server = server(stage, peer, &[])?;
    let words = load.words(stage, THERE, PORT);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut session = Session::start(stage, "client", &words)?;
    session.ready()?;
    let result = session.measure(&[server.id()])?;
    session.end();
    figures(load, &result)
}

/// Starts the server on the other side, and waits until it listens.
fn server(stage: &Stage, peer: &StagedProcess, run: &[&str]) -> Result<StagedProcess, Gap> {
    let pid = peer.program_id()?.to_string();
    let listen = format!("0.0.0.0:{PORT}");
    let mut server = stage.server(&[&["nsenter", "-t", &pid, "-n"], run].concat(), &listen)?;
    let log = server.log_path();
    stage.wait("the server does not listen", &mut server, || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("listening"))
    })?;
    Ok(server)
}

fn secured(stage: &Stage, peer: &StagedProcess, load: Load) -> Result<Vec<(String, f64)>, Gap> {
    let tacit = stage.tacit();
    let run = |side: &str| {
        [
            tacit,
            "run",
            "--policy",
            &format!("{side}/policy.toml"),
            "--log",
            &format!("./{side}.log"),
        ]
        .map(str::to_owned)
        .into_iter()
        .chain(["--".to_owned()])
        .collect::<Vec<_>>()
    };
    let [near, far] = ["near", "far"].map(run);
    let far: Vec<_> = far.iter().map(String::as_str).collect();
    let server = server(stage, peer, &far)?;
    let words = load.words(stage, FAR, PORT);
    let words: Vec<_> = near.iter().chain(&words).map(String::as_str).collect();
    let mut session = Session::start(stage, "client", &words)?;
    session.ready().map_err(|gap| with_log(stage, gap))?;
    let launcher = session.process.program_id()?;
    let control = stage.path(&format!("tacit-run-{launcher}/agent.sock"));
    let before = costs(stage, &control, "before.json")?;
    let result = session.measure(&[server.id()])?;
    let after = costs(stage, &control, "after.json")?;
    session.end();
    let mut all = figures(load, &result)?;
    all.extend(projection(stage, [&before, &after])?);
    Ok(all)
}

/// Adds the last lines of the run's log to a reason.
fn with_log(stage: &Stage, gap: Gap) -> Gap {
    let log = std::fs::read_to_string(stage.path("near.log")).unwrap_or_default();
    match log.lines().last() {
        Some(line) => Gap::failed(format!("{}; {line}", gap.reason)),
        None => gap,
    }
}

/// Writes the costs of an agent to a file.
fn costs(stage: &Stage, control: &str, name: &str) -> Result<String, Gap> {
    let tacit = stage.tacit();
    stage.shell(&format!("{tacit} show costs --json --control {control} >{name}"))?;
    Ok(stage.path(name))
}

/// The eligible work of the client's agent, and the forecast for one engine.
fn projection(stage: &Stage, files: [&str; 2]) -> Result<Vec<(String, f64)>, Gap> {
    let [before, after] = files;
    let text = stage.shell(&format!(
        "{} project --costs {before} --costs {after} --engines 1 --added --json",
        stage.tacit()
    ))?;
    let value: Value = serde_json::from_str(&text)
        .map_err(|error| Gap::failed(format!("not a projection: {error}")))?;
    let total = ["general", "engine", "eligible"]
        .map(|place| value["before"]["total"][place].as_f64().unwrap_or(0.0));
    let figures = [
        (AGENT, Some(total.iter().sum())),
        (ELIGIBLE, value["eligible-percent"].as_f64()),
        (SHARE, value["eligible-share-percent"].as_f64()),
        (NEEDED, value["engines-needed"].as_f64()),
        (ON_ENGINE, value["engines"]["on-engines-percent"].as_f64()),
        (SPILLED, value["engines"]["spilled-percent"].as_f64()),
    ];
    let figures = figures.into_iter().map(|(key, value)| Some((key.to_owned(), value?)));
    let figures: Option<Vec<_>> = figures.collect();
    figures.ok_or_else(|| Gap::failed("the projection lacks a figure"))
}

/// The rate, and the CPU time of all processes for an exchange or a MB.
fn figures(load: Load, result: &SessionResult) -> Result<Vec<(String, f64)>, Gap> {
    let SessionResult { report, cpu_s } = result;
    let figures = &report["figures"];
    let [rate, units] = match load.kind {
        LoadKind::Interactive => ["exchanges_per_s", "exchanges"],
        _ => ["mb_per_s", "mb"],
    }
    .map(|key| figures[key].as_f64().filter(|value| *value > 0.0));
    match rate.zip(units) {
        Some((rate, units)) => {
            Ok(vec![(RATE.to_owned(), rate), (CPU.to_owned(), cpu_s * 1e6 / units)])
        }
        None => Err(Gap::failed(format!("unexpected report: {report}"))),
    }
}

fn no_engine() -> PaperCell {
    PaperCell::Empty(Gap::absent("this command does not measure engines"))
}

fn sheet(
    samples: &CellSamples,
    loads: [Load; 3],
    share: NetworkShare,
    seed: Option<u64>,
) -> PaperSheet {
    let what = match seed {
        Some(seed) => format!("loads drawn with seed {seed}"),
        None => "10 sessions of 100 bytes, and 5 streams of 20 MB, several times".to_owned(),
    };
    let mut sheet = PaperSheet {
        key: "ipsec",
        title: "zIIP-assisted IPsec",
        method: format!(
            "{what}. Published: z10, two general CPUs, 3DES and SHA, with and without one zIIP. \
             Measured: two runs of tacit with a tunnel between them (IKEv2, AES-256-GCM), joined \
             by a pair of interfaces, against the same programs in clear. CPU time is that of \
             programs and agents of both sides"
        ),
        tables: vec![
            raw_table(samples, loads),
            change_table(samples, loads),
            normalised_table(samples, loads, share),
            projection_table(samples, loads),
        ],
        ..PaperSheet::default()
    };
    for load in loads {
        let published = published(load.kind);
        let measured = samples.change(CPU, &subject(CLEAR, load), &subject(SECURED, load));
        let bars = [
            ("published, no zIIP", PaperCell::Published(published.cpu[0])),
            ("published, zIIP", PaperCell::Published(published.cpu[1])),
            ("measured, no engine", PaperCell::from(measured)),
        ];
        sheet.bars(&format!("CPU time against clear: {}", load.name()), "%", &bars);
    }
    sheet.note(
        "the published figures of Enterprise Extender (UDP with packet filters) are charts without \
         numbers, so there is no table for them",
    );
    sheet
}

fn raw_table(samples: &CellSamples, loads: [Load; 3]) -> PaperTable {
    let columns =
        ["load", "clear, rate", "secured, rate", "unit", "clear, CPU us", "secured, CPU us", "per"];
    let mut table = PaperTable::new("measured", "Measured rates and CPU times", &columns);
    for load in loads {
        let [clear, secured] = [CLEAR, SECURED].map(|way| subject(way, load));
        let [unit, per] = match load.kind {
            LoadKind::Interactive => ["/s", "exchange"],
            _ => ["MB/s", "MB"],
        };
        table.rows.push(vec![
            PaperCell::name(load.name()),
            samples.cell(&clear, RATE),
            samples.cell(&secured, RATE),
            PaperCell::name(unit),
            samples.cell(&clear, CPU),
            samples.cell(&secured, CPU),
            PaperCell::name(per),
        ]);
    }
    table
}

fn change_table(samples: &CellSamples, loads: [Load; 3]) -> PaperTable {
    let columns = [
        "load",
        "no zIIP, CPU %",
        "no engine, CPU %",
        "zIIP, CPU %",
        "engine with spill, CPU %",
        "engine without spill, CPU %",
        "no zIIP, rate %",
        "no engine, rate %",
        "zIIP, rate %",
        "engine with spill, rate %",
        "engine without spill, rate %",
    ];
    let title = "Change of general CPU time and of the rate by IPsec";
    let mut table = PaperTable::new("change", title, &columns);
    for load in loads {
        let PublishedLoad { cpu, rate, .. } = published(load.kind);
        let [clear, secured] = [CLEAR, SECURED].map(|way| subject(way, load));
        let mut row = vec![PaperCell::name(load.name())];
        for (figure, [without, with]) in [(CPU, cpu), (RATE, rate)] {
            row.extend([
                PaperCell::Published(without),
                samples.change(figure, &clear, &secured).into(),
                PaperCell::Published(with),
                no_engine(),
                no_engine(),
            ]);
        }
        table.rows.push(row);
    }
    table
}

fn normalised_table(samples: &CellSamples, loads: [Load; 3], share: NetworkShare) -> PaperTable {
    let columns = ["load", "share of networking, %", "no engine, %", "zIIP, %", "engine, %"];
    let title = "Change of all CPU time, if networking has this share of it in clear";
    let mut table = PaperTable::new("normalised", title, &columns);
    for load in loads {
        let [clear, secured] = [CLEAR, SECURED].map(|way| subject(way, load));
        let part = share.of(load.kind);
        let change = samples.change(CPU, &clear, &secured);
        table.rows.push(vec![
            PaperCell::name(load.name()),
            PaperCell::name(format!("{part}")),
            change.map(|change| change * part / 100.0).into(),
            PaperCell::Published(published(load.kind).whole),
            no_engine(),
        ]);
    }
    table
}

fn projection_table(samples: &CellSamples, loads: [Load; 3]) -> PaperTable {
    let columns = [
        "load",
        "all, %",
        "eligible, %",
        "share, %",
        "engines needed",
        "forecast, on one engine",
        "forecast, spilled",
        "on one engine",
        "spilled",
    ];
    let title = "Eligible CPU time, in percent of one CPU, and the forecast for one engine";
    let mut table = PaperTable::new("projection", title, &columns);
    table.rows.push(vec![
        PaperCell::name("bulk (published, zIIP)"),
        PaperCell::Published(113.76),
        PaperCell::Published(105.17),
        PaperCell::Published(92.0),
        PaperCell::Quoted("2"),
        PaperCell::Quoted("100"),
        PaperCell::Quoted("at least 5"),
        PaperCell::Published(95.13),
        PaperCell::Published(7.78),
    ]);
    for load in loads {
        let secured = subject(SECURED, load);
        let mut row = vec![PaperCell::name(load.name())];
        row.extend(
            [AGENT, ELIGIBLE, SHARE, NEEDED, ON_ENGINE, SPILLED]
                .map(|figure| samples.cell(&secured, figure)),
        );
        row.extend([no_engine(), no_engine()]);
        table.rows.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_policies_are_valid() {
        for text in policies() {
            let parsed = tacit_core::policy::parse(&text);
            assert!(parsed.policy.is_some(), "{parsed:?}\n{text}");
        }
    }

    #[test]
    fn published_totals_follow_from_the_published_shares() {
        let share = NetworkShare { interactive: 8.0, bulk: 30.0 };
        for load in Load::PUBLISHED {
            let PublishedLoad { cpu: [_, with], whole, .. } = published(load.kind);
            assert_eq!((with * share.of(load.kind) / 100.0).round(), whole, "{}", load.name());
        }
    }

    #[test]
    fn only_cells_of_engines_are_empty() {
        let mut samples = CellSamples::default();
        for load in Load::PUBLISHED {
            let keys = [RATE, CPU, AGENT, ELIGIBLE, SHARE, NEEDED, ON_ENGINE, SPILLED];
            for (way, value) in [(CLEAR, 10.0), (SECURED, 25.0)] {
                let figures = keys.map(|key| (key.to_owned(), value));
                samples.add(&subject(way, load), Ok(figures.into()));
            }
        }
        let share = NetworkShare { interactive: 8.0, bulk: 30.0 };
        let sheet = sheet(&samples, Load::PUBLISHED, share, None);
        let is_empty = |cell: &&PaperCell| matches!(cell, PaperCell::Empty(_));
        let empty = |table: &PaperTable| table.rows.iter().flatten().filter(is_empty).count();
        assert_eq!(sheet.tables.iter().map(empty).collect::<Vec<_>>(), [0, 12, 3, 6]);
        assert_eq!(sheet.tables[1].rows[0][2], PaperCell::Measured(150.0));
        assert_eq!(sheet.tables[2].rows[0][2], PaperCell::Measured(12.0));
    }
}
