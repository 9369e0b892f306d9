//! Reads the files that `cargo xtask tidy` checks. Some checks ignore the strings of Rust files,
//! and some also ignore the comments. For these checks, this module replaces the ignored text with
//! blanks.

use std::path::Path;
use std::process::Command;

/// A file of the repository.
pub(crate) struct Source {
    /// The path, relative to the root.
    pub(crate) path: String,
    /// The content.
    pub(crate) text: String,
    /// Rust: `text` with strings, characters and comments blanked at the same offsets. Else empty.
    pub(crate) code: String,
    /// Rust: `text` with strings and characters blanked at the same offsets. Else `text`.
    pub(crate) prose: String,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let (code, prose) = match path.ends_with(".rs") {
            true => (blank(text, Comments::Blank), blank(text, Comments::Keep)),
            false => (String::new(), text.to_owned()),
        };
        Self { path: path.to_owned(), text: text.to_owned(), code, prose }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The part of `code` before the unit tests; empty for `tests.rs`.
    pub(crate) fn code_without_tests(&self) -> &str {
        if self.path.ends_with("/tests.rs") {
            return "";
        }
        let end = self.code.find("#[cfg(test)]\nmod tests {").unwrap_or(self.code.len());
        self.code.get(..end).unwrap_or_default()
    }

    /// The line, from 1, of a byte offset.
    pub(crate) fn line_of(&self, offset: usize) -> usize {
        1 + self.text.bytes().take(offset).filter(|byte| *byte == b'\n').count()
    }
}

/// Every text file that git tracks, or would track after `git add .`.
pub(crate) fn repository(root: &Path) -> Result<Vec<Source>, String> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if !listing.status.success() {
        return Err(format!(
            "git ls-files failed: {}",
            String::from_utf8_lossy(&listing.stderr).trim()
        ));
    }
    let mut sources = Vec::new();
    for path in String::from_utf8_lossy(&listing.stdout).split_terminator('\0') {
        // Skips deleted files and binary files.
        let Ok(bytes) = std::fs::read(root.join(path)) else { continue };
        if let Ok(text) = String::from_utf8(bytes) {
            sources.push(Source::new(path, &text));
        }
    }
    Ok(sources)
}

/// The offsets at which `word` occurs as a whole word.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let inside = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    text.match_indices(word).map(|(offset, _)| offset).filter(move |offset| {
        let bytes = text.as_bytes();
        !inside(offset.checked_sub(1).and_then(|before| bytes.get(before)))
            && !inside(bytes.get(offset + word.len()))
    })
}

/// The identifier at the start of `text`; may be empty.
pub(crate) fn identifier(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// The length of the bracketed text that starts here, with its brackets; 0 if there is none.
pub(crate) fn bracketed_bytes(code: &str, open: u8, close: u8) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in code.bytes().enumerate() {
        if byte == open {
            depth += 1;
        } else if byte == close {
            depth = depth.saturating_sub(1);
        }
        if depth == 0 {
            return if at == 0 { 0 } else { at + 1 };
        }
    }
    code.len()
}

/// Whether comments are blanked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comments {
    Blank,
    Keep,
}

/// Blanks literals, and comments if requested. Newlines and offsets are unchanged.
fn blank(text: &str, comments: Comments) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let (length, hide) = match rest {
            [b'/', b'/', ..] => (line_comment(rest), comments == Comments::Blank),
            [b'/', b'*', ..] => (block_comment(rest), comments == Comments::Blank),
            [b'"', ..] => (string(rest), true),
            [b'\'', ..] => (character(rest), true),
            [b'r', b'"' | b'#', ..] if !in_identifier(bytes, at) => (raw_string(rest), true),
            [b'b' | b'c', b'r', b'"' | b'#', ..] if !in_identifier(bytes, at) => {
                (1 + raw_string(&rest[1..]), true)
            }
            _ => (1, false),
        };
        // A literal has more than one byte, so this is code or the quote of a lifetime.
        if hide && length > 1 {
            for byte in &mut out[at..at + length] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at += length;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn in_identifier(bytes: &[u8], at: usize) -> bool {
    let before = at.checked_sub(1).and_then(|before| bytes.get(before));
    before.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn line_comment(rest: &[u8]) -> usize {
    rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len())
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn string(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of `'x'`, `'\n'`, `'\u{1f600}'`; 1 for the quote of a lifetime.
fn character(rest: &[u8]) -> usize {
    const LITERAL_BYTES_MAX: usize = 12;
    let closing = match rest {
        [_, b'\\', _, tail @ ..] => find(tail, b'\'').map(|at| at + 4),
        [_, b'\'', ..] => None,
        [_, tail @ ..] => {
            // One character of up to four bytes, then the quote.
            let quote = find(tail, b'\'').map(|at| at + 2);
            quote.filter(|_| {
                let body = tail.get(..find(tail, b'\'').unwrap_or(0)).unwrap_or_default();
                String::from_utf8_lossy(body).chars().count() == 1
            })
        }
        [] => None,
    };
    closing.filter(|length| *length <= LITERAL_BYTES_MAX).unwrap_or(1)
}

/// The length of `r"…"`, `r#"…"#`; 1 for a raw identifier.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 1;
    }
    let start = hashes + 2;
    let mut at = start;
    while at < rest.len() {
        let closes = rest[at] == b'"'
            && rest.len() >= at + 1 + hashes
            && rest[at + 1..at + 1 + hashes].iter().all(|byte| *byte == b'#');
        if closes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    rest.len()
}

fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    bytes.iter().position(|byte| *byte == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_characters_and_comments_are_blanked_in_place() {
        let text = "a \"s\\\"x\" b // c\n'\\'' 'é' &'a r#\"q\"q\"# /* /* n */ */ d r#type br\"e\"";
        let code = blank(text, Comments::Blank);
        assert_eq!(code.len(), text.len());
        let kept: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(kept, ["a", "b", "&'a", "d", "r#type"]);
        assert!(blank(text, Comments::Keep).contains("// c"));
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words("unsafe_code unsafe {}", "unsafe").collect::<Vec<_>>(), [12]);
    }
}
