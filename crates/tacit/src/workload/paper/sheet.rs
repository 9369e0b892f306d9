//! Writes the tables of `tacit workload paper` as text, JSON and one HTML page with charts.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tacit_core::page::{Bar, Bars, Chart, DataTable, HtmlPage, PagePart};

use super::cell::{Gap, GapState, PaperCell};

/// The tables of one paper.
#[derive(Clone, Debug, Default)]
pub(super) struct PaperSheet {
    /// The word on the command line.
    pub(super) key: &'static str,
    /// What the paper is about.
    pub(super) title: &'static str,
    /// How its measurements were repeated.
    pub(super) method: String,
    pub(super) tables: Vec<PaperTable>,
    pub(super) charts: Vec<PaperChart>,
    pub(super) notes: Vec<String>,
}

/// A table of a paper.
#[derive(Clone, Debug)]
pub(super) struct PaperTable {
    /// A key that never changes.
    pub(super) key: &'static str,
    pub(super) title: String,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<PaperCell>>,
}

/// A chart of a paper.
#[derive(Clone, Debug)]
pub(super) enum PaperChart {
    Bars(Bars),
    Lines(Chart),
}

/// All papers of one call.
#[derive(Clone, Debug)]
pub(super) struct PaperReport {
    /// Kernel, processor and settings of the machine.
    pub(super) machine: Machine,
    pub(super) rounds: usize,
    pub(super) sheets: Vec<PaperSheet>,
}

/// The machine on which the tables were measured.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    pub(super) kernel: String,
    pub(super) processor: String,
    pub(super) cpus: usize,
    pub(super) congestion: String,
}

impl PaperTable {
    pub(super) fn new(key: &'static str, title: impl Into<String>, columns: &[&str]) -> Self {
        let columns = columns.iter().map(|column| (*column).to_owned()).collect();
        Self { key, title: title.into(), columns, rows: Vec::new() }
    }

    /// The table, and the reasons of its empty cells.
    fn shown(&self) -> (DataTable, Vec<Gap>) {
        let mut gaps = Vec::new();
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.iter().map(|cell| cell.shown(&mut gaps)).collect()).collect();
        (DataTable { title: self.title.clone(), columns: self.columns.clone(), rows }, gaps)
    }

    fn json(&self) -> Value {
        let row = |row: &Vec<PaperCell>| row.iter().map(PaperCell::json).collect::<Vec<_>>();
        json!({
            "key": self.key,
            "title": self.title,
            "columns": self.columns,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}

impl PaperSheet {
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a bar chart of the cells that have a number.
    pub(super) fn bars(&mut self, title: &str, unit: &str, cells: &[(&str, PaperCell)]) {
        let bar = |(name, cell): &(&str, PaperCell)| {
            let (value, colour) = match cell {
                PaperCell::Published(value) => (*value, PUBLISHED_COLOUR),
                PaperCell::Measured(value) => (*value, MEASURED_COLOUR),
                _ => return None,
            };
            Some(Bar { name: (*name).to_owned(), value, colour })
        };
        let bars: Vec<_> = cells.iter().filter_map(bar).collect();
        if !bars.is_empty() {
            let bars = Bars { title: title.to_owned(), unit: unit.to_owned(), bars };
            self.charts.push(PaperChart::Bars(bars));
        }
    }

    fn text(&self) -> String {
        let mut out = format!("{}: {}\n{}\n", self.key, self.title, self.method);
        for table in &self.tables {
            let (table, gaps) = table.shown();
            let _ = write!(out, "\n{}", table.text());
            for (at, gap) in gaps.iter().enumerate() {
                let _ = writeln!(out, "{}", footnote(at, gap));
            }
        }
        for note in &self.notes {
            let _ = write!(out, "\nnote: {note}");
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        out
    }

    fn markdown(&self) -> String {
        let mut out = format!("## {}: {}\n\n{}.\n", self.key, self.title, self.method);
        for table in &self.tables {
            let (table, gaps) = table.shown();
            let _ = write!(out, "\n**{}**\n\n{}", table.title, table.markdown());
            for (at, gap) in gaps.iter().enumerate() {
                let _ = write!(out, "\n{}\n", footnote(at, gap));
            }
        }
        if !self.notes.is_empty() {
            out.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(out, "- {note}");
        }
        out
    }

    fn json(&self) -> Value {
        json!({
            "paper": self.key,
            "title": self.title,
            "method": self.method,
            "tables": self.tables.iter().map(PaperTable::json).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }

    fn parts(&self) -> Vec<PagePart> {
        let mut parts = vec![
            PagePart::Heading(format!("{}: {}", self.key, self.title)),
            PagePart::Prose(self.method.clone()),
        ];
        for table in &self.tables {
            let (table, gaps) = table.shown();
            parts.push(PagePart::Table(table));
            let reasons = gaps.iter().enumerate().map(|(at, gap)| footnote(at, gap));
            let reasons: Vec<_> = reasons.collect();
            if !reasons.is_empty() {
                parts.push(PagePart::Notes(reasons));
            }
        }
        let charts = self.charts.iter().map(|chart| match chart {
            PaperChart::Bars(bars) => PagePart::Bars(bars.clone()),
            PaperChart::Lines(chart) => PagePart::Chart(chart.clone()),
        });
        parts.extend(charts);
        if !self.notes.is_empty() {
            parts.push(PagePart::Notes(self.notes.clone()));
        }
        parts
    }

    fn cells(&self) -> impl Iterator<Item = &PaperCell> {
        self.tables.iter().flat_map(|table| table.rows.iter().flatten())
    }
}

fn footnote(at: usize, gap: &Gap) -> String {
    format!("[{}] {}: {}", at + 1, gap.state.word(), gap.reason)
}

impl PaperReport {
    /// The first reason of a measurement that failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.sheets.iter().flat_map(PaperSheet::cells).find_map(|cell| match cell {
            PaperCell::Empty(gap) if gap.state == GapState::Failed => Some(gap.reason.as_str()),
            _ => None,
        })
    }

    fn machine_line(&self) -> String {
        let Machine { kernel, processor, cpus, congestion } = &self.machine;
        let rounds = match self.rounds {
            1 => "each value was measured once".to_owned(),
            rounds => format!("medians of {rounds} measurements"),
        };
        format!(
            "Linux {kernel}, {cpus} CPUs, {processor}, congestion control {congestion}; {rounds}"
        )
    }

    /// All papers as text.
    pub(super) fn text(&self) -> String {
        let sheets: Vec<_> = self.sheets.iter().map(PaperSheet::text).collect();
        format!("{}\n\n{}", self.machine_line(), sheets.join("\n"))
    }

    /// All papers as Markdown.
    pub(super) fn markdown(&self) -> String {
        let sheets: Vec<_> = self.sheets.iter().map(PaperSheet::markdown).collect();
        format!("{}.\n\n{}", self.machine_line(), sheets.join("\n"))
    }

    /// All papers as JSON.
    pub(super) fn json(&self) -> Value {
        let Machine { kernel, processor, cpus, congestion } = &self.machine;
        json!({
            "version": 1,
            "kernel": kernel,
            "processor": processor,
            "cpus": cpus,
            "congestion": congestion,
            "rounds": self.rounds,
            "papers": self.sheets.iter().map(PaperSheet::json).collect::<Vec<_>>(),
        })
    }

    /// One page with all papers.
    pub(super) fn html(&self) -> String {
        let legend = "Columns that are named after a published measurement contain its figures. \
                      All other columns were measured on this machine. The published figures come \
                      from other machines, years and protocols: compare the ratios, not the \
                      figures.";
        let mut parts = vec![PagePart::Prose(legend.to_owned())];
        parts.extend(self.sheets.iter().flat_map(PaperSheet::parts));
        HtmlPage {
            title: "tacit workload paper: published measurements, repeated".to_owned(),
            subtitle: self.machine_line(),
            parts,
        }
        .html()
    }
}

/// Colours of bars: of the paper, and of this machine.
const PUBLISHED_COLOUR: usize = 1;
const MEASURED_COLOUR: usize = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> PaperReport {
        let mut table = PaperTable::new("rate", "Rate", &["workload", "LFP, MB/s", "relay, MB/s"]);
        let row = |name, measured: PaperCell| {
            vec![PaperCell::name(name), PaperCell::Published(72.0), measured]
        };
        table.rows.push(row("FTP out", PaperCell::Measured(1234.4)));
        table.rows.push(row("FTP in", PaperCell::Empty(Gap::skipped("vsftpd is missing"))));
        let mut sheet = PaperSheet {
            key: "lfp",
            title: "a <fast> path",
            method: "method".to_owned(),
            tables: vec![table],
            ..PaperSheet::default()
        };
        let bars = [("LFP", PaperCell::Published(72.0)), ("relay", PaperCell::Measured(99.0))];
        sheet.bars("rate", "MB/s", &bars);
        sheet.bars("none", "MB/s", &[("x", PaperCell::Empty(Gap::absent("y")))]);
        sheet.note("quiet");
        PaperReport { machine: Machine::default(), rounds: 3, sheets: vec![sheet] }
    }

    #[test]
    fn text_has_published_and_measured_columns_and_the_reasons_of_empty_cells() {
        let text = report().text();
        for line in [
            "lfp: a <fast> path",
            "workload  LFP, MB/s  relay, MB/s",
            "FTP out          72        1,234",
            "FTP in           72          [1]",
            "[1] skipped: vsftpd is missing",
            "note: quiet",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn json_tells_published_measured_and_empty_cells_apart() {
        let json = report().json();
        let rows = &json["papers"][0]["tables"][0]["rows"];
        assert_eq!(rows[0][1], json!({ "published": 72.0 }));
        assert_eq!(rows[0][2], json!({ "measured": 1234.4 }));
        assert_eq!(rows[1][2]["empty"], "skipped");
    }

    #[test]
    fn the_page_has_tables_charts_and_reasons() {
        let page = report().html();
        for part in ["a &lt;fast&gt; path", "<td>1,234</td>", "vsftpd is missing", "<rect"] {
            assert!(page.contains(part), "{part}");
        }
        assert_eq!(page.matches("<svg").count(), 1, "a chart without numbers is left out");
    }

    #[test]
    fn markdown_has_the_same_tables() {
        let text = report().markdown();
        for line in [
            "## lfp: a <fast> path",
            "| workload | LFP, MB/s | relay, MB/s |",
            "| FTP out | 72 | 1,234 |",
            "[1] skipped: vsftpd is missing",
            "- quiet",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn only_failed_measurements_are_failures() {
        let mut report = report();
        assert_eq!(report.failure(), None);
        report.sheets[0].tables[0].rows[0][2] = PaperCell::Empty(Gap::failed("no route"));
        assert_eq!(report.failure(), Some("no route"));
    }
}
