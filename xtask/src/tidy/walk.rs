//! Checks a table in ARCHITECTURE.md. The table lists the files whose code serves a connection, in
//! order. Each file must exist. Each file except the first must be used by an earlier file of the
//! table.

use std::collections::BTreeSet;

use super::Finding;
use super::graph::Modules;
use super::source::Source;

const PAGE: &str = "ARCHITECTURE.md";
const TITLE: &str = "### The files of one connection";
/// Maximum number of files for a connection of a forwarding rule, and of additional files of runs.
const FILES_MAX: usize = 18;
const FILES_OF_RUN_MAX: usize = 12;
const CRATE: &str = "crates/tacit/src/";
const LANE: &str = "stream";

/// A row of the list.
struct Row<'a> {
    line: usize,
    path: &'a str,
    /// Modules of the lane that the file calls for other connections.
    branches: Vec<&'a str>,
}

/// Checks that each file exists, and that an earlier file uses it. A file may call a module of the
/// lane only if the table lists the module, or names it as a branch.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return };
    let tables = tables(&page.text);
    let [connection, run, ..] = tables.as_slice() else {
        findings.push(Finding::new(
            page,
            0,
            format!(
                "the section `{TITLE}` must contain two tables: one for connections, and one for \
                 runs"
            ),
        ));
        return;
    };
    for (rows, max) in [(connection, FILES_MAX), (run, FILES_OF_RUN_MAX)] {
        if rows.len() > max {
            let message =
                format!("a table of `{TITLE}` lists {} files; the limit is {max}", rows.len());
            findings.push(Finding::new(page, rows.first().map_or(0, |row| row.line), message));
        }
    }
    let modules = Modules::new(sources, CRATE);
    check_order(page, &modules, sources, connection.iter().chain(run), findings);
    check_calls(page, &modules, connection, findings);
}

/// Checks the order. The first file starts the list; other crates are used through their root.
fn check_order<'a>(
    page: &Source,
    modules: &Modules<'_>,
    sources: &[Source],
    rows: impl Iterator<Item = &'a Row<'a>>,
    findings: &mut Vec<Finding>,
) {
    let uses = modules.uses();
    let mut before: BTreeSet<String> = BTreeSet::new();
    for row in rows {
        let Some(source) = sources.iter().find(|source| source.path == row.path) else {
            let message = format!("{PAGE} lists the file {}, which does not exist", row.path);
            findings.push(Finding::new(page, row.line, message));
            continue;
        };
        let Some(module) = modules.module_of(&source.path) else { continue };
        let is_used = before.is_empty()
            || uses.iter().any(|one| before.contains(&one.from) && is_within(&one.to, module));
        if !is_used {
            let message = format!(
                "{PAGE} lists the file {}, but no file earlier in this list uses it",
                row.path
            );
            findings.push(Finding::new(page, row.line, message));
        }
        before.insert(module.to_owned());
    }
}

/// Whether `used` is a module or a part of it.
fn is_within(used: &str, module: &str) -> bool {
    used == module || used.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"))
}

fn check_calls(
    page: &Source,
    modules: &Modules<'_>,
    rows: &[Row<'_>],
    findings: &mut Vec<Finding>,
) {
    let listed: BTreeSet<&str> =
        rows.iter().filter_map(|row| modules.module_of(row.path)).collect();
    let uses = modules.uses();
    for row in rows {
        let Some(module) = modules.module_of(row.path).filter(|module| is_within(module, LANE))
        else {
            continue;
        };
        // The files of a listed folder count as one module of the lane.
        let own_part = module.split("::").nth(1).unwrap_or_default();
        for one in uses.iter().filter(|one| one.from == module && is_within(&one.to, LANE)) {
            let part = one.to.split("::").nth(1).unwrap_or_default();
            let is_own = part == own_part || one.to == LANE;
            if !is_own && !listed.contains(one.to.as_str()) && !row.branches.contains(&part) {
                let message = format!(
                    "the file {} calls the module `{}`, which {PAGE} does not list for this file",
                    row.path, one.to
                );
                findings.push(Finding::new(page, row.line, message));
            }
        }
    }
}

/// The tables between the title and the next title.
fn tables(text: &str) -> Vec<Vec<Row<'_>>> {
    let mut tables = Vec::new();
    let mut is_open = false;
    let lines = text.lines().enumerate().skip_while(|(_, line)| *line != TITLE).skip(1);
    for (index, line) in lines.take_while(|(_, line)| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, file, rest @ ..] = cells.as_slice() else {
            is_open = false;
            continue;
        };
        let Some(path) = file.strip_prefix('`').and_then(|file| file.strip_suffix('`')) else {
            if *file == "file" {
                is_open = true;
                tables.push(Vec::new());
            }
            continue;
        };
        let branches = rest.get(1).map(|cell| cell.split('`').skip(1).step_by(2).collect());
        let row = Row { line: index + 1, path, branches: branches.unwrap_or_default() };
        if let Some(rows) = tables.last_mut().filter(|_| is_open) {
            rows.push(row);
        }
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        ("crates/tacit/src/stream/serve.rs", "use super::{relay, driver};"),
        ("crates/tacit/src/stream/relay.rs", ""),
        ("crates/tacit/src/stream/driver.rs", ""),
        ("crates/tacit/src/run.rs", ""),
    ];

    fn findings(first: &str, second: &str) -> Vec<String> {
        let page = format!(
            "{TITLE}\n\n| file | does | branches |\n|---|---|---|\n{first}\n\n\
             | file | does |\n|---|---|\n{second}\n\n## Next\n"
        );
        let mut sources: Vec<Source> =
            FILES.iter().map(|(path, text)| Source::new(path, text)).collect();
        sources.push(Source::new(PAGE, &page));
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.iter().map(Finding::render).collect()
    }

    const SERVE: &str = "| `crates/tacit/src/stream/serve.rs` | the life | `driver` |";
    const RELAY: &str = "| `crates/tacit/src/stream/relay.rs` | moves bytes | |";

    #[test]
    fn a_correct_list_has_no_findings() {
        assert_eq!(findings(&format!("{SERVE}\n{RELAY}"), ""), [""; 0]);
    }

    #[test]
    fn missing_unused_and_unlisted_files_are_found() {
        let unlisted = findings(&SERVE.replace("`driver`", ""), "");
        assert_eq!(unlisted.len(), 2, "{unlisted:?}");
        let unused = findings(&format!("{SERVE}\n{RELAY}"), "| `crates/tacit/src/run.rs` | run |");
        assert_eq!(unused.len(), 1, "{unused:?}");
        let missing = findings(&format!("{SERVE}\n{RELAY}\n| `crates/gone.rs` | | |"), "");
        assert_eq!(missing.len(), 1, "{missing:?}");
    }
}
