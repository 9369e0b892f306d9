//! Checks that the same public type name does not occur twice in the workspace.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::source::{Source, identifier, words};

const KEYWORDS: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Files with test code only, in addition to `tests.rs` and the folders `tests`.
const TEST_FILES: [&str; 2] = ["testing.rs", "test_certificates.rs"];

/// Checks that each `pub` type has a unique name, except in test code.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let mut first: BTreeMap<&str, String> = BTreeMap::new();
    for source in sources.iter().filter(|source| !is_test_file(&source.path)) {
        for Definition { name, offset } in definitions(source.code_without_tests()) {
            let line = source.line_of(offset);
            if let Some(place) = first.get(name) {
                let message = format!(
                    "another `pub` type has the name `{name}`, at {place}: rename one of the two \
                     types"
                );
                findings.push(Finding::new(source, line, message));
            } else {
                first.insert(name, format!("{}:{line}", source.path));
            }
        }
    }
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || TEST_FILES.contains(&part))
}

struct Definition<'a> {
    name: &'a str,
    offset: usize,
}

/// Types with the visibility `pub`, without `(crate)` or another restriction.
fn definitions(code: &str) -> Vec<Definition<'_>> {
    let mut found = Vec::new();
    for keyword in KEYWORDS {
        for offset in words(code, keyword) {
            let before = code.get(..offset).unwrap_or_default();
            let visibility = before.rsplit(|c: char| "{};]>".contains(c)).next();
            let is_public =
                visibility.is_some_and(|text| text.split_whitespace().next() == Some("pub"));
            let after = code.get(offset + keyword.len()..).unwrap_or_default();
            let name = identifier(after.trim_start());
            if is_public && !name.is_empty() {
                found.push(Definition { name, offset });
            }
        }
    }
    found.sort_by_key(|definition| definition.offset);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.iter().map(Finding::render).collect()
    }

    #[test]
    fn a_public_type_name_is_defined_once() {
        let first = ("a/src/a.rs", "\n#[derive(Debug)]\npub struct Answer;");
        for second in ["pub enum Answer<T> {}", "fn f() {}\npub unsafe trait Answer {}"] {
            let found = messages(&[first, ("b/src/b.rs", second)]);
            assert_eq!(found.len(), 1, "{second}");
            assert!(found[0].starts_with("b/src/b.rs:"), "{found:?}");
            assert!(found[0].contains("a/src/a.rs:3"), "{found:?}");
        }
    }

    #[test]
    fn private_types_and_test_code_may_share_a_name() {
        let first = ("a/src/a.rs", "pub type Answer = u8;\nimpl X for Y { type Answer = u8; }");
        let others = [
            ("b/src/b.rs", "pub(crate) struct Answer;\n// pub struct Answer;\nstruct Answer;"),
            ("b/src/c.rs", "pub fn f() { struct Answer; }"),
            ("b/src/d.rs", "pub use e::Answer;\nstruct Answer;"),
            ("b/src/f/tests.rs", "pub struct Answer;"),
            ("b/tests/g/main.rs", "pub struct Answer;"),
            ("b/src/h.rs", "#[cfg(test)]\nmod tests { pub struct Answer; }"),
        ];
        for other in others {
            assert_eq!(messages(&[first, other]), [""; 0], "{other:?}");
        }
    }
}
