//! Writes the report of the benchmark as text, Markdown, HTML and JSON.
//!
//! ```text
//! mod.rs       sections, and the output formats
//! summary.rs   medians and minima of the samples
//! tables.rs    the tables
//! ```
//! The report contains no paths and no machine name, so the report can be committed to the
//! repository.

mod summary;
mod tables;

use std::fs;

use serde_json::{Value, json};
use tacit_core::page::{Bars, DataTable, HtmlPage, PagePart};

use self::summary::Summary;
use crate::measure::{PARTS, Sample};
use crate::memory::{self, IdleMemory};
use crate::network::Network;
use crate::options::Options;
use crate::peers::{METERED, Peer, Running, SUBJECT, UNMETERED};
use crate::tls_settings::TlsSettings;
use crate::workload::{Length, Workload};

/// The report of a whole run of the benchmark.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The command line that reproduces the report.
    command: String,
    /// The machine, the network and the number of rounds.
    head: Vec<String>,
    sections: Vec<Section>,
    /// The tables of the workloads, which are also in `sections`.
    of_workloads: Vec<DataTable>,
}

/// A section of the report.
#[derive(Debug, Default)]
struct Section {
    title: String,
    prose: String,
    tables: Vec<DataTable>,
    bars: Vec<Bars>,
    notes: Vec<String>,
    /// Preformatted text in columns.
    columns: String,
}

/// The results of the peers.
#[derive(Debug)]
pub(crate) struct PeerResults<'a> {
    pub(crate) running: &'a [Running],
    /// The peers that could not be started, and why.
    pub(crate) absent: &'a [String],
    pub(crate) samples: &'a [Sample],
    pub(crate) idle: &'a [IdleMemory],
}

impl Report {
    /// An empty report about this machine.
    pub(crate) fn new(options: &Options, network: &Network) -> Self {
        let quick = if options.length == Length::Quick { ", short samples" } else { "" };
        let head = vec![
            format!("{}; Linux {}", machine(), kernel()),
            network.describe(),
            format!(
                "{} rounds{quick}; each round measures all peers one after another",
                options.rounds
            ),
        ];
        let write = if options.section.is_none() { " --write" } else { "" };
        let command = format!("cargo xtask bench{}{write}", options.line);
        Self { command, head, sections: Vec::new(), of_workloads: Vec::new() }
    }

    /// Adds the results of the peers; returns them as JSON.
    pub(crate) fn add_peers(&mut self, options: &Options, seen: &PeerResults<'_>) -> Value {
        let peers: Vec<&'static Peer> = options.peers.clone();
        let summary = Summary::new(&peers, &options.workloads, seen.samples);
        self.sections.push(who(seen));
        let goals = [
            tables::headline(&summary, &options.workloads),
            tables::beside(&summary, &options.workloads),
        ];
        self.sections.push(Section {
            title: "Goals".to_owned(),
            prose: format!(
                "Each value is the CPU time for one operation with {SUBJECT} (two tacit runs with \
                 default settings), divided by the CPU time with the best peer in its default \
                 configuration. The CPU time is the sum over all processes. The goals apply to \
                 the medians. The minima vary less if other programs use the machine."
            ),
            tables: goals.into_iter().flatten().collect(),
            ..Section::default()
        });
        if let Some(table) = tables::accounting(seen.samples, &options.workloads) {
            self.sections.push(Section {
                title: "CPU time that accounting uses".to_owned(),
                prose: format!(
                    "Each value is the mean ratio of the CPU time of {METERED} to the CPU time of \
                     {UNMETERED}, with a 95 % confidence interval. Each ratio compares two \
                     consecutive samples."
                ),
                tables: vec![table],
                ..Section::default()
            });
        }
        let inside = [tables::inside(&summary), tables::paper(&summary)];
        self.sections.push(Section {
            title: "Comparison with programs that use TLS themselves".to_owned(),
            tables: inside.into_iter().flatten().collect(),
            ..Section::default()
        });
        let fairness = tables::fairness(&summary);
        self.of_workloads = fairness.iter().cloned().collect();
        self.of_workloads
            .extend(options.workloads.iter().map(|workload| tables::workload(&summary, workload)));
        self.sections.push(Section {
            title: "Short messages beside streams".to_owned(),
            prose: tables::FAIRNESS_AIMS.to_owned(),
            tables: fairness.into_iter().collect(),
            ..Section::default()
        });
        self.sections.extend(workloads(&summary, &options.workloads));
        self.sections.extend(idle(seen.idle));
        json!({
            "peers": seen.running.iter().map(peer_json).collect::<Vec<_>>(),
            "absent": seen.absent,
            "summary": summary.json(),
            "idle": seen.idle.iter().map(IdleMemory::json).collect::<Vec<_>>(),
            "samples": seen.samples.iter().map(sample_json).collect::<Vec<_>>(),
        })
    }

    /// Adds preformatted text.
    pub(crate) fn add_columns(&mut self, title: &str, columns: String) {
        let title = title.to_owned();
        self.sections.push(Section { title, columns, ..Section::default() });
    }

    /// The report as text.
    pub(crate) fn text(&self) -> String {
        let mut out = format!("{}\n", self.head.join("\n"));
        for section in self.filled() {
            out.push_str(&format!("\n== {}\n", section.title));
            if !section.prose.is_empty() {
                out.push_str(&format!("{}\n", section.prose));
            }
            section.notes.iter().for_each(|note| out.push_str(&format!("{note}\n")));
            section.tables.iter().for_each(|table| out.push_str(&format!("\n{}", table.text())));
            out.push_str(&section.columns);
        }
        out
    }

    /// The report as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!(
            "# Benchmarks\n\nWritten by `{}`. \
             [docs/benchmarks.md](docs/benchmarks.md) describes the measurements and how to read \
             the tables. [docs/papers.md](docs/papers.md) describes the tables of published \
             papers.\n\n",
            self.command
        );
        self.head.iter().for_each(|line| out.push_str(&format!("* {line}\n")));
        for section in self.filled() {
            out.push_str(&format!("\n## {}\n", section.title));
            if !section.prose.is_empty() {
                out.push_str(&format!("\n{}\n", section.prose));
            }
            if !section.notes.is_empty() {
                out.push('\n');
            }
            section.notes.iter().for_each(|note| out.push_str(&format!("* {note}\n")));
            for table in &section.tables {
                out.push_str(&format!("\n**{}**\n\n{}", table.title, table.markdown()));
            }
            out.push_str(&section.preformatted());
        }
        out
    }

    /// The tables of the workloads as Markdown, for a section of their own.
    pub(crate) fn section(&self) -> String {
        let Self { command, head, .. } = self;
        let mut out = format!("`{command}`: {}.\n", head.join("; "));
        for table in &self.of_workloads {
            out.push_str(&format!("\n**{}**\n\n{}", table.title, table.markdown()));
        }
        self.filled().for_each(|section| out.push_str(&section.preformatted()));
        out
    }

    /// The report as an HTML page.
    pub(crate) fn html(&self) -> String {
        let mut parts = Vec::new();
        for section in self.filled() {
            parts.push(PagePart::Heading(section.title.clone()));
            if !section.prose.is_empty() {
                parts.push(PagePart::Prose(section.prose.clone()));
            }
            if !section.notes.is_empty() {
                parts.push(PagePart::Notes(section.notes.clone()));
            }
            parts.extend(section.bars.iter().cloned().map(PagePart::Bars));
            parts.extend(section.tables.iter().cloned().map(PagePart::Table));
            if !section.columns.is_empty() {
                parts.push(PagePart::Columns(section.columns.clone()));
            }
        }
        let subtitle = self.head.join("; ");
        HtmlPage { title: "tacit compared with its peers".to_owned(), subtitle, parts }.html()
    }

    fn filled(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| {
            !(section.tables.is_empty() && section.notes.is_empty() && section.columns.is_empty())
        })
    }
}

impl Section {
    /// The preformatted text as Markdown; empty if there is none.
    fn preformatted(&self) -> String {
        match self.columns.as_str() {
            "" => String::new(),
            columns => format!("\n```text\n{columns}```\n"),
        }
    }
}

/// The peers, and what each negotiated.
fn who(seen: &PeerResults<'_>) -> Section {
    let mut notes: Vec<_> = seen
        .running
        .iter()
        .filter(|running| running.settings == TlsSettings::Usual)
        .map(|Running { peer, version, negotiated, .. }| {
            format!("{} ({}): {negotiated}; {version}", peer.name, peer.title)
        })
        .collect();
    let others = seen.running.iter().filter(|running| running.settings != TlsSettings::Usual);
    notes.extend(others.map(|Running { peer, settings, negotiated, .. }| {
        format!("{}, {}: {negotiated}", peer.name, settings.name())
    }));
    notes.extend(seen.absent.iter().map(|absent| format!("not measured: {absent}")));
    Section { title: "The peers".to_owned(), notes, ..Section::default() }
}

fn workloads(summary: &Summary, workloads: &[&'static Workload]) -> Vec<Section> {
    let on = |is: fn(&Workload) -> bool, title: &str, prose: &str| Section {
        title: title.to_owned(),
        prose: prose.to_owned(),
        tables: workloads.iter().filter(|w| is(w)).map(|w| tables::workload(summary, w)).collect(),
        bars: workloads.iter().filter(|w| is(w)).map(|w| tables::bars(summary, w)).collect(),
        ..Section::default()
    };
    vec![
        on(
            |workload| workload.goal.is_some(),
            "Workloads with a goal",
            "Each row shows CPU time in microseconds: the median, the minimum, and the median of \
             each process. Column `x` is the median divided by the median of the best peer in its \
             default configuration. A sample is dropped if the CPU time of other programs was \
             more than 12 percent of the CPU time of the measured processes. If more than a third \
             of the samples were dropped, the table shows `not measured` in place of the median. \
             The minimum is always the minimum of all samples.",
        ),
        on(
            |workload| workload.goal.is_none() && workload.settings <= TlsSettings::Resumed,
            "Other workloads",
            "",
        ),
        on(
            |workload| workload.settings > TlsSettings::Resumed,
            "Other suites and TLS 1.2",
            "This section compares tacit with programs that use OpenSSL themselves.",
        ),
    ]
}

fn idle(idle: &[IdleMemory]) -> Option<Section> {
    let kernel = memory::kernel_bytes();
    let source = kernel.source;
    Some(Section {
        title: "Memory".to_owned(),
        prose: format!(
            "Each value is the resident memory that one idle connection adds, measured with {} \
             connections. The column `kernel KB` is the memory of four TCP sockets in epoll sets \
             ({source}). Every pair of proxies needs this memory. The goal applies only to the \
             memory of the processes.",
            memory::COUNTED
        ),
        tables: vec![tables::memory(idle, kernel.bytes)?],
        ..Section::default()
    })
}

fn peer_json(running: &Running) -> Value {
    json!({
        "peer": running.peer.name,
        "title": running.peer.title,
        "terms": running.settings.name(),
        "version": running.version,
        "negotiated": running.negotiated,
    })
}

fn sample_json(sample: &Sample) -> Value {
    let parts = PARTS.iter().zip(sample.cpu_ns);
    let cpu_ns: serde_json::Map<_, _> =
        parts.map(|(name, ns)| ((*name).to_owned(), ns.into())).collect();
    json!({
        "peer": sample.peer,
        "workload": sample.workload.name,
        "units": sample.units,
        "seconds": sample.seconds,
        "p50_us": sample.latency.p50_us,
        "p99_us": sample.latency.p99_us,
        "cpu_ns": cpu_ns,
        "machine_ns": sample.machine_ns,
        "dropped": sample.is_disturbed(),
    })
}

/// A description of the machine.
fn machine() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = value("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let flags = value("flags").unwrap_or_default();
    let kind = if flags.split(' ').any(|flag| flag == "hypervisor") { "virtual" } else { "real" };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!("a {kind} machine with {cpus} CPUs, {model}")
}

fn kernel() -> String {
    let version = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The text after the version number names the builder of the kernel.
    version.trim().split('-').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::summary::tests::sample;
    use super::*;
    use crate::memory::PerSide;
    use crate::network::Namespace;

    #[test]
    fn all_formats_have_the_goals_and_the_missing_peers() {
        let options = Options::parse(&["--workloads", "2k"]).unwrap();
        let network = Network { namespace: Namespace::Own, congestion: "cubic".to_owned() };
        let mut report = Report::new(&options, &network);
        let samples = [sample("envoy", 50), sample("tacit-split", 39), sample("tacit-run", 45)];
        let absent = ["usual (nginx: not there)".to_owned()];
        let idle =
            [IdleMemory { peer: "tacit-run", bytes: PerSide { client: 1024.0, server: 512.0 } }];
        let seen = PeerResults { running: &[], absent: &absent, samples: &samples, idle: &idle };
        let json = report.add_peers(&options, &seen);
        report.add_columns("Starts", "a  b\n".to_owned());
        assert_eq!(json["samples"].as_array().unwrap().len(), 3);
        assert_eq!(json["summary"][0]["figures"]["cpu_us_median"], 50.0);
        for (form, text) in
            [("text", report.text()), ("markdown", report.markdown()), ("html", report.html())]
        {
            for part in ["0.78", "0.90", "not measured: usual (nginx", "cubic", "Starts", "1.50"] {
                assert!(text.contains(part), "{form}: {part}\n{text}");
            }
        }
        let command = "`cargo xtask bench --workloads 2k --write`";
        assert!(report.markdown().contains(command));
        let section = report.section();
        assert!(section.contains(command) && section.contains("**2k: 2 KB"), "{section}");
        assert!(!section.contains("1.50"), "the memory of idle connections");
    }
}
