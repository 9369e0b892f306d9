//! Checks that the manual page tacit-messages(7) lists the identifiers of all messages, and no
//! others.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::source::Source;

const PAGE: &str = "docs/tacit-messages.7";
/// What precedes an identifier in the code.
const MARKS: [&str; 2] = ["Event::new(", "MessageId("];
/// Where those are defined, with a parameter in place of a literal.
const DEFINITIONS: [&str; 2] =
    ["crates/tacit/src/log/mod.rs", "crates/tacit-core/src/message_id.rs"];

/// Every identifier of the code is listed once, and every listed one is in the code.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return };
    let listed = listed(page, findings);
    let mut used = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        if !source.path.split('/').any(|part| part == "tests" || part == "examples") {
            read_identifiers(source, &mut used, findings);
        }
    }
    for (identifier, (source, line)) in &used {
        if !listed.contains_key(identifier) {
            let message = format!(
                "the message identifier `{identifier}` is missing from {PAGE}: describe it there"
            );
            findings.push(Finding::new(source, *line, message));
        }
    }
    for (identifier, line) in &listed {
        if !used.contains_key(identifier) {
            let message =
                format!("no message has the identifier `{identifier}`: remove it from {PAGE}");
            findings.push(Finding::new(page, *line, message));
        }
    }
}

/// The identifiers of the page with their lines.
fn listed(page: &Source, findings: &mut Vec<Finding>) -> BTreeMap<String, usize> {
    let mut listed = BTreeMap::new();
    for (number, text) in (1..).zip(page.text.lines()) {
        let Some(identifier) = text.strip_prefix(".It ") else { continue };
        let identifier = identifier.replace("\\-", "-");
        if listed.insert(identifier.clone(), number).is_some() {
            let message = format!("the message identifier `{identifier}` is listed twice");
            findings.push(Finding::new(page, number, message));
        }
    }
    listed
}

/// The identifiers of a file, and where each occurs first.
fn read_identifiers<'s>(
    source: &'s Source,
    used: &mut BTreeMap<String, (&'s Source, usize)>,
    findings: &mut Vec<Finding>,
) {
    let code = source.code_without_tests();
    for mark in MARKS {
        for (at, _) in code.match_indices(mark) {
            let line = source.line_of(at);
            match literal(source, at + mark.len()) {
                Some(identifier) => {
                    used.entry(identifier.to_owned()).or_insert((source, line));
                }
                None if DEFINITIONS.contains(&source.path.as_str()) => {}
                None => {
                    let message =
                        format!("write the message identifier as a literal after `{mark}`");
                    findings.push(Finding::new(source, line, message));
                }
            }
        }
    }
}

/// The string literal that begins at `at`, after white space.
fn literal(source: &Source, at: usize) -> Option<&str> {
    let text = source.text.get(at..)?.trim_start().strip_prefix('"')?;
    text.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str, code: &str) -> Vec<String> {
        let sources = [Source::new(PAGE, page), Source::new("crates/tacit/src/x.rs", code)];
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings.iter().map(Finding::render).collect()
    }

    #[test]
    fn the_page_and_the_code_have_the_same_identifiers() {
        let page = ".It a\\-b\nText.\n.It c\n";
        let code = "f(Event::new(\"a-b\"), MessageId(\n    \"c\"), Event::new(\"c\"))";
        assert_eq!(found(page, code), [""; 0]);
        assert_eq!(found(page, "Event::new(\"a-b\")").len(), 1, "one is in no code");
        assert_eq!(found(".It c\n", code).len(), 1, "one is not listed");
        assert_eq!(found(".It a\\-b\n.It c\n.It c\n", code).len(), 1, "one is listed twice");
    }

    #[test]
    fn identifiers_are_literals_outside_tests() {
        assert_eq!(found("", "Event::new(name)").len(), 1);
        let free = "// Event::new(name)\n#[cfg(test)]\nmod tests { MessageId(x) }";
        assert_eq!(found("", free), [""; 0]);
    }
}
