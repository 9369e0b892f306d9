//! Checks that every Rust file is part of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::source::{Source, identifier, words};

/// Checks that every `.rs` file is a crate root or is declared by a `mod` in another file.
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
            findings.push(Finding::new(
                source,
                0,
                "no `mod` declares this file: add a `mod`, or remove the file",
            ));
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

/// The files that the `mod NAME;` declarations of a file may refer to.
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

/// The `#[path = "…"]` attribute on the line before a `mod`.
fn path_attribute(source: &Source, offset: usize) -> Option<String> {
    let line = source.text.get(..offset)?.lines().rev().find(|line| line.contains("#[path"))?;
    line.split('"').nth(1).map(str::to_owned)
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
    fn a_file_without_a_mod_declaration_is_found() {
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
}
