//! Checks Rust files: their sizes, the words in code and comments, and which module uses which
//! library.

use super::finding::Finding;
use super::source::{Source, bracketed_bytes, identifier, words};

/// Runs every check of one file.
pub(crate) fn check(source: &Source, findings: &mut Vec<Finding>) {
    check_sizes(source, findings);
    check_functions(source, findings);
    check_words(source, findings);
    check_owners(source, findings);
}

const LINE_CHARACTERS_MAX: usize = 100;
const FILE_LINES_MAX: usize = 800;
/// Longer files are reported as a note: consider splitting them.
const FILE_LINES_NOTED: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// Words in code, and their replacements. A trailing `*` matches the rest of an identifier.
const BANNED_CODE: [(&str, &str); 8] = [
    ("todo!", "write the code, or return an error that names what is missing"),
    ("unimplemented!", "write the code, or return an error that names what is missing"),
    ("dbg!", "remove this macro before a merge"),
    ("fn get_*", "name the function after what it returns"),
    ("*Manager", "name the type after what it is"),
    ("mod util", "put the function next to the type that uses it"),
    ("mod utils", "put the function next to the type that uses it"),
    ("#[ignore", "remove the attribute, because every test must run"),
];

/// Words in comments, and their replacements.
const BANNED_PROSE: [(&str, &str); 3] = [
    ("FIXME", "correct the code; if the code is correct already, explain why"),
    ("XXX", "correct the code; if the code is correct already, explain why"),
    ("TODO", "write the code that is missing here, or explain why it is not needed"),
];

/// Names that only some files may use, so that one module owns each library.
struct Owned {
    names: &'static [&'static str],
    /// The prefixes of permitted paths.
    places: &'static [&'static str],
    /// Whether unit tests in other files may use them.
    free_in_tests: bool,
    why: &'static str,
}

const OWNED: [Owned; 5] = [
    Owned {
        names: &["unsafe"],
        places: &["crates/tacit-sys/"],
        free_in_tests: false,
        why: "only tacit-sys may contain unsafe code: move the code to tacit-sys",
    },
    Owned {
        names: &["rustls"],
        // The benchmark's program with a TLS library is not part of tacit.
        places: &["crates/tacit-tls/", "bench/inprocess/"],
        free_in_tests: false,
        why: "only crates/tacit-tls may use this library: call functions of that crate instead",
    },
    Owned {
        names: &["aws_lc_rs"],
        places: &["crates/tacit-tls/", "crates/tacit-ipsec/", "bench/inprocess/"],
        free_in_tests: false,
        why: "only crates/tacit-tls and crates/tacit-ipsec may use this library",
    },
    Owned {
        names: &["crypto_bigint"],
        places: &["crates/tacit-ipsec/src/ike/crypto/modp.rs"],
        free_in_tests: false,
        why: "only the MODP key exchange of tacit-ipsec may use this library",
    },
    Owned {
        names: &["rcgen"],
        places: &[
            "crates/tacit/src/ca.rs",
            "crates/tacit/src/ca/",
            "crates/tacit-tls/src/settings_pair.rs",
            "crates/tacit-tls/src/test_certificates.rs",
            "crates/tacit/tests/",
        ],
        free_in_tests: true,
        why: "only crates/tacit/src/ca may use this library: call functions of that module instead",
    },
];

fn check_sizes(source: &Source, findings: &mut Vec<Finding>) {
    for (index, line) in source.text.lines().enumerate() {
        let characters = line.chars().count();
        // An address cannot be broken over two lines.
        if characters > LINE_CHARACTERS_MAX && !line.contains("://") {
            let message =
                format!("the line has {characters} characters; the limit is {LINE_CHARACTERS_MAX}");
            findings.push(Finding::new(source, index + 1, message));
        }
    }
    let lines = source.text.lines().count();
    if lines > FILE_LINES_MAX {
        let message = format!(
            "the file has {lines} lines; the limit is {FILE_LINES_MAX}: split the file by subject"
        );
        findings.push(Finding::new(source, 0, message));
    } else if lines > FILE_LINES_NOTED {
        findings.push(Finding::note(
            source,
            format!("the file has {lines} lines: consider splitting it"),
        ));
    }
}

/// Counts the code lines in the body of each function.
fn check_functions(source: &Source, findings: &mut Vec<Finding>) {
    for start in words(&source.code, "fn") {
        let signature = source.code.get(start..).unwrap_or_default();
        let Some(open) = signature.find(['{', ';']) else { continue };
        let rest = signature.get(open..).unwrap_or_default();
        let body = rest.get(..bracketed_bytes(rest, b'{', b'}')).unwrap_or_default();
        let with_code = body.lines().filter(|line| !line.trim().is_empty()).count();
        let lines = with_code.saturating_sub(2);
        if lines > FUNCTION_LINES_MAX {
            let name = identifier(signature.get(3..).unwrap_or_default());
            let message =
                format!("function {name} has {lines} lines; the limit is {FUNCTION_LINES_MAX}");
            findings.push(Finding::new(source, source.line_of(start), message));
        }
    }
}

fn check_words(source: &Source, findings: &mut Vec<Finding>) {
    for (pattern, instead) in BANNED_CODE {
        for offset in matches_of(&source.code, pattern) {
            let message = format!("`{}`: {instead}", pattern.trim_matches('*'));
            findings.push(Finding::new(source, source.line_of(offset), message));
        }
    }
    for (word, instead) in BANNED_PROSE {
        for offset in words(&source.prose, word) {
            let message = format!("`{word}`: {instead}");
            findings.push(Finding::new(source, source.line_of(offset), message));
        }
    }
}

fn matches_of<'a>(code: &'a str, pattern: &'a str) -> Vec<usize> {
    let word = pattern.trim_matches('*');
    if word == pattern && !pattern.starts_with('#') {
        return words(code, word).collect();
    }
    let bytes = code.as_bytes();
    let joined = |at: Option<&u8>| at.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    let found = code.match_indices(word).map(|(offset, _)| offset);
    found
        .filter(|offset| {
            let before = offset.checked_sub(1).and_then(|before| bytes.get(before));
            let after = bytes.get(offset + word.len());
            (pattern.starts_with(['*', '#']) || !joined(before))
                && (pattern.ends_with('*') || pattern.starts_with('#') || !joined(after))
        })
        .collect()
}

fn check_owners(source: &Source, findings: &mut Vec<Finding>) {
    for owned in OWNED {
        if owned.places.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        let code = if owned.free_in_tests { source.code_without_tests() } else { &source.code };
        for name in owned.names {
            for offset in words(code, name) {
                let message = format!("`{name}`: {}", owned.why);
                findings.push(Finding::new(source, source.line_of(offset), message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        check(&Source::new(path, text), &mut findings);
        findings.iter().map(Finding::render).collect()
    }

    #[test]
    fn banned_words_are_found_in_code_and_not_in_strings() {
        let text = "fn get_size() { todo!() }\nstruct FlowManager;\n// XXX later\nmod util;\n";
        assert_eq!(messages("x.rs", text).len(), 5);
        let text = "fn target_size() { say(\"todo! XXX\") }\nstruct Manage;\nmod utility;\n";
        assert_eq!(messages("x.rs", text), [""; 0]);
    }

    #[test]
    fn owned_names_are_refused_outside_their_place() {
        let text = "use rustls::Stream;\nuse rcgen::Key;\nfn f() { unsafe { g() } }\n";
        assert_eq!(messages("crates/tacit/src/relay.rs", text).len(), 3);
        assert_eq!(messages("crates/tacit-tls/src/lib.rs", "use rustls::Stream;"), [""; 0]);
        assert_eq!(messages("crates/tacit-sys/src/lib.rs", "fn f() { unsafe { } }"), [""; 0]);
        let text = "//! rustls is named here.\n#[cfg(test)]\nmod tests {\n    use rcgen::Key;\n}\n";
        assert_eq!(messages("crates/tacit/src/relay.rs", text), [""; 0]);
    }

    #[test]
    fn size_limits_are_exact() {
        let function = |lines| format!("fn f() {{\n{}}}\n", "    g();\n\n".repeat(lines));
        assert_eq!(messages("x.rs", &function(70)), [""; 0]);
        let too_long = ["x.rs:1: function f has 71 lines; the limit is 70"];
        assert_eq!(messages("x.rs", &function(71)), too_long);
        assert_eq!(messages("x.rs", &"é".repeat(100)), [""; 0]);
        assert_eq!(messages("x.rs", &"é".repeat(101)).len(), 1);
        let address = format!("// https://example.org/{}", "x".repeat(100));
        assert_eq!(messages("x.rs", &address), [""; 0]);
        assert_eq!(messages("x.rs", &"\n".repeat(500)), [""; 0]);
        assert_eq!(messages("x.rs", &"\n".repeat(501)).len(), 1);
    }
}
