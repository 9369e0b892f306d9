//! The report as one page that needs nothing else: no script, no file, no network.

use std::fmt::Write;

use super::text::shown;
use super::{Cell, Chart, Report, Table, number};

const STYLE: &str = "\
:root { color-scheme: light dark; --ground: #fff; --text: #1b1f24; --faint: #6b7280;\n\
  --line: #e2e5ea; --s0: #0b62c4; --s1: #b3470f; --s2: #1a7f4b; --s3: #7a3fb8; }\n\
@media (prefers-color-scheme: dark) { :root { --ground: #14171b; --text: #e6e8eb;\n\
  --faint: #9aa3af; --line: #2c323a; --s0: #6cb2ff; --s1: #ffa066; --s2: #5fd197;\n\
  --s3: #c79bff; } }\n\
body { background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif;\n\
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }\n\
h1 { font-size: 1.4rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }\n\
p.faint { color: var(--faint); margin-top: .2rem; }\n\
.wide { overflow-x: auto; }\n\
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n\
th, td { padding: .2rem .8rem .2rem 0; text-align: right; border-bottom: 1px solid var(--line); }\n\
th:first-child, td:first-child { text-align: left; }\n\
svg { width: 100%; height: auto; margin: .5rem 0; font: 12px system-ui, sans-serif; }\n\
svg text { fill: var(--faint); } svg text.title { fill: var(--text); font-weight: 600; }\n\
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }\n\
svg .grid { stroke: var(--line); }\n\
svg polyline { fill: none; stroke-width: 1.6; stroke: currentColor; }\n\
svg circle { fill: currentColor; fill-opacity: .6; } svg text.name { fill: currentColor; }\n\
svg .s0 { color: var(--s0); } svg .s1 { color: var(--s1); } svg .s2 { color: var(--s2); }\n\
svg .s3 { color: var(--s3); }\n";

/// The whole page.
pub(super) fn page(report: &Report) -> String {
    let title = match &report.label {
        Some(label) => format!("tacit workload {}: {label}", report.mode),
        None => format!("tacit workload {}", report.mode),
    };
    let title = escaped(&title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n\
         <p class=\"faint\">{}; Linux {}, {} CPUs</p>\n",
        escaped(&report.summary),
        escaped(&super::kernel()),
        super::super::cpus()
    );
    table(&mut out, &figures(report));
    report.tables.iter().for_each(|one| table(&mut out, one));
    let drawn = report.charts.iter().filter(|chart| !chart.is_empty());
    let pictures: Vec<_> = drawn.map(Chart::svg).collect();
    if !pictures.is_empty() {
        let _ = write!(out, "<h2>Charts</h2>\n{}", pictures.concat());
    }
    if !report.notes.is_empty() {
        out.push_str("<h2>Notes</h2>\n<ul>\n");
        for note in &report.notes {
            let _ = writeln!(out, "<li>{}</li>", escaped(note));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn figures(report: &Report) -> Table {
    let mut columns = vec!["figure".to_owned(), "value".to_owned()];
    if let Some(beside) = &report.beside {
        columns.extend([beside.label.clone(), "ratio".to_owned()]);
    }
    let rows = report.figures.iter().map(|figure| {
        let value = format!("{} {}", number(figure.value), figure.unit);
        let mut row = vec![Cell::Text(figure.title.clone()), Cell::Text(value)];
        if let Some(beside) = &report.beside {
            let numbers = [beside.value(figure), beside.ratio(figure)];
            row.extend(numbers.map(|number| Cell::Number(number.unwrap_or(f64::NAN))));
        }
        row
    });
    Table { title: "Figures".to_owned(), columns, rows: rows.collect() }
}

fn table(out: &mut String, table: &Table) {
    let _ = write!(out, "<h2>{}</h2>\n<div class=\"wide\">\n<table>\n<tr>", escaped(&table.title));
    for column in &table.columns {
        let _ = write!(out, "<th>{}</th>", escaped(column));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        let cells = row.iter().map(|cell| format!("<td>{}</td>", escaped(&shown(cell))));
        let _ = writeln!(out, "<tr>{}</tr>", cells.collect::<String>());
    }
    out.push_str("</table>\n</div>\n");
}

/// Text that means itself, between tags and inside quotes.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::super::tests::report;
    use super::*;

    /// Whether every tag is closed, in order. The page is written as XML would be.
    fn well_formed(page: &str) -> Result<(), String> {
        let mut open = Vec::new();
        let mut rest = page.strip_prefix("<!DOCTYPE html>").ok_or("no document type")?;
        while let Some(start) = rest.find('<') {
            let (text, tag) = rest.split_at(start);
            if text.contains('>') {
                return Err(format!("a stray > in {text:?}"));
            }
            let end = tag.find('>').ok_or_else(|| format!("a tag without end: {tag:?}"))?;
            let inside = &tag[1..end];
            let name: String = inside
                .trim_start_matches('/')
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric())
                .collect();
            if inside.starts_with('/') {
                if open.pop().as_ref() != Some(&name) {
                    return Err(format!("</{name}> closes something else"));
                }
            } else if !inside.ends_with('/') {
                open.push(name);
            }
            if inside.matches('"').count() % 2 == 1 {
                return Err(format!("a quote is open in {inside:?}"));
            }
            rest = &tag[end + 1..];
        }
        if open.is_empty() { Ok(()) } else { Err(format!("left open: {open:?}")) }
    }

    #[test]
    fn the_page_is_well_formed_and_needs_nothing_else() {
        let page = page(&report());
        well_formed(&page).unwrap();
        assert!(page.contains("&lt;agent&gt;") && !page.contains("<agent>"));
        assert!(page.contains("100 bytes &amp; more"));
        assert!(page.contains("<polyline"));
        assert!(page.contains("prefers-color-scheme: dark"));
        for foreign in ["<script", "http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn the_check_of_pages_finds_what_is_wrong() {
        for wrong in ["<p>", "<p></b>", "<p", "a > b<p/>", "<p a=\"></p>"] {
            assert!(well_formed(&format!("<!DOCTYPE html>{wrong}")).is_err(), "{wrong}");
        }
        assert!(well_formed("<!DOCTYPE html><p a=\"b\">x<br/></p>").is_ok());
    }
}
