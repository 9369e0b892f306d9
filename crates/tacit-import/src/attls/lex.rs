//! Parses the text of an AT-TLS policy file into a tree of statements.
//!
//! ```text
//!   TTLSRule  front          # a comment        Node { keyword, value, block: Some }
//!   {
//!     Direction  Inbound                          Node { keyword, value, block: None }
//!     TTLSCipherParms                             Node { keyword, "", block: Some }
//!     {
//!       V3CipherSuites  TLS_AES_128_GCM_SHA256
//!     }
//!   }
//! ```
//!
//! This module does not know the keywords, so it can parse all files of the z/OS Policy Agent. The
//! value of a statement is the rest of its line, up to a `#` after a blank.
//!
//! Limits: [`DEPTH_MAX`] nested blocks; [`NODES_MAX`] statements.

use crate::finding::{Findings, Origin};
use std::sync::Arc;

/// Deepest nesting: the language has four levels.
pub(super) const DEPTH_MAX: usize = 16;
/// Most statements and attributes of one file.
pub(super) const NODES_MAX: usize = 200_000;

/// The content of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Document {
    /// The file, under the name that was given.
    pub file: Arc<str>,
    /// The statements outside of all braces, in order.
    pub nodes: Vec<Node>,
}

/// A statement or an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// The first word of the line.
    pub keyword: String,
    /// The rest of the line without its comment; empty if there is none.
    pub value: String,
    /// The nodes between its braces; `None` without braces.
    pub block: Option<Vec<Self>>,
    /// Its line.
    pub at: Origin,
}

impl Node {
    /// Whether the node has this keyword; the case of letters is ignored.
    #[must_use]
    pub(super) fn is(&self, keyword: &str) -> bool {
        self.keyword.eq_ignore_ascii_case(keyword)
    }
}

impl Document {
    /// Reads a text, reporting everything that is wrong with it. Never panics, whatever the text.
    #[must_use]
    pub(super) fn read(file: &str, text: &str, findings: &mut Findings) -> Self {
        let file: Arc<str> = file.into();
        let mut tree = Tree { open: Vec::new(), nodes: vec![Vec::new()], count: 0, findings };
        for (line, number) in text.lines().zip(1..) {
            let at = Origin { file: Arc::clone(&file), line: number };
            if !tree.line(without_comment(line), at) {
                break;
            }
        }
        let nodes = tree.finish();
        Self { file, nodes }
    }
}

/// The line without comment and blanks at its ends.
fn without_comment(line: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| {
        line[..*at].chars().next_back().is_none_or(|before| before.is_ascii_whitespace())
    };
    let end = line.match_indices('#').find(begins).map_or(line.len(), |(at, _)| at);
    line[..end].trim()
}

/// The tree while it is built.
struct Tree<'f> {
    /// The lines of the braces that are open.
    open: Vec<Origin>,
    /// The nodes read so far: one list for each open brace, and one for the top level.
    nodes: Vec<Vec<Node>>,
    count: usize,
    findings: &'f mut Findings,
}

impl Tree<'_> {
    /// Reads one line; returns false if the limit is reached.
    fn line(&mut self, line: &str, at: Origin) -> bool {
        if line.is_empty() {
            return true;
        }
        if self.count >= NODES_MAX {
            let message = format!("the file has more than {NODES_MAX} statements");
            self.findings.error(
                &at,
                message,
                "split the file; the import combines several files into one policy",
            );
            return false;
        }
        let mut rest = line;
        if rest.len() > 1 && rest.contains(['{', '}']) && !holds_template(rest) {
            rest = self.braces_within(rest, &at);
        }
        match rest {
            "{" => return self.open(at),
            "}" => self.close(&at),
            "" => {}
            _ => self.node(rest, at),
        }
        true
    }

    /// Reports a brace that shares its line with other text, and reads the line as if it did not.
    fn braces_within<'l>(&mut self, line: &'l str, at: &Origin) -> &'l str {
        let fix = "write each brace on its own line";
        if let Some(before) = line.strip_suffix('{') {
            self.findings.error(at, "a brace follows a statement on the same line", fix);
            self.node(before.trim_end(), at.clone());
            return "{";
        }
        if line.starts_with(['{', '}']) {
            self.findings.error(at, "text follows a brace on the same line", fix);
            let brace = &line[..1];
            if brace == "}" {
                self.close(at)
            } else {
                _ = self.open(at.clone())
            }
            return line[1..].trim_start();
        }
        line
    }

    fn open(&mut self, at: Origin) -> bool {
        if self.open.len() == DEPTH_MAX {
            let message = format!("braces are nested more than {DEPTH_MAX} levels deep");
            self.findings.error(&at, message, "add a missing `}`, or nest fewer blocks");
            return false;
        }
        let owner = self.nodes.last_mut().and_then(|nodes| nodes.last_mut());
        match owner {
            Some(owner) if owner.block.is_none() => owner.block = Some(Vec::new()),
            Some(_) | None => {
                let fix = "write the statement on a line of its own, directly above the brace";
                self.findings.error(&at, "this opening brace has no statement before it", fix);
                // The following lines are read, and dropped together with this placeholder node.
                let nodes = self.nodes.last_mut();
                let node = Node {
                    keyword: String::new(),
                    value: String::new(),
                    block: Some(Vec::new()),
                    at: at.clone(),
                };
                nodes.into_iter().for_each(|nodes| nodes.push(node.clone()));
            }
        }
        self.open.push(at);
        self.nodes.push(Vec::new());
        true
    }

    fn close(&mut self, at: &Origin) {
        if self.open.pop().is_none() {
            let fix = "remove the brace, or add the missing `{` before it";
            self.findings.error(at, "this closing brace has no opening brace", fix);
            return;
        }
        let block = self.nodes.pop().unwrap_or_default();
        if let Some(owner) = self.nodes.last_mut().and_then(|nodes| nodes.last_mut()) {
            owner.block = Some(block);
        }
        // A block without a statement was reported already.
        if let Some(nodes) = self.nodes.last_mut()
            && nodes.last().is_some_and(|node| node.keyword.is_empty())
        {
            nodes.pop();
        }
    }

    fn node(&mut self, line: &str, at: Origin) {
        self.count += 1;
        let (keyword, rest) = line.split_once(|c: char| c.is_whitespace()).unwrap_or((line, ""));
        let value = rest.trim_start();
        if let Some(placeholder) = placeholder(keyword).or_else(|| placeholder(value)) {
            let message = format!("`{placeholder}` is a placeholder, not a value");
            self.findings.error(
                &at,
                message,
                "replace the placeholder by a value: this file is a template",
            );
        }
        if let Some(nodes) = self.nodes.last_mut() {
            nodes.push(Node {
                keyword: keyword.to_owned(),
                value: value.to_owned(),
                block: None,
                at,
            });
        }
    }

    fn finish(mut self) -> Vec<Node> {
        while let Some(at) = self.open.last().cloned() {
            let fix = "add the missing `}`";
            self.findings.error(&at, "this opening brace has no closing brace", fix);
            self.close(&at);
        }
        self.nodes.pop().unwrap_or_default()
    }
}

fn holds_template(line: &str) -> bool {
    ["{{", "}}", "{%", "%}"].iter().any(|mark| line.contains(mark))
}

/// A placeholder of a template: `?port?`, `<port>`, `{{ port }}`, `...`.
fn placeholder(text: &str) -> Option<&str> {
    if text == "..." || text == "…" {
        return Some(text);
    }
    if holds_template(text) {
        return Some(text);
    }
    let between = |open: char, close: char| {
        let (from, _) = text.match_indices(open).next()?;
        let inner = &text[from + 1..];
        let length = inner.find(close)?;
        let name = &inner[..length];
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | ' ' | '.');
        (!name.is_empty() && name.chars().all(plain)).then(|| &text[from..from + length + 2])
    };
    between('?', '?').or_else(|| between('<', '>'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Severity;
    use proptest::prelude::*;

    fn read(text: &str) -> (Document, Vec<String>) {
        let mut findings = Findings::default();
        let document = Document::read("f", text, &mut findings);
        let found = findings.finish();
        assert!(found.iter().all(|finding| finding.severity == Severity::Error));
        (document, found.into_iter().map(|f| format!("{}: {}", f.line, f.message)).collect())
    }

    /// `keyword=value` with blocks in parentheses.
    fn show(nodes: &[Node]) -> String {
        let show = |node: &Node| {
            let block = node.block.as_ref().map(|block| format!("({})", show(block)));
            format!("{}={}{}", node.keyword, node.value, block.unwrap_or_default())
        };
        nodes.iter().map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn statements_nest_and_values_keep_their_blanks() {
        let text = "# head\n\nTTLSRule\tweb # front door\n{\n # Userid X\n  Direction   Inbound\n\
                    CertificateLabel  Our Server #1 # the old one\n Block\n{\nA 1\n}\n}\r\nLast\n";
        let (document, found) = read(text);
        assert_eq!(found, Vec::<String>::new());
        assert_eq!(
            show(&document.nodes),
            "TTLSRule=web(Direction=Inbound CertificateLabel=Our Server Block=(A=1)) Last="
        );
        assert_eq!(document.nodes[0].at.line, 3);
        let label = &document.nodes[0].block.as_ref().unwrap()[1];
        assert_eq!((label.at.line, label.is("certificatelabel")), (7, true));
        assert_eq!(show(&read("Keyring U/RING#2 x").0.nodes), "Keyring=U/RING#2 x");
    }

    #[test]
    fn unbalanced_braces_are_reported_with_their_position() {
        for (text, tree, found) in [
            ("A x\n{\nB 1\n", "A=x(B=1)", &["2: this opening brace has no closing brace"][..]),
            ("A x\n}\nB", "A=x B=", &["2: this closing brace has no opening brace"]),
            ("A x {\nB 1\n}", "A=x(B=1)", &["1: a brace follows a statement on the same line"]),
            ("A\n{ B 1\n}", "A=(B=1)", &["2: text follows a brace on the same line"]),
            ("A\n{\n} B 1", "A=() B=1", &["3: text follows a brace on the same line"]),
            ("{\nB\n}\nC", "C=", &["1: this opening brace has no statement before it"]),
            ("A\n{\n}\n{\nB\n}", "A=()", &["4: this opening brace has no statement before it"]),
        ] {
            let (document, messages) = read(text);
            assert_eq!(show(&document.nodes), tree, "{text}");
            assert_eq!(messages, found, "{text}");
        }
        let (_, messages) = read(&"A\n{\n".repeat(DEPTH_MAX + 1));
        assert!(
            messages.iter().any(|message| message.contains("more than 16 levels deep")),
            "{messages:?}"
        );
    }

    #[test]
    fn placeholders_of_templates_are_errors() {
        for value in ["?serverPort?", "<port>", "{{ port }}", "...", "U/<ring name>", "{% if %}"] {
            let (_, messages) = read(&format!("A\n{{\nB {value}\n}}\n"));
            assert!(
                messages.len() == 1 && messages[0].contains("placeholder"),
                "{value}: {messages:?}"
            );
        }
        for value in ["CN=a?b", "1 < 2", "a->b", "CN=<>"] {
            assert_eq!(read(&format!("B {value}")).1, Vec::<String>::new(), "{value}");
        }
    }

    proptest! {
        #[test]
        fn whatever_the_text_findings_have_a_line_of_it(text in "([AB {}#?\n]|\\PC){0,200}") {
            let mut findings = Findings::default();
            let document = Document::read("f", &text, &mut findings);
            let lines = text.lines().count();
            let found = findings.finish();
            prop_assert!(found.iter().all(|finding| (1..=lines).contains(&finding.line)));
            let keywords = document.nodes.iter().all(|node| !node.keyword.is_empty());
            prop_assert!(keywords);
        }
    }
}
