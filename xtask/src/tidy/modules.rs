//! Checks of how files hang together: none is dead, and stages know only those before them.

use std::collections::{BTreeMap, BTreeSet};

use super::Finding;
use super::source::{Source, identifier, words};

/// The stream lane: what its stages share, the stages in the order a connection passes through
/// them, and last the function that is this order and knows them all.
const STAGES: [&str; 13] = [
    "leg",
    "gate",
    "asked",
    "intercept",
    "connection",
    "dial",
    "header",
    "talk",
    "secure",
    "relay",
    "data",
    "account",
    "serve",
];
const STAGES_FOLDER: &str = "crates/tacit/src/stream/";
const STAGES_PATH: &str = "crate::stream::";

/// Every `.rs` file must be a crate's root or be named by a `mod` that is itself reached.
pub(crate) fn check_reached(sources: &[Source], findings: &mut Vec<Finding>) {
    let files: BTreeMap<&str, &Source> =
        sources.iter().filter(|s| s.is_rust()).map(|s| (s.path.as_str(), s)).collect();
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = files.keys().copied().filter(|path| is_root(path)).collect();
    while let Some(path) = open.pop() {
        if !reached.insert(path) {
            continue;
        }
        let candidates = files.get(path).map(|source| children(source)).unwrap_or_default();
        open.extend(
            candidates
                .iter()
                .filter_map(|child| files.get_key_value(child.as_str()))
                .map(|(path, _)| *path),
        );
    }
    for (path, source) in &files {
        if !reached.contains(path) {
            findings.push(Finding::new(source, 0, "no `mod` leads here: name it or remove it"));
        }
    }
}

fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts.as_slice() {
        [.., "src", "lib.rs" | "main.rs"] | [.., "build.rs"] => true,
        [.., "src", "bin", _] | [.., "src", "bin", _, "main.rs"] => true,
        [.., "tests" | "benches" | "examples", file] => file.ends_with(".rs"),
        [.., "tests" | "benches" | "examples", _, "main.rs"] => true,
        _ => false,
    }
}

/// Where the `mod NAME;` of a file may lead to.
fn children(source: &Source) -> Vec<String> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let stem = file.trim_end_matches(".rs");
    let own_folder = match is_root(&source.path) || file == "mod.rs" {
        true => folder.to_owned(),
        false => format!("{folder}/{stem}"),
    };
    let mut paths = Vec::new();
    for offset in words(&source.code, "mod") {
        let after = source.code.get(offset + 3..).unwrap_or_default().trim_start();
        let name = identifier(after);
        if after.get(name.len()..).is_some_and(|rest| rest.starts_with(';')) {
            paths.push(format!("{own_folder}/{name}.rs"));
            paths.push(format!("{own_folder}/{name}/mod.rs"));
            paths.extend(path_attribute(source, offset).map(|path| format!("{folder}/{path}")));
        }
    }
    paths
}

/// The `#[path = "…"]` on the line before a `mod`.
fn path_attribute(source: &Source, offset: usize) -> Option<String> {
    let line = source.text.get(..offset)?.lines().rev().find(|line| line.contains("#[path"))?;
    line.split('"').nth(1).map(str::to_owned)
}

/// A stage may name itself and the stages to its left: what it gives goes on by value.
pub(crate) fn check_stage_order(sources: &[Source], findings: &mut Vec<Finding>) {
    for source in sources {
        let Some(inside) = source.path.strip_prefix(STAGES_FOLDER) else { continue };
        let stage = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        let Some(place) = STAGES.iter().position(|known| *known == stage) else {
            if inside != "mod.rs" {
                let message = "not a known stage: give it a place in the order that tidy has";
                findings.push(Finding::new(source, 0, message));
            }
            continue;
        };
        let to_stream = match inside.split('/').count() {
            1 => "super::",
            _ if inside.ends_with("/mod.rs") => "super::",
            _ => "super::super::",
        };
        let code = source.code_without_tests();
        for (offset, name) in
            names_after(code, STAGES_PATH).into_iter().chain(names_after(code, to_stream))
        {
            let by_super = !code.get(offset..).is_some_and(|rest| rest.starts_with("crate"));
            let allowed = match STAGES.iter().position(|known| *known == name) {
                Some(other) => other <= place,
                // `super::name` of anything but a stage is an ordinary path.
                None => by_super,
            };
            if !allowed {
                let message = format!(
                    "stage `{stage}` uses `{name}`: it may know only itself and {:?}",
                    STAGES.get(..place).unwrap_or_default()
                );
                findings.push(Finding::new(source, source.line_of(offset), message));
            }
        }
    }
}

/// The names that follow a path prefix, one by one or in braces, each with the prefix's offset.
fn names_after<'a>(code: &'a str, prefix: &str) -> Vec<(usize, &'a str)> {
    let mut names = Vec::new();
    for (offset, _) in code.match_indices(prefix) {
        if code.get(..offset).is_some_and(|before| before.ends_with("::")) {
            continue;
        }
        let after = code.get(offset + prefix.len()..).unwrap_or_default();
        match after.strip_prefix('{') {
            Some(group) => names.extend(group_names(group).into_iter().map(|n| (offset, n))),
            None => names.push((offset, identifier(after))),
        }
    }
    names
}

/// The first identifier of each entry of `a::b, c::{d, e}, f}`.
fn group_names(group: &str) -> Vec<&str> {
    let (mut names, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, byte) in group.bytes().enumerate() {
        match (byte, depth) {
            (b'{', _) => depth += 1,
            (b',' | b'}', 0) => {
                names.push(identifier(group.get(start..at).unwrap_or_default().trim_start()));
                start = at + 1;
                if byte == b'}' {
                    break;
                }
            }
            (b'}', _) => depth -= 1,
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(check: fn(&[Source], &mut Vec<Finding>), files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.iter().map(|finding| finding.path.clone()).collect()
    }

    #[test]
    fn a_file_no_mod_leads_to_is_dead() {
        let files = [
            ("crates/a/src/lib.rs", "mod b;\n// mod dead;\nmod inline { }"),
            ("crates/a/src/b/mod.rs", "pub(crate) mod c;\n#[path = \"other.rs\"]\nmod d;"),
            ("crates/a/src/b/c.rs", ""),
            ("crates/a/src/b/other.rs", ""),
            ("crates/a/src/dead.rs", "mod dead_too;"),
            ("crates/a/src/dead/dead_too.rs", ""),
            ("crates/a/tests/t.rs", "mod lab;"),
            ("crates/a/tests/lab/mod.rs", ""),
        ];
        let dead = ["crates/a/src/dead.rs", "crates/a/src/dead/dead_too.rs"];
        assert_eq!(render(check_reached, &files), dead);
    }

    #[test]
    fn a_stage_knows_only_those_before_it() {
        let right = [
            ("crates/tacit/src/stream/relay/mod.rs", "use crate::stream::{secure::S, relay::R};"),
            ("crates/tacit/src/stream/relay/pump.rs", "use super::account;"),
            ("crates/tacit/src/stream/mod.rs", "use crate::stream::account;"),
            ("crates/tacit/src/stream/account.rs", "use super::intercept::Arrival;"),
            ("crates/tacit/src/stream/serve.rs", "use super::account::Ledger;"),
        ];
        assert_eq!(render(check_stage_order, &right), [""; 0]);
        for wrong in [
            ("crates/tacit/src/stream/secure/mod.rs", "use crate::stream::{secure::S, relay::R};"),
            ("crates/tacit/src/stream/secure/a.rs", "fn f() { super::super::relay::run() }"),
            ("crates/tacit/src/stream/secure.rs", "use super::{connection::C, account};"),
            ("crates/tacit/src/stream/secure.rs", "use crate::stream::Everything;"),
            ("crates/tacit/src/stream/leg.rs", "use super::intercept::Arrival;"),
            ("crates/tacit/src/stream/novelty.rs", ""),
        ] {
            assert_eq!(render(check_stage_order, &[wrong]), [wrong.0]);
        }
    }
}
