//! Joins the text of a policy and the text of its included files, and parses both as one text.
//!
//! An included file may contain only these tables: `[identity.NAME]`, `[trust.NAME]`,
//! `[[map.NAME]]`, `[ike.NAME]` and `[[rule]]`. An error message contains the name of the file and
//! the position in the file.
//!
//! Limits: [`INCLUDED_FILES_MAX`] files, and [`POLICY_BYTES_MAX`] for all files together. An
//! included file cannot include another file.

use std::sync::Arc;

use super::diagnostic::{Diagnostic, SourcePosition};
use super::text::{Diagnostics, TomlDocument, TomlEntry, TomlNode};
use crate::message_id::MessageId;

/// The largest policy text. 10,000 rules take about 2 MiB.
pub const POLICY_BYTES_MAX: usize = 16 << 20;
/// The largest number of files that a policy includes.
pub const INCLUDED_FILES_MAX: usize = 256;

/// The tables that an included file may have.
const INCLUDABLE: [&str; 5] = ["identity", "trust", "map", "ike", "rule"];

/// The text of a policy with the files that it includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyText {
    text: String,
    /// The included files, in their order.
    included: Vec<IncludedText>,
    /// The patterns that no file matches.
    unmatched: Vec<IncludePattern>,
}

/// An included file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IncludedText {
    name: Arc<str>,
    /// The offset in the joined text at which it begins.
    start: usize,
}

/// A pattern of files to include.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncludePattern {
    /// As it is written.
    pub pattern: String,
    /// Its position in the policy.
    pub position: SourcePosition,
}

impl PolicyText {
    /// A policy without included files.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Returns the patterns that the policy includes; none if the text is not TOML. Invalid
    /// patterns are omitted here; [`parse_files`](super::parse_files) reports them.
    #[must_use]
    pub fn includes(&self) -> Vec<IncludePattern> {
        let text = without_byte_order_mark(&self.text);
        if text.len() > POLICY_BYTES_MAX {
            return Vec::new();
        }
        // Most policies include nothing, and a policy may have many tables.
        let before_tables = TomlDocument::parse(before_tables(text));
        if before_tables.errors().is_empty() && before_tables.top().get("include").is_none() {
            return Vec::new();
        }
        let document = TomlDocument::parse(text);
        if !document.errors().is_empty() {
            return Vec::new();
        }
        let Some(value) = document.top().get("include") else { return Vec::new() };
        let report = Diagnostics::new(&document);
        let patterns = value.data.as_array().unwrap_or_else(|| std::slice::from_ref(value));
        let pattern = |value: &TomlNode<'_>| {
            let pattern = value.data.as_str().filter(|text| is_pattern(text))?.to_owned();
            Some(IncludePattern { pattern, position: report.position(value.at.start) })
        };
        patterns.iter().take(INCLUDED_FILES_MAX).filter_map(pattern).collect()
    }

    /// Adds an included file, which errors call `name`.
    ///
    /// # Errors
    /// The text is not TOML, has a key other than the tables that may be included, or exceeds a
    /// limit. The policy is then unchanged.
    pub fn include(
        &mut self,
        name: impl Into<Arc<str>>,
        text: &str,
    ) -> Result<(), Vec<Diagnostic>> {
        let text = without_byte_order_mark(text);
        let name = name.into();
        let file = self.included.len() + 1;
        let mut errors = errors_of_included(text, self.text.len());
        if errors.is_empty() {
            if !self.text.ends_with('\n') {
                self.text.push('\n');
            }
            self.included.push(IncludedText { name, start: self.text.len() });
            self.text.push_str(text);
            return Ok(());
        }
        Diagnostic::quote(&mut errors, text);
        for error in &mut errors {
            error.position.file = file;
            error.file = Some((&*name).into());
        }
        Err(errors)
    }

    /// Records that no file matches a pattern.
    pub fn note_unmatched(&mut self, pattern: &IncludePattern) {
        self.unmatched.push(pattern.clone());
    }

    /// Warnings about the included files.
    pub fn warnings(&self) -> impl Iterator<Item = Diagnostic> {
        self.unmatched.iter().map(|pattern| {
            let message = format!("no file matches the pattern `{}`", pattern.pattern);
            let fix = "correct the pattern; paths are relative to the directory of the policy";
            Diagnostic::warning(MessageId("nothing-included"), pattern.position, message)
                .with_fix(fix)
        })
    }

    /// Returns the text of the policy, followed by that of the included files. Without the files it
    /// is the text of a policy with the same meaning.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// The whole text.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The names of the included files, in their order.
    pub fn included(&self) -> impl Iterator<Item = &Arc<str>> {
        self.included.iter().map(|file| &file.name)
    }

    /// Returns the offsets of the included files in the text without its byte order mark, and their
    /// names.
    pub(super) fn later_files(&self) -> Vec<(usize, Arc<str>)> {
        let mark = self.text.len() - without_byte_order_mark(&self.text).len();
        self.included.iter().map(|file| (file.start - mark, Arc::clone(&file.name))).collect()
    }

    /// Quotes the lines that diagnostics are about, and sets the names of their files.
    pub fn quote(&self, diagnostics: &mut [Diagnostic]) {
        let ends = self.included.iter().map(|file| file.start).chain([self.text.len()]);
        let begins = std::iter::once(0).chain(self.included.iter().map(|file| file.start));
        for (file, (begin, end)) in begins.zip(ends).enumerate() {
            let text = self.text.get(begin..end).unwrap_or_default();
            let name = file.checked_sub(1).and_then(|place| self.included.get(place));
            let of_file = diagnostics.iter_mut().filter(|one| one.position.file == file);
            let without_line = of_file.filter_map(|diagnostic| {
                diagnostic.file = name.map(|file| (&*file.name).into());
                diagnostic.line.is_none().then_some(diagnostic)
            });
            Diagnostic::quote(without_line, text);
        }
    }
}

/// Removes a byte order mark, which some editors write.
pub(super) fn without_byte_order_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The part of a text before the first line that looks like the header of a table. If this part is
/// TOML, the line is a header, and no key after it belongs to the top of the file.
fn before_tables(text: &str) -> &str {
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('[') {
            return &text[..end];
        }
        end += line.len();
    }
    text
}

/// Whether a path has no wildcards, or wildcards only in its last component.
pub(super) fn is_pattern(text: &str) -> bool {
    let (directories, file) = text.rsplit_once('/').unwrap_or(("", text));
    !directories.contains(['*', '?']) && !file.is_empty() && file != "." && file != ".."
}

fn errors_of_included(text: &str, bytes_before: usize) -> Vec<Diagnostic> {
    if text.len().saturating_add(bytes_before) >= POLICY_BYTES_MAX {
        let message = "the policy and the files that it includes are too large together";
        let fix = format!(
            "the limit is {POLICY_BYTES_MAX} bytes: replace several rules by one rule that has a \
             list of addresses, a network or a port range"
        );
        let start = SourcePosition { line: 1, column: 1, ..SourcePosition::default() };
        let id = MessageId("policy-too-large");
        return vec![Diagnostic::error(id, start, message).with_fix(fix)];
    }
    let document = TomlDocument::parse(text);
    let report = Diagnostics::new(&document);
    for TomlEntry { key, key_at: at, .. } in document.top() {
        let header = text.get(..at.start).unwrap_or_default();
        if !INCLUDABLE.contains(&&**key) {
            let message = format!("`{key}` is not allowed in an included file");
            let fix = "move this entry to the policy that includes this file";
            report.error(MessageId("misplaced-key"), at, message, fix);
        } else if !header.ends_with('[') {
            let message = format!(
                "`{key}` is outside of a table, but an included file can contain only tables with \
                 a header"
            );
            let fix = "begin the file with a header: [[rule]], [identity.NAME], \
                       [trust.NAME], [[map.NAME]] or [ike.NAME]";
            report.error(MessageId("not-a-table"), at, message, fix);
        }
    }
    report.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{FindingsShown, parse, parse_files};

    const MAIN: &str = "version = 1\ninclude = \"conf.d/*.toml\"\n[trust.ca]\nca = \"ca.pem\"";

    fn rule(name: &str) -> String {
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:1\"\nconnect = \"127.0.0.1:2\"\n\
             permit = true\n"
        )
    }

    fn rendered(errors: &[Diagnostic]) -> Vec<String> {
        let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
        errors.iter().map(|error| first(error.render("p.toml"))).collect()
    }

    #[test]
    fn included_rules_follow_in_the_order_of_the_files() {
        let mut text = PolicyText::new(MAIN);
        assert_eq!(text.includes().len(), 1);
        assert_eq!(text.includes()[0].pattern, "conf.d/*.toml");
        assert_eq!(text.includes()[0].position.to_string(), "2:11");
        text.include("a", &rule("first")).unwrap();
        text.include("b", &format!("\u{feff}\n{}", rule("second"))).unwrap();
        let policy = parse_files(&text, FindingsShown::All).policy.unwrap();
        let alone = PolicyText::new(text.clone().into_text());
        let alone = parse_files(&alone, FindingsShown::All).policy.unwrap();
        assert!(alone.rules.iter().zip(&policy.rules).all(|(one, other)| one.name == other.name));
        assert_eq!(alone.rules.len(), policy.rules.len());
        let positions: Vec<_> =
            policy.rules.iter().map(|rule| (rule.position.file, rule.position.line)).collect();
        assert_eq!(positions, [(1, 1), (2, 2)]);
        assert_eq!(policy.included.iter().map(|name| &**name).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn errors_name_the_included_file() {
        let mut text = PolicyText::new(format!("\u{feff}{MAIN}"));
        text.include("a", &rule("same")).unwrap();
        text.include("b", &format!("# é\n{}colour = 1\n", rule("same"))).unwrap();
        let mut found = parse_files(&text, FindingsShown::All).diagnostics;
        text.quote(&mut found);
        let found = rendered(&found);
        let expected = [
            "p.toml:3:1: warning[unused]",
            "b:3:8: error[name-taken]",
            "b:7:1: error[unknown-key]",
        ];
        for expected in &expected[1..] {
            assert!(found.iter().any(|line| line.starts_with(expected)), "{found:?}");
        }
    }

    #[test]
    fn a_file_with_other_keys_is_not_included() {
        let mut text = PolicyText::new(MAIN);
        for (included, expected) in [
            ("version = 1\n", "x:1:1: error[misplaced-key]"),
            ("[agent]\nworkers = 1\n", "x:1:2: error[misplaced-key]"),
            ("[sa.branch]\npeer = \"192.0.2.1\"\n", "x:1:2: error[misplaced-key]"),
            ("include = \"y\"\n", "x:1:1: error[misplaced-key]"),
            ("rule = []\n", "x:1:1: error[not-a-table]"),
            ("identity.web.cert = \"a\"\n", "x:1:1: error[not-a-table]"),
            ("[[rule]]\nname = \n", "x:2:8: error[not-toml]"),
        ] {
            let errors = text.include("x", included).unwrap_err();
            assert!(rendered(&errors)[0].starts_with(expected), "{:?}", rendered(&errors));
        }
        assert_eq!(text, PolicyText::new(MAIN));
        let large = "#".repeat(POLICY_BYTES_MAX);
        assert!(text.include("x", &large).is_err());
    }

    #[test]
    fn what_looks_like_a_header_does_not_hide_an_include() {
        let list = "note = [\n[1],\n]\n";
        let texts = [
            "include = \"a\"\n[[rule]]\n".to_owned(),
            format!("{list}include = \"a\""),
            "note = \"\"\"\n[rule]\n\"\"\"\n\"\\u0069nclude\" = \"a\"\n[[rule]]".to_owned(),
            "include = [\n  \"a\",\n]\n  [limits]\n".to_owned(),
        ];
        for text in texts {
            assert_eq!(PolicyText::new(&*text).includes().len(), 1, "{text}");
        }
        for text in ["version = 1\n[rule]\ninclude = \"a\"", "[[rule]]\ninclude = \"a\"", "# [a]"] {
            assert!(PolicyText::new(text).includes().is_empty(), "{text}");
        }
    }

    #[test]
    fn wildcards_are_in_the_last_part_of_a_pattern() {
        for wrong in ["*/a.toml", "conf.d/", "a/..", "."] {
            let found = parse(&format!("version = 1\ninclude = \"{wrong}\"\n")).diagnostics;
            assert!(found.iter().any(|one| one.position.to_string() == "2:11"), "{found:?}");
            assert!(PolicyText::new(format!("include = \"{wrong}\"")).includes().is_empty());
        }
    }
}
