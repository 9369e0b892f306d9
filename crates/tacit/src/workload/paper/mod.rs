//! `tacit workload paper`: repeats the measurements of published papers about mainframes. The
//! command prints the tables of the papers, with the measured figures beside the published figures.
//!
//! ```text
//! ztpf.rs, mq.rs, zvm.rs, lfp.rs, ipsec.rs     repeat the measurements of one paper each
//!
//! stage.rs        creates the namespaces, and starts processes
//! agents.rs       starts a server, and two agents that use TLS
//! session.rs      measures a program, and the processes that relay its bytes
//! cell.rs         collects the samples of each table cell
//! sheet.rs        writes the tables as text, JSON and HTML
//!
//! paths.rs        for lfp.rs: sets up the network paths that are compared
//! lfp_sockets.rs  for lfp.rs: measures short connections and idle connections
//!
//! joint.rs        for ipsec.rs: connects client and server
//! drawn.rs        for ipsec.rs: defines the traffic, and generates random traffic from a seed
//! aims.rs         for ipsec.rs: compares the aims of this project with measurements
//! calibration.rs  for ipsec.rs: measures how an engine changes the CPU time of packets
//! forecast.rs     for ipsec.rs: checks how accurate the forecasts of `tacit project` are
//! ```
//!
//! The measurements use the commands of tacit itself, and other installed programs. If a table cell
//! cannot be measured, the cell stays empty, and the reason follows the table. There are three
//! reasons: tacit does not have the measured function, a program is missing, or the measurement
//! failed.

mod agents;
mod aims;
mod calibration;
mod cell;
mod drawn;
mod forecast;
mod ipsec;
mod joint;
mod lfp;
mod lfp_sockets;
mod mq;
mod paths;
mod session;
mod sheet;
mod stage;
mod ztpf;
mod zvm;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::forecast::Seeds;
use self::ipsec::NetworkShare;
use self::sheet::{PaperReport, PaperSheet};
use self::stage::{Extent, Stage};
use super::arguments::{bytes, count, time};
use super::error::WorkloadError;
use super::report;
use super::threads;
use super::watch::ProgressLines;
use crate::exit::pretty;

/// Repeat the measurements of published papers, and print their tables with the published figures
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload paper zvm
  tacit workload paper all --quick --html papers.html
  tacit workload paper ipsec --network-share 8,30 --seed 7
  tacit workload paper ipsec --seeds 1-20 --rounds 1 --progress
  tacit workload paper ztpf --locks before.json,after.json --json -

The command uses network namespaces of its own; it does not need root.")]
pub(super) struct PaperArgs {
    /// The paper whose measurements the command repeats
    paper: PaperChoice,
    /// Number of measurements for each table cell; the cell shows their median
    #[arg(long, value_name = "N", default_value = "3", value_parser = count(ROUNDS_MAX))]
    rounds: usize,
    /// Duration of each measurement for which the paper specifies no length
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    seconds: Duration,
    /// Make one short measurement for each table cell, and transfer a tenth of the bytes
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,
    /// For `tacit workload paper ztpf`: two files that `cargo xtask bench sockets --json` wrote,
    /// the first with `--lock global`, the second with `--lock writers`
    #[arg(long, value_name = "FILE,FILE", value_delimiter = ',')]
    locks: Vec<PathBuf>,
    /// For `tacit workload paper lfp`: the size of the file that FTP transfers [default: 1 GB, as
    /// in the paper]
    #[arg(long, value_name = "BYTES", value_parser = bytes(FILE_BYTES_MAX))]
    file_size: Option<u64>,
    /// For `tacit workload paper ipsec`: the percentage of CPU time that networking uses. The
    /// first number is for interactive loads, the second number is for bulk loads
    #[arg(long, value_name = "PERCENT,PERCENT", value_delimiter = ',', default_value = "8,30",
          value_parser = percent)]
    network_share: Vec<f64>,
    /// For `tacit workload paper ipsec`: measure random loads; the same N always generates the same
    /// loads
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// For `tacit workload paper ipsec`: compare forecasts for an engine with measurements. Each
    /// seed from FIRST to LAST generates three random loads
    #[arg(long, value_name = "FIRST-LAST", conflicts_with_all = ["seed", "network_share"],
          value_parser = forecast::seeds)]
    seeds: Option<Seeds>,
    /// Write the tables as JSON to this file; `-` prints JSON instead of text
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
    /// Write the tables to this file as a self-contained HTML page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the tables to this file as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Print progress messages, even if standard error is not a terminal
    #[arg(long)]
    progress: bool,
    /// This process is already in the namespaces that `tacit workload paper` creates
    #[arg(long, hide = true)]
    inside: bool,
}

/// The papers that the argument `PAPER` can select.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PaperChoice {
    /// z/TPF: messages per second with two versions of a TLS library, and with two versions of a
    /// lock for socket calls
    Ztpf,
    /// MQ for z/OS: CPU time to start and stop an MQ channel (a connection) with TLS, and the
    /// round-trip time of messages
    Mq,
    /// z/VM: CPU time of a new connection while many connections are open, with and without client
    /// certificates
    Zvm,
    /// z/VSE: transfers with a TCP/IP stack in z/VSE, and transfers with Linux Fast Path (LFP)
    Lfp,
    /// z/OS: traffic in clear, and IPsec with and without a special processor (zIIP)
    Ipsec,
    /// All five papers
    All,
}

impl PaperArgs {
    /// Returns the values of `--network-share`. A single value applies to interactive loads and to
    /// bulk loads.
    fn shares(&self) -> NetworkShare {
        let first = self.network_share.first().copied().unwrap_or_default();
        let second = self.network_share.get(1).copied();
        NetworkShare { interactive: first, bulk: second.unwrap_or(first) }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent.ok_or_else(|| "expected a percentage from 0 to 100, such as 8".to_owned())
}

/// Makes the measurements of one paper, and returns its tables.
type Measure = fn(&PaperArgs, &Stage) -> PaperSheet;

const PAPERS: [(PaperChoice, Measure); 5] = [
    (PaperChoice::Ztpf, |args, stage| ztpf::measure(stage, &args.locks)),
    (PaperChoice::Mq, |_, stage| mq::measure(stage)),
    (PaperChoice::Zvm, |_, stage| zvm::measure(stage)),
    (PaperChoice::Lfp, |_, stage| lfp::measure(stage)),
    (PaperChoice::Ipsec, |args, stage| match &args.seeds {
        Some(seeds) => forecast::measure(stage, seeds),
        None => ipsec::measure(stage, args.shares(), args.seed),
    }),
];

/// The maximum of `--rounds`: more measurements would take longer than a day.
const ROUNDS_MAX: usize = 100;
const QUICK: Extent =
    Extent { rounds: 1, time: Duration::from_millis(300), divisor: 10, file_bytes: lfp::FTP_BYTES };
/// The maximum of `--file-size`: the transfer of a larger file would take hours.
const FILE_BYTES_MAX: u64 = 1 << 40;

pub(super) fn run(args: &PaperArgs) -> Result<(), WorkloadError> {
    if !args.inside {
        let arguments: Vec<_> = std::env::args_os().skip(1).collect();
        return Err(stage::enter_namespaces(&arguments));
    }
    let file_bytes = args.file_size.unwrap_or(lfp::FTP_BYTES);
    let extent = match args.quick {
        true => Extent { file_bytes, ..QUICK },
        false => Extent { rounds: args.rounds, time: args.seconds, divisor: 1, file_bytes },
    };
    let progress = if args.progress { ProgressLines::Always } else { ProgressLines::OnTerminal };
    let stage = Stage::prepare(extent, progress)?;
    let chosen = |choice| args.paper == PaperChoice::All || args.paper == choice;
    let papers = PAPERS.iter().filter(|(choice, _)| chosen(*choice));
    let sheets = papers.map(|(_, measure)| sheet(args, &stage, *measure)).collect();
    let machine = stage::machine(report::kernel(), threads::cpus());
    let all = PaperReport { machine, rounds: extent.rounds, sheets };
    write(args, &all)?;
    all.failure().map_or(Ok(()), |reason| Err(WorkloadError::Paper(reason.to_owned())))
}

fn sheet(args: &PaperArgs, stage: &Stage, measure: Measure) -> PaperSheet {
    let mut sheet = measure(args, stage);
    if let Some(note) = stage.disturbance() {
        sheet.note(note);
    }
    sheet
}

fn write(args: &PaperArgs, all: &PaperReport) -> Result<(), WorkloadError> {
    if let Some(path) = &args.html {
        report::write(path, &all.html())?;
    }
    if let Some(path) = &args.markdown {
        report::write(path, &all.markdown())?;
    }
    let json = || pretty(&all.json());
    match &args.json {
        Some(path) if path.as_os_str() == "-" => return report::print(&json()),
        Some(path) => report::write(path, &json())?,
        None => {}
    }
    report::print(&all.text())
}
