//! Repeats the measurements of an IBM paper about IPsec on z/OS (see `docs/papers.md`). The traffic
//! consists of interactive sessions, and of bulk data in both directions. Each kind of traffic is
//! measured in clear and through a tunnel.
//!
//! ```text
//! clear     client ─────────────── veth pair ─────────────── server
//! secured   client ── tacit run ══ veth pair ══ tacit run ── server
//! ```
//!
//! The paper compares IPsec on general processors with IPsec on a special processor (zIIP). Here,
//! an engine (a thread on a reserved CPU) takes the place of the zIIP. In measurements with
//! engines, all programs use the first CPU, and the engines of both sides use the second CPU. For
//! comparison, traffic in clear is also measured on the first CPU only. The measured CPU times do
//! not include the CPU time of engines.
//!
//! `forecast.rs` compares forecasts with later measurements, for random loads.

use serde_json::Value;

use super::aims;
use super::cell::{CellSamples, Gap, PaperCell};
use super::drawn::{Load, LoadKind, LoadTransport};
use super::joint::{
    AGENT, CPU, ELIGIBLE, FORECAST, Joint, MEASURED_ENGINE, MEASURED_SPILL, NEEDED, ON_ENGINE, P50,
    PACKETS, RATE, SHARE, SPILLED, subject,
};
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
    let mut all = loads.map(|load| (load, &Joint::ALL[..])).to_vec();
    if seed.is_none() {
        all.push((Load::EXTENDER, &Joint::ALL[..]));
        all.extend(ENGINE_LOADS.iter().map(|(load, joints)| (*load, &joints[..])));
    }
    let mut samples = CellSamples::default();
    let peer = peer(stage);
    for round in 1..=stage.extent.rounds {
        for (load, joints) in all.iter().copied() {
            for joint in joints.iter().copied() {
                let subject = subject(joint, load);
                if samples.is_given_up(&subject) {
                    continue;
                }
                stage.progress(&format!("ipsec: {subject}, round {round}"));
                samples.add(&subject, take(stage, &peer, load, joint, 1.0));
            }
        }
    }
    sheet(&samples, loads, share, seed)
}

/// Makes the namespace of the other side, and writes the policies.
pub(super) fn peer(stage: &Stage) -> Result<StagedProcess, Gap> {
    other_side(stage).and_then(|peer| prepare(stage).map(|()| peer))
}

/// Measures one load, if that is possible on this machine. `packet_factor` is the one of `tacit
/// project`, for the forecast.
pub(super) fn take(
    stage: &Stage,
    peer: &Result<StagedProcess, Gap>,
    load: Load,
    joint: Joint,
    packet_factor: f64,
) -> Result<Vec<(String, f64)>, Gap> {
    if let Some(gap) = joint.missing() {
        return Err(gap);
    }
    let peer = peer.as_ref().map_err(Clone::clone)?;
    if joint.is_clear() {
        in_clear(stage, peer, load, joint)
    } else {
        secured(stage, peer, load, joint, packet_factor)
    }
}

/// Writes the policies and the key of both sides.
fn prepare(stage: &Stage) -> Result<(), Gap> {
    stage.shell(
        "mkdir -m 700 near far\n(umask 077; head -c 32 /dev/urandom | base64 >near/psk)\n\
         cp near/psk far/psk\n",
    )?;
    let joints = Joint::ALL.into_iter().chain(Joint::OTHERS);
    for joint in joints.filter(|joint| !joint.is_clear()) {
        for transport in [LoadTransport::Tcp, LoadTransport::Udp] {
            for (side, policy) in ["near", "far"].into_iter().zip(policies(joint, transport)) {
                stage.write(&policy_file(side, joint, transport), &policy)?;
            }
        }
    }
    Ok(())
}

fn policy_file(side: &str, joint: Joint, transport: LoadTransport) -> String {
    format!("{side}/{}-{}.toml", joint.name(), protocol(transport))
}

fn protocol(transport: LoadTransport) -> &'static str {
    match transport {
        LoadTransport::Tcp => "tcp",
        LoadTransport::Udp => "udp",
    }
}

/// The policies of the client's run and of the server's run.
fn policies(joint: Joint, transport: LoadTransport) -> [String; 2] {
    let protocol = protocol(transport);
    let [near_engine, far_engine] = joint.engines();
    let policy = |engine: &str, [own, other]: [&str; 2], peer: &str, inner: &str, rule: &str| {
        format!(
            "version = 1\n{engine}[ike.paper]\npeer = \"{peer}\"\npsk-file = \"psk\"\n\
             local-id = \"{own}.example\"\nremote-id = \"{other}.example\"\ninner = \"{inner}\"\n\
             [[rule]]\nname = \"paper\"\nprotocol = \"{protocol}\"\n{rule}\n\
             ipsec = {{ ike = \"paper\" }}\n"
        )
    };
    let out = format!("direction = \"outbound\"\nremote = \"{FAR}\"\nremote-ports = {PORT}");
    let into = format!("direction = \"inbound\"\nremote = \"{NEAR}\"\nlocal-ports = {PORT}");
    [
        policy(near_engine, ["near", "far"], THERE, NEAR, &out),
        policy(far_engine, ["far", "near"], HERE, FAR, &into),
    ]
}

fn in_clear(
    stage: &Stage,
    peer: &StagedProcess,
    load: Load,
    joint: Joint,
) -> Result<Vec<(String, f64)>, Gap> {
    let prefix = joint.prefix();
    let server = server(stage, peer, load, prefix)?;
    let words = load.words(stage, THERE, PORT);
    let words: Vec<_> = prefix.iter().copied().chain(words.iter().map(String::as_str)).collect();
    let mut session = Session::start(stage, "client", &words)?;
    session.ready()?;
    let result = session.measure(&[server.id()])?;
    session.end();
    figures(load, &result, 0.0)
}

/// Starts the server on the other side, and waits until it listens.
fn server(
    stage: &Stage,
    peer: &StagedProcess,
    load: Load,
    run: &[&str],
) -> Result<StagedProcess, Gap> {
    let pid = peer.program_id()?.to_string();
    let listen = format!("0.0.0.0:{PORT}");
    let prefix = [&["nsenter", "-t", &pid, "-n"], run].concat();
    let mut server = match load.transport {
        LoadTransport::Tcp => stage.server(&prefix, &listen)?,
        LoadTransport::Udp => stage.datagram_server(&prefix, &listen)?,
    };
    let log = server.log_path();
    stage.wait("the server does not listen", &mut server, || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("listening"))
    })?;
    Ok(server)
}

fn secured(
    stage: &Stage,
    peer: &StagedProcess,
    load: Load,
    joint: Joint,
    packet_factor: f64,
) -> Result<Vec<(String, f64)>, Gap> {
    let tacit = stage.tacit();
    let run = |side: &str| {
        [
            tacit,
            "run",
            "--policy",
            &policy_file(side, joint, load.transport),
            "--log",
            &format!("./{side}.log"),
        ]
        .map(str::to_owned)
        .into_iter()
        .chain(["--".to_owned()])
        .collect::<Vec<_>>()
    };
    let [near, far] = ["near", "far"].map(run);
    let prefix = joint.far_prefix().iter().copied();
    let far: Vec<_> = prefix.chain(far.iter().map(String::as_str)).collect();
    let server = server(stage, peer, load, &far)?;
    let words = load.words(stage, FAR, PORT);
    let words: Vec<_> = near.iter().chain(&words).map(String::as_str).collect();
    let mut session = Session::start(stage, "client", &words)?;
    session.ready().map_err(|gap| with_log(stage, gap))?;
    let agents = [
        CostsOf { agent: session.process.program_id()?, namespace: std::process::id() },
        CostsOf { agent: server.program_id()?, namespace: peer.program_id()? },
    ];
    let before = agents.map(|agent| agent.write(stage, "before"));
    let result = session.measure(&[server.id()])?;
    let after = agents.map(|agent| agent.write(stage, "after"));
    session.end();
    let [near, far] = [0, 1].map(|side: usize| {
        let [before, after] = [&before, &after].map(|files| files[side].as_ref());
        before.map_err(Clone::clone).and_then(|before| {
            let after = after.map_err(Clone::clone)?;
            projection(stage, [before, after], packet_factor)
        })
    });
    let [near, far] = [near?, far?];
    let mut all = figures(load, &result, near.engine_s + far.engine_s)?;
    let [_, units] = rate_and_units(load, &result.report)?;
    let costs = [(PACKETS, near.packets_s), (FORECAST, near.forecast_s)];
    all.extend(costs.map(|(key, seconds)| (key.to_owned(), seconds * 1e6 / units)));
    all.extend(near.figures);
    Ok(all)
}

/// An agent of a run, by the process of its launcher, and a process in the network of the agent,
/// from which alone it can be controlled.
#[derive(Clone, Copy)]
struct CostsOf {
    agent: u32,
    namespace: u32,
}

impl CostsOf {
    /// Writes the costs of the agent to a file; returns its path.
    fn write(self, stage: &Stage, when: &str) -> Result<String, Gap> {
        let Self { agent, namespace } = self;
        let [tacit, name] = [stage.tacit(), &format!("{when}-{agent}.json")];
        stage.shell(&format!(
            "nsenter -t {namespace} -n {tacit} show costs --json \
             --control tacit-run-{agent}/agent.sock >{name}"
        ))?;
        Ok(stage.path(name))
    }
}

/// The lines of a log that a reason has: the last one is seldom the cause.
const LOG_LINES: usize = 4;

/// Adds the last lines of the run's log to a reason.
fn with_log(stage: &Stage, gap: Gap) -> Gap {
    let log = std::fs::read_to_string(stage.path("near.log")).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    match lines.get(lines.len().saturating_sub(LOG_LINES)..) {
        Some(last @ [_, ..]) => Gap::failed(format!("{}; {}", gap.reason, last.join("; "))),
        _ => gap,
    }
}

/// What the ledger of an agent says about an interval.
struct LedgerInterval {
    /// The CPU time of engines.
    engine_s: f64,
    /// The CPU time of packets, measured and as forecast for one engine.
    packets_s: f64,
    forecast_s: f64,
    /// The work by kind of CPU, and the forecast for one engine.
    figures: Vec<(String, f64)>,
}

/// The eligible work of the client's agent, and the forecast for one engine.
fn projection(
    stage: &Stage,
    files: [&String; 2],
    packet_factor: f64,
) -> Result<LedgerInterval, Gap> {
    let [before, after] = files;
    let text = stage.shell(&format!(
        "{tacit} project --costs {before} --costs {after} --engines 1 --added --packet-factor \
         {packet_factor} --json",
        tacit = stage.tacit()
    ))?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        Gap::failed(format!("cannot parse the output of `tacit project`: {error}"))
    })?;
    let [general, engine, eligible] = ["general", "engine", "eligible"]
        .map(|place| value["before"]["total"][place].as_f64().unwrap_or(0.0));
    let [on_engine, spilled] =
        ["on-engines-percent", "spilled-percent"].map(|part| value["engines"][part].as_f64());
    let figures = [
        (AGENT, Some(general + engine + eligible)),
        (MEASURED_ENGINE, Some(engine)),
        (MEASURED_SPILL, Some(eligible)),
        (ELIGIBLE, value["eligible-percent"].as_f64()),
        (SHARE, value["eligible-share-percent"].as_f64()),
        (NEEDED, value["engines-needed"].as_f64()),
        (ON_ENGINE, on_engine),
        (SPILLED, spilled),
    ];
    let figures = figures.into_iter().map(|(key, value)| Some((key.to_owned(), value?)));
    let figures: Option<Vec<_>> = figures.collect();
    let seconds = value["interval-s"].as_f64();
    let forecast = on_engine.zip(spilled).map(|(on_engine, spilled)| on_engine + spilled);
    match figures.zip(seconds).zip(forecast) {
        Some(((figures, seconds), forecast)) => {
            let [engine_s, packets_s, forecast_s] =
                [engine, engine + eligible, forecast].map(|percent| percent / 100.0 * seconds);
            Ok(LedgerInterval { engine_s, packets_s, forecast_s, figures })
        }
        None => Err(Gap::failed("the output of `tacit project` lacks a required value")),
    }
}

/// The rate, and the general CPU time of all processes for an exchange or a MB.
fn figures(load: Load, result: &SessionResult, engine_s: f64) -> Result<Vec<(String, f64)>, Gap> {
    let SessionResult { report, cpu_s } = result;
    let general_s = (cpu_s - engine_s).max(0.0);
    let [rate, units] = rate_and_units(load, report)?;
    let p50 = report["figures"]["latency_p50_us"].as_f64().map(|p50| (P50.to_owned(), p50));
    let all = [(RATE.to_owned(), rate), (CPU.to_owned(), general_s * 1e6 / units)];
    Ok(all.into_iter().chain(p50).collect())
}

/// Exchanges or MB: in a second, and all.
fn rate_and_units(load: Load, report: &Value) -> Result<[f64; 2], Gap> {
    let [rate, units] = match load.kind {
        LoadKind::Interactive => ["exchanges_per_s", "exchanges"],
        _ => ["mb_per_s", "mb"],
    }
    .map(|key| report["figures"][key].as_f64().filter(|value| *value > 0.0));
    let both = rate.zip(units).map(|(rate, units)| [rate, units]);
    both.ok_or_else(|| Gap::failed(format!("the workload's report has no rate: {report}")))
}

/// The loads beside those of the paper, for the table of aims.
static ENGINE_LOADS: [(Load, [Joint; 2]); 2] = [
    (Load::PACED, [Joint::ClearPinned, Joint::Spilling]),
    (Load::SINGLE, [Joint::Polling, Joint::Waiting]),
];

fn sheet(
    samples: &CellSamples,
    loads: [Load; 3],
    share: NetworkShare,
    seed: Option<u64>,
) -> PaperSheet {
    let what = match seed {
        Some(seed) => format!("loads with random sizes, seed {seed}"),
        None => {
            "10 sessions that exchange messages of 100 bytes, and 5 streams that transfer 20 MB \
             several times"
                .to_owned()
        }
    };
    let mut sheet = PaperSheet {
        key: "ipsec",
        title: "zIIP-assisted IPsec",
        method: format!(
            "{what}. The published values are for an IBM z10 mainframe with two general CPUs, with \
             and without a zIIP (a special processor). The published tunnel uses 3DES and SHA. The \
             measured tunnel is between two runs of tacit that a veth pair connects (IKEv2, \
             AES-256-GCM). An engine is a thread on a reserved CPU. Other CPUs can do the work of \
             a saturated engine, except in columns with `engine only`. The CPU time includes the \
             programs and agents on both sides"
        ),
        tables: vec![
            raw_table(samples, loads),
            change_table(samples, loads),
            normalised_table(samples, loads, share),
            projection_table(samples, loads),
        ],
        ..PaperSheet::default()
    };
    if seed.is_none() {
        sheet.tables.push(extender_table(samples));
        sheet.tables.push(aims::table(samples));
    }
    for load in loads {
        let published = published(load.kind);
        let change = |from, to| -> PaperCell {
            samples.change(CPU, &subject(from, load), &subject(to, load)).into()
        };
        let bars = [
            ("published, without a zIIP CPU", PaperCell::Published(published.cpu[0])),
            ("published, with a zIIP CPU", PaperCell::Published(published.cpu[1])),
            ("measured, without an engine", change(Joint::Clear, Joint::Secured)),
            ("measured, with an engine", change(Joint::ClearPinned, Joint::Spilling)),
        ];
        let load = load.name();
        sheet.bars(&format!("Change of CPU time with IPsec: {load}"), "%", &bars);
    }
    sheet.note(
        "the published results of Enterprise Extender (a mainframe protocol over UDP) are charts \
         without numbers",
    );
    sheet
}

fn raw_table(samples: &CellSamples, loads: [Load; 3]) -> PaperTable {
    let columns = [
        "load",
        "unit",
        "clear",
        "IPsec without engine",
        "clear, one CPU",
        "IPsec on engine and other CPUs",
        "IPsec on the engine only",
    ];
    let title = "Measured throughput and CPU time. The CPU time of engines is not included";
    let mut table = PaperTable::new("measured", title, &columns);
    for load in loads {
        let units = match load.kind {
            LoadKind::Interactive => [(RATE, "/s"), (CPU, "CPU us/exchange")],
            _ => [(RATE, "MB/s"), (CPU, "CPU us/MB")],
        };
        for (figure, unit) in units {
            let mut row = vec![PaperCell::name(load.name()), PaperCell::name(unit)];
            row.extend(Joint::ALL.map(|joint| samples.cell(&subject(joint, load), figure)));
            table.rows.push(row);
        }
    }
    table
}

fn change_table(samples: &CellSamples, loads: [Load; 3]) -> PaperTable {
    let columns = [
        "load",
        "published change of CPU time with IPsec, without a zIIP processor, %",
        "measured change of CPU time with IPsec, without an engine, %",
        "published change of CPU time with IPsec, with a zIIP processor, %",
        "measured change of CPU time with IPsec, on an engine and other CPUs, %",
        "measured change of CPU time with IPsec, on an engine only, %",
        "published change of throughput with IPsec, without a zIIP processor, %",
        "measured change of throughput with IPsec, without an engine, %",
        "published change of throughput with IPsec, with a zIIP processor, %",
        "measured change of throughput with IPsec, on an engine and other CPUs, %",
        "measured change of throughput with IPsec, on an engine only, %",
    ];
    let title = "How IPsec changes the throughput and the CPU time. The CPU time of engines is not \
                 included";
    let mut table = PaperTable::new("change", title, &columns);
    for load in loads {
        let PublishedLoad { cpu, rate, .. } = published(load.kind);
        let mut row = vec![PaperCell::name(load.name())];
        for (figure, [without, with]) in [(CPU, cpu), (RATE, rate)] {
            let change = |from, to| -> PaperCell {
                samples.change(figure, &subject(from, load), &subject(to, load)).into()
            };
            row.extend([
                PaperCell::Published(without),
                change(Joint::Clear, Joint::Secured),
                PaperCell::Published(with),
                change(Joint::ClearPinned, Joint::Spilling),
                change(Joint::ClearPinned, Joint::Contained),
            ]);
        }
        table.rows.push(row);
    }
    table
}

/// The same for Enterprise Extender, whose published figures have no numbers.
fn extender_table(samples: &CellSamples) -> PaperTable {
    let columns = [
        "Enterprise Extender",
        "unit",
        "clear",
        "IPsec without engine",
        "clear, one CPU",
        "IPsec on engine and other CPUs",
        "IPsec on the engine only",
        "change of the figure in this row with IPsec, without an engine, %",
        "change of the figure in this row with IPsec, on an engine and other CPUs, %",
        "change of the figure in this row with IPsec, on an engine only, %",
    ];
    let title = "Interactive sessions over UDP, in clear and with IPsec. The CPU time of engines \
                 is not included";
    let mut table = PaperTable::new("extender", title, &columns);
    let load = Load::EXTENDER;
    for (figure, unit) in [(RATE, "/s"), (CPU, "CPU us/exchange"), (P50, "p50, us")] {
        let change = |from, to| -> PaperCell {
            samples.change(figure, &subject(from, load), &subject(to, load)).into()
        };
        let mut row = vec![PaperCell::name(load.name()), PaperCell::name(unit)];
        row.extend(Joint::ALL.map(|joint| samples.cell(&subject(joint, load), figure)));
        row.extend([
            change(Joint::Clear, Joint::Secured),
            change(Joint::ClearPinned, Joint::Spilling),
            change(Joint::ClearPinned, Joint::Contained),
        ]);
        table.rows.push(row);
    }
    table
}

fn normalised_table(samples: &CellSamples, loads: [Load; 3], share: NetworkShare) -> PaperTable {
    let columns = [
        "load",
        "assumed share of CPU time for networking, %",
        "measured change of CPU time with IPsec, without an engine, %",
        "published change of CPU time with IPsec, with a zIIP processor, %",
        "measured change of CPU time with IPsec, on an engine and other CPUs, %",
    ];
    let title = "How IPsec changes the total CPU time of a system, computed from an assumed share \
                 of CPU time for networking";
    let mut table = PaperTable::new("normalised", title, &columns);
    for load in loads {
        let part = share.of(load.kind);
        let change = |from, to| -> PaperCell {
            let change = samples.change(CPU, &subject(from, load), &subject(to, load));
            change.map(|change| change * part / 100.0).into()
        };
        table.rows.push(vec![
            PaperCell::name(load.name()),
            PaperCell::name(format!("{part}")),
            change(Joint::Clear, Joint::Secured),
            PaperCell::Published(published(load.kind).whole),
            change(Joint::ClearPinned, Joint::Spilling),
        ]);
    }
    table
}

fn projection_table(samples: &CellSamples, loads: [Load; 3]) -> PaperTable {
    let columns = [
        "load",
        "all CPU time, % of one CPU",
        "CPU time of the work that could move to engines, % of one CPU",
        "share of work that engines can do, %",
        "engines needed",
        "forecast: CPU time of the engine, % of one CPU",
        "forecast: CPU time that other CPUs use for the engine's work, % of one CPU",
        "measured: CPU time of the engine, % of one CPU",
        "measured: CPU time that other CPUs use for the engine's work, % of one CPU",
    ];
    let title = "CPU time of the agent: measured without engines, forecast for one engine, and \
                 measured with one engine";
    let mut table = PaperTable::new("projection", title, &columns);
    table.rows.push(vec![
        PaperCell::name("bulk (published, zIIP processor)"),
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
        let [secured, engine] = [Joint::Secured, Joint::Spilling].map(|joint| subject(joint, load));
        let mut row = vec![PaperCell::name(load.name())];
        row.extend(
            [AGENT, ELIGIBLE, SHARE, NEEDED, ON_ENGINE, SPILLED]
                .map(|figure| samples.cell(&secured, figure)),
        );
        row.extend([MEASURED_ENGINE, MEASURED_SPILL].map(|figure| samples.cell(&engine, figure)));
        table.rows.push(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_policies_are_valid() {
        let joints = Joint::ALL.into_iter().chain(Joint::OTHERS);
        let both = |joint| [LoadTransport::Tcp, LoadTransport::Udp].map(|one| policies(joint, one));
        for text in joints.flat_map(both).flatten() {
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
    fn engines_are_compared_with_programs_on_one_cpu() {
        let mut samples = CellSamples::default();
        let keys = [RATE, CPU, AGENT, ELIGIBLE, SHARE, NEEDED, ON_ENGINE, SPILLED, MEASURED_ENGINE];
        for load in Load::PUBLISHED {
            for (joint, value) in Joint::ALL.into_iter().zip([10.0, 25.0, 8.0, 10.0, 12.0]) {
                let figures = keys.into_iter().chain([MEASURED_SPILL]);
                let figures = figures.map(|key| (key.to_owned(), value)).collect();
                samples.add(&subject(joint, load), Ok(figures));
            }
        }
        let share = NetworkShare { interactive: 8.0, bulk: 30.0 };
        let sheet = sheet(&samples, Load::PUBLISHED, share, None);
        let is_empty = |cell: &PaperCell| matches!(cell, PaperCell::Empty(_));
        let mut cells = sheet.tables[..4].iter().flat_map(|table| table.rows.iter().flatten());
        assert!(!cells.any(is_empty));
        let row = &sheet.tables[1].rows[0];
        assert_eq!(row[2], PaperCell::Measured(150.0));
        assert_eq!([&row[4], &row[5]], [&PaperCell::Measured(25.0), &PaperCell::Measured(50.0)]);
        assert_eq!(sheet.tables[2].rows[0][2], PaperCell::Measured(12.0));
        assert_eq!(sheet.tables[3].rows[1][7], PaperCell::Measured(10.0));
    }
}
