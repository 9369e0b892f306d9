//! Builds the text of the policy that an import writes.
//!
//! The code for each imported format adds tables and rules, each with its file and line in the
//! imported configuration. This module formats the tables and rules as text. Then it parses the
//! text, so that an import never returns a policy that tacit rejects.

use crate::finding::{Findings, Origin};
use tacit_core::policy::text::one_line;
use tacit_core::policy::{DiagnosticSeverity, parse};

/// The policy that is being written.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Lines at the top of the file, written as comments.
    pub head: Vec<String>,
    /// Tables such as `[identity.NAME]` and `[trust.NAME]`, in order.
    pub tables: Vec<Item>,
    /// `[[rule]]`, in order.
    pub rules: Vec<Item>,
}

/// Keys with their values, in order.
pub(crate) type Keys = Vec<(String, Toml)>;

/// Adds a key.
pub(crate) fn set(keys: &mut Keys, key: &str, value: impl Into<Toml>) {
    keys.push((key.to_owned(), value.into()));
}

/// One table or rule.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Its header, as `[identity.web]` or `[[rule]]`.
    pub header: String,
    /// The line of the imported file that it comes from.
    pub at: Origin,
    /// More lines to write as comments.
    pub comments: Vec<String>,
    /// Its keys and values, in order.
    pub keys: Keys,
}

impl Item {
    /// A table without keys.
    #[must_use]
    pub(crate) fn new(header: impl Into<String>, at: &Origin) -> Self {
        Self { header: header.into(), at: at.clone(), comments: Vec::new(), keys: Keys::new() }
    }

    /// Adds a key.
    pub(crate) fn set(&mut self, key: impl Into<String>, value: impl Into<Toml>) {
        self.keys.push((key.into(), value.into()));
    }

    /// The value of a key.
    #[must_use]
    pub(crate) fn value(&self, key: &str) -> Option<&Toml> {
        self.keys.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The text of a key.
    #[must_use]
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.value(key) {
            Some(Toml::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The texts of a list; a single text counts as a list of one.
    #[must_use]
    pub(crate) fn texts(&self, key: &str) -> Vec<String> {
        let text = |value: &Toml| match value {
            Toml::Text(text) => Some(text.clone()),
            _ => None,
        };
        match self.value(key) {
            Some(Toml::List(items)) => items.iter().filter_map(text).collect(),
            Some(one) => text(one).into_iter().collect(),
            None => Vec::new(),
        }
    }
}

/// A TOML value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Toml {
    /// Text in double quotes.
    Text(String),
    /// A whole number.
    Number(i64),
    /// A truth value.
    Flag(bool),
    /// A list.
    List(Vec<Self>),
    /// A table within a line.
    Table(Keys),
}

impl From<&str> for Toml {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Toml {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for Toml {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<u16> for Toml {
    fn from(number: u16) -> Self {
        Self::Number(number.into())
    }
}

impl<T: Into<Self>> From<Vec<T>> for Toml {
    /// A list with one item is written as that item.
    fn from(mut items: Vec<T>) -> Self {
        match (items.len(), items.pop()) {
            (1, Some(only)) => only.into(),
            (_, last) => Self::List(items.into_iter().chain(last).map(Into::into).collect()),
        }
    }
}

/// Longest line, if the value can be split into several lines.
const LINE_CHARS_MAX: usize = 100;

impl Draft {
    /// The text, if the parser of tacit accepts it. Each error of the parser becomes a finding at
    /// the line of the imported file from which the rejected part comes.
    #[must_use]
    pub(crate) fn finish(self, findings: &mut Findings) -> Option<String> {
        let mut out = Text::default();
        self.head.iter().for_each(|line| out.comment(line));
        out.line("version = 1", None);
        self.tables.iter().chain(&self.rules).for_each(|item| out.item(item));
        let mut sound = true;
        for error in parse(&out.text).diagnostics {
            let at = out.origins.get(error.position.line - 1).and_then(Option::as_ref);
            let Some(at) = at.or_else(|| self.rules.first().map(|rule| &rule.at)) else { continue };
            if error.severity == DiagnosticSeverity::Warning {
                // A reported change already describes the warning in the words of the imported
                // file.
                if !findings.reports_change(at) {
                    findings.info(
                        at,
                        format!(
                            "`tacit check` warns about this part of the imported policy: {warning}",
                            warning = error.message
                        ),
                    );
                }
                continue;
            }
            sound = false;
            let fix = error.fix.unwrap_or_else(|| {
                "this is a bug in the import: report the bug, and attach the input files".to_owned()
            });
            findings.error(
                at,
                format!("the imported policy would not be valid: {error}", error = error.message),
                fix,
            );
        }
        sound.then_some(out.text)
    }
}

/// The text, with the origin of each of its lines.
#[derive(Default)]
struct Text {
    text: String,
    origins: Vec<Option<Origin>>,
}

impl Text {
    fn line(&mut self, line: &str, at: Option<&Origin>) {
        for line in line.split('\n') {
            self.text.push_str(line);
            self.text.push('\n');
            self.origins.push(at.cloned());
        }
    }

    fn comment(&mut self, line: &str) {
        self.line(format!("# {}", one_line(line)).trim_end(), None);
    }

    fn item(&mut self, item: &Item) {
        let at = Some(&item.at);
        self.line("", None);
        self.comment(&format!("from {}", item.at));
        item.comments.iter().for_each(|line| self.comment(line));
        self.line(&item.header, at);
        let mut long = Vec::new();
        for (key, value) in &item.keys {
            let line = format!("{} = {}", word(key), show(value));
            match value {
                Toml::Table(entries) if line.chars().count() > LINE_CHARS_MAX => {
                    long.push((key, entries));
                }
                Toml::List(items) if line.chars().count() > LINE_CHARS_MAX => {
                    self.list(key, items, at);
                }
                _ => self.line(&line, at),
            }
        }
        // In TOML a table with its own header ends the table before it.
        let path = item.header.trim_matches(['[', ']']);
        for (key, entries) in long {
            self.line(&format!("[{path}.{}]", word(key)), at);
            for (key, value) in entries {
                match value {
                    Toml::List(items) if show(value).len() > LINE_CHARS_MAX => {
                        self.list(key, items, at);
                    }
                    _ => self.line(&format!("{} = {}", word(key), show(value)), at),
                }
            }
        }
    }

    fn list(&mut self, key: &str, items: &[Toml], at: Option<&Origin>) {
        self.line(&format!("{} = [", word(key)), at);
        items.iter().for_each(|item| self.line(&format!("    {},", show(item)), at));
        self.line("]", at);
    }
}

/// A value as TOML writes it in one line.
#[must_use]
pub(crate) fn show(value: &Toml) -> String {
    match value {
        Toml::Text(text) => quote(text),
        Toml::Number(number) => number.to_string(),
        Toml::Flag(flag) => flag.to_string(),
        Toml::List(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", "))
        }
        Toml::Table(entries) => {
            let entry = |(key, value): &(String, Toml)| format!("{} = {}", word(key), show(value));
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

/// A key, with quotes if it needs them.
#[must_use]
pub(crate) fn word(key: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !key.is_empty() && key.chars().all(plain) { key.to_owned() } else { quote(key) }
}

/// Text in double quotes.
#[must_use]
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Makes a name that a policy allows: drops other characters at the ends, and replaces the rest by
/// `-`.
#[must_use]
pub(crate) fn name_of(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    let kept = text.trim_matches(|c| !fits(c)).chars().take(NAME_CHARS_MAX);
    let name: String = kept.map(|c| if fits(c) { c } else { '-' }).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}

/// Longest name of a rule, an identity or a trust.
const NAME_CHARS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(line: usize) -> Origin {
        Origin { file: "f".into(), line }
    }

    fn rule(line: usize, keys: &[(&str, Toml)]) -> Item {
        let mut item = Item::new("[[rule]]", &origin(line));
        keys.iter().for_each(|(key, value)| item.set(*key, value.clone()));
        item
    }

    #[test]
    fn long_values_are_broken_and_every_line_knows_where_it_is_from() {
        let many: Vec<String> = (1..=20).map(|n| format!("10.0.0.{n}")).collect();
        let tls = Toml::Table(vec![
            ("trust".to_owned(), "system".into()),
            ("server-name".to_owned(), "a".repeat(60).into()),
            ("min-version".to_owned(), "1.3".into()),
        ]);
        let out = [("direction", "outbound".into()), ("remote", many.into())];
        let mut draft = Draft { head: vec!["made\nof f".to_owned()], ..Draft::default() };
        let first = [("name", "a".into()), ("tls", tls)];
        draft.rules.push(rule(3, &[&first[..], &out].concat()));
        draft
            .rules
            .push(rule(9, &[&[("name", "b".into()), ("permit", true.into())], &out[..]].concat()));
        let mut findings = Findings::default();
        let text = draft.finish(&mut findings).unwrap();
        assert!(!findings.has_errors());
        assert!(text.starts_with("# made\\nof f\nversion = 1\n\n# from f:3\n[[rule]]\n"), "{text}");
        assert!(text.contains("    \"10.0.0.20\",\n]\n[rule.tls]\ntrust = \"system\"\n"), "{text}");
        assert_eq!(parse(&text).policy.unwrap().rules.len(), 2);
    }

    #[test]
    fn what_our_parser_refuses_is_an_error_where_it_comes_from() {
        let mut draft = Draft::default();
        draft.rules.push(rule(5, &[("name", "a".into()), ("direction", "outbound".into())]));
        let mut findings = Findings::default();
        assert_eq!(draft.finish(&mut findings), None);
        let found = findings.finish();
        assert_eq!((found[0].line, found.len()), (5, 1));
        assert!(found[0].message.contains("has no action"), "{found:?}");
    }

    #[test]
    fn any_text_can_be_a_value_and_a_name() {
        assert_eq!(quote("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000A\"");
        assert_eq!(word("two words"), "\"two words\"");
        assert_eq!(name_of("TCPIP/RING~1"), "TCPIP-RING-1");
        assert_eq!(name_of("*AUTH*/*"), "AUTH");
        assert_eq!(name_of(""), "-");
    }
}
