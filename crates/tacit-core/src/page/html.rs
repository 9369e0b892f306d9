//! Writes an HTML page. The page contains no scripts and loads no other file.

use std::fmt::Write;

use super::chart::{Bars, Chart};
use super::markup::escaped;
use super::table::DataTable;

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
.wide, pre { overflow-x: auto; }\n\
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n\
th, td { padding: .2rem .8rem .2rem 0; text-align: right; white-space: nowrap;\n\
  border-bottom: 1px solid var(--line); }\n\
th:first-child, td:first-child { text-align: left; }\n\
svg { width: 100%; height: auto; margin: .5rem 0; font: 12px system-ui, sans-serif; }\n\
svg text { fill: var(--faint); } svg text.title { fill: var(--text); font-weight: 600; }\n\
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }\n\
svg .grid { stroke: var(--line); }\n\
svg polyline { fill: none; stroke-width: 1.6; stroke: currentColor; }\n\
svg rect { fill: currentColor; fill-opacity: .75; }\n\
svg circle { fill: currentColor; fill-opacity: .6; } svg text.name { fill: currentColor; }\n\
svg .s0 { color: var(--s0); } svg .s1 { color: var(--s1); } svg .s2 { color: var(--s2); }\n\
svg .s3 { color: var(--s3); }\n";

/// An HTML page.
#[derive(Clone, Debug, Default)]
pub struct HtmlPage {
    /// Its title.
    pub title: String,
    /// The line below the title.
    pub subtitle: String,
    /// Its parts, from the top.
    pub parts: Vec<PagePart>,
}

/// A part of a page.
#[derive(Clone, Debug)]
pub enum PagePart {
    /// A new section.
    Heading(String),
    /// A paragraph.
    Prose(String),
    /// A table with its title.
    Table(DataTable),
    /// A chart.
    Chart(Chart),
    /// A bar chart.
    Bars(Bars),
    /// A list of notes.
    Notes(Vec<String>),
    /// Preformatted text.
    Columns(String),
}

impl HtmlPage {
    /// Returns the complete page.
    #[must_use]
    pub fn html(&self) -> String {
        let title = escaped(&self.title);
        let mut out = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <h1>{title}</h1>\n<p class=\"faint\">{}</p>\n",
            escaped(&self.subtitle)
        );
        self.parts.iter().for_each(|part| part.write(&mut out));
        out.push_str("</body>\n</html>\n");
        out
    }
}

impl PagePart {
    fn write(&self, out: &mut String) {
        let _ = match self {
            Self::Heading(text) => writeln!(out, "<h2>{}</h2>", escaped(text)),
            Self::Prose(text) => writeln!(out, "<p>{}</p>", escaped(text)),
            Self::Table(one) => {
                table(out, one);
                Ok(())
            }
            Self::Chart(chart) => out.write_str(&chart.svg()),
            Self::Bars(bars) => out.write_str(&bars.svg()),
            Self::Columns(text) => writeln!(out, "<pre>{}</pre>", escaped(text)),
            Self::Notes(notes) => {
                let notes = notes.iter().map(|note| format!("<li>{}</li>\n", escaped(note)));
                writeln!(out, "<ul>\n{}</ul>", notes.collect::<String>())
            }
        };
    }
}

fn table(out: &mut String, table: &DataTable) {
    let _ = write!(out, "<h2>{}</h2>\n<div class=\"wide\">\n<table>\n<tr>", escaped(&table.title));
    for column in &table.columns {
        let _ = write!(out, "<th>{}</th>", escaped(column));
    }
    out.push_str("</tr>\n");
    for row in &table.rows {
        let cells = row.iter().map(|cell| format!("<td>{}</td>", escaped(&cell.shown())));
        let _ = writeln!(out, "<tr>{}</tr>", cells.collect::<String>());
    }
    out.push_str("</table>\n</div>\n");
}

#[cfg(test)]
mod tests {
    use super::super::{Bar, Series, SeriesMark, TableCell};
    use super::*;
    use crate::statistics::Point;

    /// Checks that every tag is closed, in order, as XML requires.
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

    fn page() -> HtmlPage {
        let points = vec![Point { x: 0.0, y: 1.0 }, Point { x: 1.0, y: 2.0 }];
        let chart = Chart {
            title: "100 bytes & more".to_owned(),
            series: vec![Series::new("<agent>", SeriesMark::Line, points)],
            ..Chart::default()
        };
        let bar = Bar { name: "<agent>".to_owned(), value: 1.0, colour: 7 };
        let cells = vec![TableCell::Text("<agent>".to_owned()), TableCell::Number(1500.0)];
        let table = DataTable {
            title: "CPU & more".to_owned(),
            columns: vec!["<component>".to_owned(), "us".to_owned()],
            rows: vec![cells],
        };
        let parts = vec![
            PagePart::Heading("a < b".to_owned()),
            PagePart::Prose("'quoted' > not".to_owned()),
            PagePart::Table(table),
            PagePart::Chart(chart),
            PagePart::Bars(Bars { title: "\"".to_owned(), unit: "us".to_owned(), bars: vec![bar] }),
            PagePart::Notes(vec!["closed <loop>".to_owned()]),
            PagePart::Columns("a  <b>".to_owned()),
        ];
        HtmlPage { title: "100 bytes & more".to_owned(), subtitle: "<agent>".to_owned(), parts }
    }

    #[test]
    fn the_page_is_well_formed_and_needs_nothing_else() {
        let page = page().html();
        well_formed(&page).unwrap();
        assert!(page.contains("&lt;agent&gt;") && !page.contains("<agent>"));
        assert!(page.contains("100 bytes &amp; more") && page.contains("1,500"));
        assert!(page.contains("<polyline") && page.contains("<rect"));
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
