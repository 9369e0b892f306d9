//! Compares the manual page tacit-messages(7) with the code. The page must list exactly the message
//! identifiers and the failure kinds of the code. Also checks that each message of a command has an
//! identifier.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::source::Source;

const PAGE: &str = "docs/tacit-messages.7";
/// The section of the page that lists the kinds of failures. The other sections list messages.
const FAILURES: &str = ".Sh FAILURES";
/// Where the types are defined, with a parameter in place of a literal.
const DEFINITIONS: [&str; 3] = [
    "crates/tacit/src/log/mod.rs",
    "crates/tacit-core/src/message_id.rs",
    "crates/tacit-core/src/failure_kind.rs",
];
/// The file of the type `IkeFailure`, in which its constructor is `Self::new`.
const IKE_FAILURE: &str = "crates/tacit-ipsec/src/ike/failure.rs";

/// A list of the page, and the words of the code that it has to contain.
struct Listing {
    /// The name of one entry.
    what: &'static str,
    /// What precedes a word in the code.
    marks: &'static [&'static str],
    /// Whether the section FAILURES has this list.
    is_in_failures: bool,
}

const LISTINGS: [Listing; 2] = [
    Listing {
        what: "message identifier",
        marks: &["Event::new(", "MessageId("],
        is_in_failures: false,
    },
    Listing {
        what: "kind of failure",
        marks: &["FailureKind(", "IkeFailure::new("],
        is_in_failures: true,
    },
];

/// Checks that each identifier and kind in the code is listed once, and that the code contains each
/// listed one.
pub(crate) fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return };
    for listing in &LISTINGS {
        compare(listing, page, sources, findings);
    }
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        check_printed(source, findings);
    }
}

/// Finds messages that are printed without an identifier.
fn check_printed(source: &Source, findings: &mut Vec<Finding>) {
    const PRINTS: &str = "complain(";
    for (at, _) in source.code_without_tests().match_indices(PRINTS) {
        let after = source.text.get(at + PRINTS.len()..).unwrap_or_default().trim_start();
        let text = after.strip_prefix("format_args!(").unwrap_or(after).trim_start();
        let text = text.strip_prefix('"').and_then(|text| text.split('"').next());
        if text.is_some_and(|text| text.starts_with("tacit: ") && !text.contains("[{id}]")) {
            let message = "the message has no identifier: use `complain_of`, `warn` or `note`";
            findings.push(Finding::new(source, source.line_of(at), message.to_owned()));
        }
    }
}

fn compare(listing: &Listing, page: &Source, sources: &[Source], findings: &mut Vec<Finding>) {
    let what = listing.what;
    let listed = listed(listing, page, findings);
    let mut used = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates/")) {
        if !source.path.split('/').any(|part| part == "tests" || part == "examples") {
            read_words(listing, source, &mut used, findings);
        }
    }
    for (word, (source, line)) in &used {
        if !listed.contains_key(word) {
            let message = format!("the {what} `{word}` is missing from {PAGE}: describe it there");
            findings.push(Finding::new(source, *line, message));
        }
    }
    for (word, line) in &listed {
        if !used.contains_key(word) {
            let message = format!("the code has no {what} `{word}`: remove it from {PAGE}");
            findings.push(Finding::new(page, *line, message));
        }
    }
}

/// The words that the page lists, with their lines.
fn listed(
    listing: &Listing,
    page: &Source,
    findings: &mut Vec<Finding>,
) -> BTreeMap<String, usize> {
    let mut listed = BTreeMap::new();
    let mut is_in_failures = false;
    for (number, text) in (1..).zip(page.text.lines()) {
        if text.starts_with(".Sh ") {
            is_in_failures = text == FAILURES;
        }
        let Some(word) = text.strip_prefix(".It ") else { continue };
        if is_in_failures != listing.is_in_failures {
            continue;
        }
        let word = word.replace("\\-", "-");
        if listed.insert(word.clone(), number).is_some() {
            let message = format!("the {} `{word}` is listed twice", listing.what);
            findings.push(Finding::new(page, number, message));
        }
    }
    listed
}

/// The words of a file, and where each occurs first.
fn read_words<'s>(
    listing: &Listing,
    source: &'s Source,
    used: &mut BTreeMap<String, (&'s Source, usize)>,
    findings: &mut Vec<Finding>,
) {
    let code = source.code_without_tests();
    let of_file = (listing.is_in_failures && source.path == IKE_FAILURE).then_some("Self::new(");
    for mark in listing.marks.iter().copied().chain(of_file) {
        for (at, _) in code.match_indices(mark) {
            let line = source.line_of(at);
            match literal(source, at + mark.len()) {
                Some(word) => {
                    used.entry(word.to_owned()).or_insert((source, line));
                }
                None if DEFINITIONS.contains(&source.path.as_str()) => {}
                None => {
                    let message = format!("write the {} as a literal after `{mark}`", listing.what);
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
    fn the_kinds_of_failures_have_a_list_of_their_own() {
        let page = ".It a\n.Sh FAILURES\n.It a\n.It b\n.Sh COMMANDS\n.It c\n";
        let code =
            "f(MessageId(\"a\"), MessageId(\"c\"), FailureKind(\n\"a\"))\nIkeFailure::new(\"b\")";
        assert_eq!(found(page, code), [""; 0]);
        let found = found(page, &code.replace("IkeFailure::new(\"b\")", "FailureKind(\"c\")"));
        assert_eq!(found.len(), 2, "c is not listed there, and b is in no code: {found:?}");
    }

    #[test]
    fn printed_messages_have_an_identifier() {
        assert_eq!(found("", "complain(format_args!(\n\"tacit: it has ended\"))").len(), 1);
        assert_eq!(found("", "complain(format_args!(\"tacit: error[{id}]: {error}\"))"), [""; 0]);
        assert_eq!(found("", "complain(text); complain(format_args!(\"tracing\"))"), [""; 0]);
    }

    #[test]
    fn identifiers_are_literals_outside_tests() {
        assert_eq!(found("", "Event::new(name)").len(), 1);
        let free = "// Event::new(name)\n#[cfg(test)]\nmod tests { MessageId(x) }";
        assert_eq!(found("", free), [""; 0]);
    }
}
