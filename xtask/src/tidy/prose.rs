//! Checks that each document has exactly one title, and contains no path that exists only on one
//! machine. Also checks that each promise in SPECIFICATION.md names a test. Finally, checks that
//! the manual pages contain every command, option and policy keyword.

use super::finding::Finding;
use super::source::{Source, identifier, words};

/// Runs every check of one file.
pub(crate) fn check(source: &Source, findings: &mut Vec<Finding>) {
    check_places(source, findings);
    if source.path.ends_with(".md") {
        check_title(source, findings);
    }
}

/// The project must not contain these texts: paths that exist only on one machine, and names of
/// package registries. Each text is split into two parts, so that the check does not find the text
/// in this file.
const PLACES: [(&str, &str); 8] = [
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/tmp/b", "rief"),
    ("crates", ".io"),
    ("pypi", ".org"),
    ("files.python", "hosted.org"),
    ("proxy.gol", "ang.org"),
];

/// The files that may contain texts of [`PLACES`].
const PLACES_ALLOWED: [&str; 2] = ["Cargo.lock", "LICENSE"];

fn check_places(source: &Source, findings: &mut Vec<Finding>) {
    let name = source.path.rsplit_once('/').map_or(source.path.as_str(), |(_, name)| name);
    if PLACES_ALLOWED.contains(&name) {
        return;
    }
    for (head, tail) in PLACES {
        let place = format!("{head}{tail}");
        for (offset, _) in source.text.match_indices(&place) {
            let before = source.text.get(..offset).and_then(|before| before.chars().next_back());
            // A longer path such as `target/wo...` is a different one.
            let longer = before.is_some_and(|c| c.is_alphanumeric() || "._-}".contains(c));
            if place.starts_with('/') && longer {
                continue;
            }
            let message =
                format!("`{place}` exists only on one machine or in one registry: remove it");
            findings.push(Finding::new(source, source.line_of(offset), message));
        }
    }
    for offset in words(&source.prose, "issue") {
        let after = source.prose.get(offset + 5..).unwrap_or_default();
        let number = after.strip_prefix(" #").or_else(|| after.strip_prefix(' '));
        if number.is_some_and(|text| text.starts_with(|c: char| c.is_ascii_digit())) {
            let message = "the text refers to an issue tracker: remove the number, and describe \
                           the problem here";
            findings.push(Finding::new(source, source.line_of(offset), message));
        }
    }
}

fn check_title(source: &Source, findings: &mut Vec<Finding>) {
    let mut fenced = false;
    let mut titles = 0;
    for line in source.text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        titles += usize::from(!fenced && line.starts_with("# "));
    }
    if titles != 1 {
        findings.push(Finding::new(
            source,
            0,
            format!("the document has {titles} titles (`# …`), expected one"),
        ));
    }
}

const PROMISES: &str = "SPECIFICATION.md";

/// Every promise, a row `| s01 | text | proofs |`, names at least one existing test as
/// `path::name`, and the numbers increase by one.
pub(crate) fn check_promises(sources: &[Source], findings: &mut Vec<Finding>) {
    let Some(source) = sources.iter().find(|source| source.path == PROMISES) else { return };
    let mut expected = 1;
    for (index, line) in source.text.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, id, _, proofs, _] = cells.as_slice() else { continue };
        let Some(number) = id.strip_prefix('s').and_then(|digits| digits.parse::<u32>().ok())
        else {
            continue;
        };
        let mut wrong = |message| findings.push(Finding::new(source, index + 1, message));
        if number != expected {
            wrong(format!(
                "promise {id} of the specification has the wrong number: write s{expected:02}"
            ));
        }
        expected = number + 1;
        let proofs: Vec<&str> = proofs.split('`').skip(1).step_by(2).collect();
        if proofs.is_empty() {
            wrong(format!("promise {id} of the specification names no test: add `path::name`"));
        }
        for proof in proofs {
            if !proof_exists(sources, proof) {
                wrong(format!(
                    "promise {id} of the specification names the test `{proof}`, which does not \
                     exist"
                ));
            }
        }
    }
}

/// A proof is a test, or a function of the benchmark.
fn proof_exists(sources: &[Source], proof: &str) -> bool {
    let Some((path, name)) = proof.rsplit_once("::") else { return false };
    let Some(source) = sources.iter().find(|source| source.path == path) else { return false };
    words(&source.code, name).any(|offset| {
        let before = source.code.get(..offset).unwrap_or_default().trim_end();
        let Some(attributes) = before.strip_suffix("fn") else { return false };
        // The text between the preceding item and this function has its attributes.
        let item = attributes.rfind(['}', ';', '{']).map_or(0, |end| end + 1);
        path.starts_with("bench/src/")
            || attributes
                .get(item..)
                .is_some_and(|own| own.contains("test]") || own.contains("test("))
    })
}

const MANUAL: &str = "docs/tacit.1";
const COMMAND_LINES: [&str; 5] = [
    "crates/tacit/src/cli",
    "crates/tacit/src/import/",
    "crates/tacit/src/project/",
    "crates/tacit/src/top/",
    "crates/tacit/src/workload/",
];
const POLICY_MANUAL: &str = "docs/tacit.toml.5";
/// The source files that list the keywords: those of a policy, and those of an import's map file.
const POLICY_WORDS: [&str; 2] =
    ["crates/tacit-core/src/policy/parse/words.rs", "crates/tacit-import/src/attls/map_keys.rs"];

/// Checks that tacit(1) has every command and long option, and tacit.toml(5) every keyword of the
/// policy.
pub(crate) fn check_manual(sources: &[Source], findings: &mut Vec<Finding>) {
    for source in sources {
        let (manual, words) = match source.path.as_str() {
            path if POLICY_WORDS.contains(&path) => (POLICY_MANUAL, policy_words(source)),
            path if COMMAND_LINES.iter().any(|line| path.starts_with(line)) => {
                (MANUAL, [verbs(&source.code), flags(source)].concat())
            }
            _ => continue,
        };
        let Some(manual) = sources.iter().find(|source| source.path == manual) else { continue };
        for Word { offset, word } in words {
            if !names_word(manual, &word) {
                let message = format!(
                    "`{word}` occurs in the program, but {} does not describe it",
                    manual.path
                );
                findings.push(Finding::new(source, source.line_of(offset), message));
            }
        }
    }
}

/// Whether a manual contains the word. In troff, `\\-` prints a hyphen, and `Fl \\-log` prints
/// `--log`.
fn names_word(manual: &Source, word: &str) -> bool {
    let text = manual.text.replace("\\-", "-").replace("Fl -", "Fl --");
    text.match_indices(word).any(|(at, _)| {
        let after = text.get(at + word.len()..).and_then(|rest| rest.chars().next());
        !after.is_some_and(|c| c.is_alphanumeric() || c == '-')
    })
}

/// A word that a manual must contain.
#[derive(Clone)]
struct Word {
    /// The position in the source.
    offset: usize,
    word: String,
}

/// Returns every quoted word that may be a key or value of the policy.
fn policy_words(source: &Source) -> Vec<Word> {
    let length = source.code_without_tests().len();
    let text = source.text.get(..length).unwrap_or_default();
    let quotes = text.match_indices('"').map(|(at, _)| at);
    let mut words = Vec::new();
    for at in quotes {
        let word = text.get(at + 1..).and_then(|rest| rest.split('"').next()).unwrap_or_default();
        let plain = |c: char| c.is_ascii_lowercase() || c == '-';
        // A blanked string at the same position is a string; otherwise the quote is in a comment.
        let is_string = source.prose.as_bytes().get(at + 1) == Some(&b' ');
        if is_string && word.len() > 1 && word.chars().all(plain) {
            words.push(Word { offset: at, word: word.to_owned() });
        }
    }
    words
}

/// The variants of every enum with `derive(Subcommand)`, as typed by the user.
fn verbs(code: &str) -> Vec<Word> {
    let mut verbs = Vec::new();
    for derive in words(code, "Subcommand") {
        let rest = code.get(derive..).unwrap_or_default();
        let Some(open) = rest.find('{') else { continue };
        let is_enum = rest.get(..open).is_some_and(|head| words(head, "enum").next().is_some());
        if !is_enum {
            continue;
        }
        let mut depth = 0_usize;
        let mut fresh = true;
        let mut since = open;
        for (at, c) in rest.char_indices().skip_while(|(at, _)| *at < open) {
            match c {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => depth -= 1,
                ',' if depth == 1 => (fresh, since) = (true, at),
                c if depth == 1 && fresh && c.is_ascii_uppercase() => {
                    let name = identifier(rest.get(at..).unwrap_or_default());
                    let before = rest.get(since..at).unwrap_or_default();
                    if words(before, "hide").next().is_none() {
                        verbs.push(Word { offset: derive + at, word: kebab(name) });
                    }
                    fresh = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    verbs
}

/// The options of fields with `#[arg(long)]` or `#[arg(long = "…")]`, as typed by the user, without
/// hidden ones.
fn flags(source: &Source) -> Vec<Word> {
    let mut flags = Vec::new();
    for (offset, _) in source.code.match_indices("#[arg(") {
        let rest = source.code.get(offset..).unwrap_or_default();
        let Some(end) = rest.find(")]") else { continue };
        let attribute = rest.get(..end).unwrap_or_default();
        if words(attribute, "hide").next().is_some() {
            continue;
        }
        let Some(long) = words(attribute, "long").next() else { continue };
        let named = source.text.get(offset + long + 4..offset + end).unwrap_or_default();
        let name = match named.trim_start().strip_prefix('=') {
            Some(value) => value.split('"').nth(1).unwrap_or_default().to_owned(),
            None => {
                let field = rest.get(end + 2..).and_then(|after| after.split(':').next());
                let words = field.unwrap_or_default().split_whitespace();
                words.last().unwrap_or_default().replace('_', "-")
            }
        };
        flags.push(Word { offset, word: format!("--{name}") });
    }
    flags
}

/// Converts `ShowRules` to `show-rules`.
fn kebab(name: &str) -> String {
    let mut typed = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !typed.is_empty() {
            typed.push('-');
        }
        typed.push(c.to_ascii_lowercase());
    }
    typed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(path, text)).collect();
        let mut findings = Vec::new();
        for source in &sources {
            check(source, &mut findings);
        }
        check_promises(&sources, &mut findings);
        check_manual(&sources, &mut findings);
        findings.iter().map(Finding::render).collect()
    }

    #[test]
    fn paths_of_one_machine_are_found() {
        for (head, tail) in PLACES {
            assert_eq!(all(&[("x.toml", &format!("a = \"{head}{tail}x\""))]).len(), 1);
        }
        assert_eq!(all(&[("Cargo.lock", &format!("crates{}", ".io"))]), [""; 0]);
        assert_eq!(all(&[("x.rs", &format!("\"target{}{}\"", "/wo", "rk/"))]), [""; 0]);
        assert_eq!(all(&[("x.rs", &format!("// issue {}", 7))]).len(), 1);
        assert_eq!(all(&[("x.rs", "// issue a certificate")]), [""; 0]);
    }

    #[test]
    fn markdown_has_one_title() {
        assert_eq!(all(&[("x.md", "# One\n```\n# shell\n```\n## Two\n")]), [""; 0]);
        assert_eq!(all(&[("x.md", "## None\n")]).len(), 1);
        assert_eq!(all(&[("x.md", "# One\n# Two\n")]).len(), 1);
    }

    #[test]
    fn promises_name_tests_that_exist() {
        let test = ("a/tests/t.rs", "#[test]\nfn holds() {}\nfn helper() {}\n// fn gone\n");
        let found = |rows: &str| all(&[("SPECIFICATION.md", &format!("# S\n{rows}")), test]);
        assert_eq!(found("| s01 | it holds | `a/tests/t.rs::holds` |\n"), [""; 0]);
        assert_eq!(found("| s01 | no proof | |\n").len(), 1);
        for wrong in ["gone", "helper", "hold"] {
            assert_eq!(found(&format!("| s01 | p | `a/tests/t.rs::{wrong}` |\n")).len(), 1);
        }
        assert_eq!(found("| s02 | it holds | `a/tests/t.rs::holds` |\n").len(), 1);
    }

    #[test]
    fn the_manual_names_every_verb_and_flag() {
        let cli = "
            #[derive(Debug, Subcommand)]
            enum Verb {
                /// Text, Here.
                Agent(A),
                ShowAll { x: u8 },
            }
            struct A {
                #[arg(long)]
                log_format: u8,
                #[arg(short, long = \"deep\", help = \"x\")]
                y: u8,
            }";
        let path = "crates/tacit/src/cli.rs";
        let found = |manual: &str| all(&[(MANUAL, manual), (path, cli)]);
        assert_eq!(found("agent show\\-all \\-\\-log\\-format \\-\\-deep"), [""; 0]);
        assert_eq!(found("agents show-all --log-formats").len(), 3);
    }

    #[test]
    fn the_manual_names_every_word_of_the_policy() {
        let words = "//! \"not-this\"\nconst W: [&str; 2] = [\"client-cert\", \"a title\"];\n";
        let found = |manual: &str| all(&[(POLICY_MANUAL, manual), (POLICY_WORDS[0], words)]);
        assert_eq!(found("client\\-cert"), [""; 0]);
        assert_eq!(found("client-certificate").len(), 1);
    }
}
