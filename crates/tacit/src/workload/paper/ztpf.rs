//! Repeats the measurements of a paper about z/TPF, a mainframe operating system (see
//! `docs/papers.md`). The paper compares the messages per second of an older and a newer TLS
//! library. The paper also measures a lock that socket calls share, before and after a change.
//! Before the change, all socket calls take the lock. After the change, calls that only read shared
//! data do not take the lock.
//!
//! In the paper, client and server run in two partitions with one CPU each. Here, the client and
//! its proxy share one CPU, and the server and its proxy share another CPU.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::agents::{self, CLEAR, Route, Sides, TLS_1_3};
use super::cell::{CellSamples, Gap, Measurement, PaperCell};
use super::sheet::{PaperSheet, PaperTable};
use super::stage::{Stage, StagedProcess};

/// A published row: bytes of a message; utilisation in percent and messages per second of 0.9.7
/// and of 1.0.2; and their ratio.
type PublishedRow = (u32, [f64; 4], &'static str);

const PUBLISHED: [PublishedRow; 2] = [
    (500, [91.0, 10_593.0, 97.9, 35_674.0], "~3"),
    (32_767, [94.1, 1_400.0, 97.5, 18_354.0], "~12"),
];

/// The lock table: CPUs; utilisation and messages before; the same after; throughput and spinning.
type PublishedLock = (&'static str, [f64; 6]);

const LOCKS: [PublishedLock; 2] = [
    ("8 dedicated", [61.9, 43_579.0, 64.40, 58_247.0, 28.0, 33.0]),
    ("16 shared", [31.2, 39_267.0, 28.8, 50_740.0, 40.0, 45.0]),
];

const OLDER: &str = "older";
const TACIT: &str = "tacit";
const RATE: &str = "exchanges_per_s";
const UTILISATION: &str = "utilisation";

/// The largest report of `cargo xtask bench sockets` that is read.
const LOCK_BYTES_MAX: u64 = 1 << 20;

/// The reports of the lock before and after the change.
pub(super) type LockFiles = [PathBuf];

pub(super) fn measure(stage: &Stage, locks: &LockFiles) -> PaperSheet {
    let mut samples = CellSamples::default();
    let cpus = super::super::threads::cpus();
    let [near, far] = [["taskset", "-c", "0"], ["taskset", "-c", "1"]];
    let sides = match cpus {
        0 | 1 => agents::ANYWHERE,
        _ => Sides { near: &near, far: &far },
    };
    let library = older(stage, &mut samples, sides);
    newer(stage, &mut samples, sides);
    let mut sheet = PaperSheet {
        key: "ztpf",
        title: "z/TPF communications security enhancements",
        method: format!(
            "The client has 10 connections. On each connection, the client waits for the reply \
             before it sends the next request. Requests and replies have the same size. The paper \
             compares OpenSSL 0.9.7 (older) with OpenSSL 1.0.2 (newer), with TLS 1.0 and \
             AES128-SHA. In the paper, client and server have one CPU each. In this measurement, \
             tacit takes the place of the newer library, with TLS 1.3 and AES-128-GCM. {library} \
             in stunnel takes the place of the older library, with TLS 1.2, AES-128-CBC and \
             HMAC-SHA-1. {placement}",
            placement = match cpus {
                0 | 1 => "All processes share one CPU",
                _ => {
                    "The client and its proxy share one CPU, and the server and its proxy share \
                     another CPU"
                }
            }
        ),
        tables: vec![engine_table(&samples), lock_table(locks)],
        ..PaperSheet::default()
    };
    let bars: Vec<_> = [500_u32, 32_767]
        .into_iter()
        .flat_map(|size| [(size, OLDER), (size, TACIT)])
        .map(|(size, subject)| {
            (format!("{subject}, {size} bytes"), samples.cell(&key(subject, size), RATE))
        })
        .collect();
    let bars: Vec<_> = bars.iter().map(|(name, cell)| (name.as_str(), cell.clone())).collect();
    sheet.bars("measured: messages per second", "/s", &bars);
    sheet.note(
        "the server and its proxy share one CPU, and the tables show the utilisation of this CPU. \
         A message is a request with its reply",
    );
    sheet
}

fn key(subject: &str, size: u32) -> String {
    format!("{subject} {size}")
}

/// Measures both sizes through the proxies at `entry`.
fn sizes(stage: &Stage, samples: &mut CellSamples, subject: &str, side: &[&str], run: &Run<'_>) {
    for round in 1..=stage.extent.rounds {
        for (size, ..) in PUBLISHED {
            let subject = key(subject, size);
            stage.progress(&format!("ztpf: {subject} bytes, round {round}"));
            samples.add(&subject, run.figures(stage, side, size));
        }
    }
}

/// One pair of proxies.
struct Run<'a> {
    entry: &'a str,
    processes: [&'a StagedProcess; 3],
}

impl Run<'_> {
    fn figures(&self, stage: &Stage, side: &[&str], size: u32) -> Result<Vec<(String, f64)>, Gap> {
        let [size, time] = [size.to_string(), format!("{}ms", stage.extent.time.as_millis())];
        let processes = self.processes.map(StagedProcess::cpu_of);
        let mut words = vec!["request-reply", "client", "--request", &size, "--reply", &size];
        words.extend(["--connections", "10", "--seconds", &time, "--connect", self.entry]);
        words.extend(processes.iter().flat_map(|process| ["--cpu-of", process]));
        let report = stage.client(side, &words)?;
        let rows = report["tables"][0]["rows"].as_array().cloned().unwrap_or_default();
        let share = |name: &str| {
            let row = rows.iter().find(|row| row["component"] == name)?;
            row["% of one CPU"].as_f64()
        };
        let utilisation = share("far").zip(share("server")).map(|(proxy, server)| proxy + server);
        let rate = report["figures"][RATE].as_f64();
        match rate.zip(utilisation) {
            Some((rate, utilisation)) => {
                Ok(vec![(RATE.to_owned(), rate), (UTILISATION.to_owned(), utilisation)])
            }
            None => Err(Gap::failed("the rate or the CPU time is missing in the report")),
        }
    }
}

fn newer(stage: &Stage, samples: &mut CellSamples, sides: Sides<'_>) {
    let route = Route { name: "ztpf", number: 1, protection: TLS_1_3 };
    match agents::start(stage, &[route], "workers = 1", sides) {
        Ok(pair) => {
            let entry = route.entry();
            let processes = [&pair.near, &pair.far, &pair.server];
            sizes(stage, samples, TACIT, sides.near, &Run { entry: &entry, processes });
        }
        Err(gap) => give_up(samples, TACIT, &gap),
    }
}

fn give_up(samples: &mut CellSamples, subject: &str, gap: &Gap) {
    for (size, ..) in PUBLISHED {
        samples.add(&key(subject, size), Err(gap.clone()));
    }
}

/// Measures stunnel, and returns the name of its library.
fn older(stage: &Stage, samples: &mut CellSamples, sides: Sides<'_>) -> String {
    match measure_older(stage, samples, sides) {
        Ok(library) => library,
        Err(gap) => {
            give_up(samples, OLDER, &gap);
            "OpenSSL".to_owned()
        }
    }
}

fn measure_older(
    stage: &Stage,
    samples: &mut CellSamples,
    sides: Sides<'_>,
) -> Result<String, Gap> {
    if let Some(gap) = stage.missing("stunnel", "scripts/install-bench.sh") {
        return Err(gap);
    }
    agents::certificates(stage)?;
    let [entry, between] = ["127.0.0.1:7150", "127.0.0.1:7250"];
    stage.write("older-near.conf", &stunnel(CLIENT_ROLE, "alice", [entry, between]))?;
    stage.write("older-far.conf", &stunnel("requireCert = yes", "localhost", [between, CLEAR]))?;
    let mut server = stage.server(sides.far, CLEAR)?;
    stage.wait_for_listener(CLEAR, &mut server)?;
    let proxy = |name: &str, file: &str, prefix: &[&str]| {
        stage.start(name, &[prefix, &["stunnel", file]].concat())
    };
    let mut far = proxy("far", "older-far.conf", sides.far)?;
    stage.wait_for_listener(between, &mut far)?;
    let mut near = proxy("near", "older-near.conf", sides.near)?;
    stage.wait_for_listener(entry, &mut near)?;
    let run = Run { entry, processes: [&near, &far, &server] };
    sizes(stage, samples, OLDER, sides.near, &run);
    // The first lines of the log name the library.
    let library = far.log().lines().find_map(|line| {
        let words = line.split_once("OpenSSL ")?.1;
        words.split_whitespace().next().map(|version| format!("OpenSSL {version}"))
    });
    Ok(library.unwrap_or_else(|| "OpenSSL".to_owned()))
}

const CLIENT_ROLE: &str = "client = yes\nsni = localhost\ncheckHost = localhost";

fn stunnel(role: &str, name: &str, [accept, connect]: [&str; 2]) -> String {
    format!(
        "foreground = yes\npid =\nsyslog = no\ndebug = notice\n[older]\n{role}\naccept = {accept}\n\
         connect = {connect}\ncert = pki/{name}.pem\nkey = pki/{name}.key\nCAfile = pki/ca.pem\n\
         verifyChain = yes\nsslVersionMin = TLSv1.2\nsslVersionMax = TLSv1.2\n\
         ciphers = ECDHE-ECDSA-AES128-SHA\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n"
    )
}

fn engine_table(samples: &CellSamples) -> PaperTable {
    let columns = [
        "message bytes",
        "0.9.7, CPU %",
        "0.9.7, messages/s",
        "1.0.2, CPU %",
        "1.0.2, messages/s",
        "ratio",
        "older, CPU %",
        "older, messages/s",
        "tacit, CPU %",
        "tacit, messages/s",
        "measured ratio",
    ];
    let title = "Messages per second with TLS, and CPU use of the server";
    let mut table = PaperTable::new("messages", title, &columns);
    for (size, published, ratio) in PUBLISHED {
        let [older, tacit] = [OLDER, TACIT].map(|subject| key(subject, size));
        let mut row = vec![PaperCell::name(size.to_string())];
        row.extend(published.map(PaperCell::Published));
        row.extend([
            PaperCell::Quoted(ratio),
            samples.cell(&older, UTILISATION),
            samples.cell(&older, RATE),
            samples.cell(&tacit, UTILISATION),
            samples.cell(&tacit, RATE),
            samples.ratio(RATE, &tacit, &older).into(),
        ]);
        table.rows.push(row);
    }
    table
}

/// The figures of one report of `cargo xtask bench sockets --json`.
struct LockReport {
    lock: String,
    rate: f64,
    rate_per_cpu_s: f64,
    spin_percent: f64,
}

fn lock_table(files: &LockFiles) -> PaperTable {
    let columns = [
        "CPUs",
        "before, CPU %",
        "before, messages/s",
        "after, CPU %",
        "after, messages/s",
        "throughput +%",
        "spinning -%",
    ];
    let title = "Messages per second before and after a change to a lock that socket calls share. \
                 Before the change, all socket calls take the lock. After the change, calls that \
                 only read shared data do not take the lock";
    let mut table = PaperTable::new("lock", title, &columns);
    for (cpus, row) in LOCKS {
        let cells = row.map(PaperCell::Published);
        table
            .rows
            .push([PaperCell::name(format!("{cpus} (z/TPF)"))].into_iter().chain(cells).collect());
    }
    table.rows.push(lock_row(files));
    table
}

fn lock_row(files: &LockFiles) -> Vec<PaperCell> {
    let cpus = super::super::threads::cpus();
    let reports = match files {
        [before, after] => LockReport::read(before)
            .and_then(|before| LockReport::read(after).map(|after| [before, after])),
        _ => Err(Gap::skipped(
            "run `cargo xtask bench sockets` twice, with `--lock global --json > before.json` and \
             with `--lock writers --json > after.json`; then give --locks before.json,after.json",
        )),
    };
    let [before, after] = match reports {
        Ok(reports) => reports,
        Err(gap) => {
            let empty = std::iter::repeat_n(PaperCell::Empty(gap), 6);
            return [PaperCell::name(format!("{cpus} (measured)"))]
                .into_iter()
                .chain(empty)
                .collect();
        }
    };
    let name = format!("{cpus} (measured, {} and {})", before.lock, after.lock);
    // z/TPF states the gain as throughput divided by utilisation.
    let gain = after.rate_per_cpu_s / before.rate_per_cpu_s - 1.0;
    let spinning: Measurement = match before.spin_percent > 0.0 {
        true => Ok(100.0 * (1.0 - after.spin_percent / before.spin_percent)),
        false => Err(Gap::skipped("no thread waited for the lock")),
    };
    vec![
        PaperCell::name(name),
        PaperCell::Measured(before.utilisation(cpus)),
        PaperCell::Measured(before.rate),
        PaperCell::Measured(after.utilisation(cpus)),
        PaperCell::Measured(after.rate),
        PaperCell::Measured(100.0 * gain),
        spinning.into(),
    ]
}

impl LockReport {
    fn read(path: &Path) -> Result<Self, Gap> {
        let wrong = |why: String| Gap::failed(format!("--locks {}: {why}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
        if size > LOCK_BYTES_MAX {
            return Err(wrong("the file is too large".to_owned()));
        }
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let value: Value =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let number = |key: &str| {
            let found = value["figures"][key].as_f64();
            found.ok_or_else(|| {
                wrong(format!(
                    "the file has no value `figures.{key}`: create the file again with `cargo \
                     xtask bench sockets`"
                ))
            })
        };
        Ok(Self {
            lock: value["lock"].as_str().unwrap_or("unknown").to_owned(),
            rate: number("transactions_per_s")?,
            rate_per_cpu_s: number("transactions_per_cpu_s")?,
            spin_percent: number("spin_percent")?,
        })
    }

    /// The utilisation of the machine in percent.
    fn utilisation(&self, cpus: usize) -> f64 {
        100.0 * self.rate / self.rate_per_cpu_s / cpus.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_ratios_follow_from_the_published_rates() {
        for (size, [_, older, _, newer], ratio) in PUBLISHED {
            let wanted: f64 = ratio.trim_start_matches('~').parse().unwrap();
            assert!((newer / older - wanted).abs() / wanted < 0.15, "{size}: {}", newer / older);
        }
    }

    #[test]
    fn the_lock_table_reads_reports_of_the_benchmark() {
        let directory = std::env::temp_dir();
        let [before, after, wrong] = ["before", "after", "wrong"]
            .map(|name| directory.join(format!("tacit-lock-{name}-{}", std::process::id())));
        let report = |lock: &str, rate: f64, spin: f64| {
            format!(
                r#"{{"lock":"{lock}","figures":{{"transactions_per_s":{rate},
                "transactions_per_cpu_s":{},"spin_percent":{spin}}}}}"#,
                rate / 2.0
            )
        };
        std::fs::write(&before, report("global", 1000.0, 20.0)).unwrap();
        std::fs::write(&after, report("writers", 1400.0, 11.0)).unwrap();
        std::fs::write(&wrong, "{}").unwrap();
        let row = lock_row(&[before.clone(), after.clone()]);
        let value = |cell: &PaperCell| match cell {
            PaperCell::Measured(value) => value.round(),
            other => panic!("{other:?}"),
        };
        assert_eq!(value(&row[2]), 1000.0);
        assert_eq!(value(&row[5]), 40.0);
        assert_eq!(value(&row[6]), 45.0);
        let row = lock_row(&[before.clone(), wrong.clone()]);
        assert!(matches!(&row[1], PaperCell::Empty(gap) if gap.reason.contains("bench sockets")));
        assert!(matches!(&lock_row(&[])[1], PaperCell::Empty(_)));
        for path in [before, after, wrong] {
            std::fs::remove_file(path).unwrap();
        }
    }
}
