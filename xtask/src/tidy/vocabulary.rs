//! Checks that the texts of the project use its standard terms (the vocabulary).
//!
//! These texts are comments, messages, Markdown, manual pages and scripts. Text in backticks is
//! skipped.

use super::finding::Finding;
use super::source::Source;

/// Words and phrases, and their replacements. A trailing `*` matches the rest of a word.
const BANNED: [(&str, &str); 35] = [
    ("anew", "again"),
    ("aloud", "remove it"),
    ("as ever", "write `as before`, or `in the same way as without tacit`"),
    ("believ*", "trust, verify, assume"),
    ("converse*", "exchange"),
    ("dear", "expensive"),
    ("door", "listener"),
    ("doors", "listeners"),
    ("excuse*", "error reply"),
    ("farewell*", "write `closing message` or `drain`"),
    ("fixed form", "forwarding rule"),
    ("fixed rule", "forwarding rule"),
    ("for ever", "write `permanently` or `without end`"),
    ("go on", "continue"),
    ("goes on", "continues"),
    ("hear", "receive, read"),
    ("heard", "received, read"),
    ("hears", "receives, reads"),
    ("in vain", "without effect"),
    ("is none of", "write `is not one of`"),
    ("keeper", "supervisor"),
    ("leg", "write `upstream socket`, `downstream socket` or `program-side socket`"),
    ("legs", "sockets"),
    ("nobody", "write which process, peer or user you mean"),
    ("owe*", "pending"),
    ("seen off", "ended, closed"),
    ("shaken", "handshake done"),
    ("so long", "until, while"),
    ("stand-in", "write `spoofed-source socket`"),
    ("told of", "write `notified of` or `reported`"),
    ("who asks", "write `the client` or `the caller`"),
    ("whoever", "write which process or peer you mean"),
    ("whom", "rewrite the sentence"),
    ("whomever", "rewrite the sentence"),
    ("wish*", "request, option"),
];

/// Files that are examined completely, because all of their text is for people.
const WHOLE: [&str; 9] = [".md", ".1", ".5", ".py", ".sh", ".toml", ".service", ".socket", ".conf"];

/// Inputs of parsers, which may contain any words, and this file.
const FREE: [&str; 3] = ["fuzz/seeds/", "fuzz/dictionaries/", "xtask/src/tidy/vocabulary.rs"];

pub(crate) fn check(source: &Source, findings: &mut Vec<Finding>) {
    if FREE.iter().any(|path| source.path.starts_with(path)) {
        return;
    }
    let prose = if source.is_rust() {
        comments_and_messages(source)
    } else if WHOLE.iter().any(|end| source.path.ends_with(end)) {
        source.text.clone().into_bytes()
    } else {
        return;
    };
    let prose = without_code_spans(prose);
    let words = words(&prose);
    for (at, first) in words.iter().enumerate() {
        for (phrase, instead) in BANNED {
            if begins_with(&words[at..], phrase) {
                let message = format!("replace `{phrase}`: {instead}");
                findings.push(Finding::new(source, source.line_of(first.offset), message));
            }
        }
    }
}

/// Blanks everything except comments and, outside of tests, strings. Offsets are unchanged.
fn comments_and_messages(source: &Source) -> Vec<u8> {
    let is_test_file = source.path.split('/').any(|part| part == "tests");
    let strings_end = if is_test_file { 0 } else { source.code_without_tests().len() };
    let bytes = source.text.bytes().zip(source.prose.bytes()).zip(source.code.bytes());
    let kept = bytes.enumerate().map(|(at, ((text, prose), code))| {
        let is_comment = prose != code;
        let is_string = text != prose && at < strings_end;
        if is_comment || is_string || text == b'\n' { text } else { b' ' }
    });
    kept.collect()
}

/// Blanks text in backticks within a line.
fn without_code_spans(mut prose: Vec<u8>) -> Vec<u8> {
    for line in prose.split_mut(|byte| *byte == b'\n') {
        let ticks = line.iter().filter(|byte| **byte == b'`').count();
        let mut is_inside = false;
        let mut left = ticks;
        for byte in line {
            if *byte == b'`' {
                left -= 1;
                // An unpaired backtick belongs to another line.
                is_inside = !is_inside && left > 0;
            } else if is_inside {
                *byte = b' ';
            }
        }
    }
    prose
}

struct Word {
    offset: usize,
    lower: String,
    /// Whether only space or comment marks separate this word from the preceding one.
    follows: bool,
}

/// The words of a text. A hyphen or `_` does not separate words.
fn words(prose: &[u8]) -> Vec<Word> {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let is_joint = |byte: u8| byte.is_ascii_whitespace() || b"/!#\\".contains(&byte);
    let mut words: Vec<Word> = Vec::new();
    let mut at = 0;
    let mut follows = false;
    while let Some(byte) = prose.get(at) {
        if !is_inside(*byte) {
            follows &= is_joint(*byte);
            at += 1;
            continue;
        }
        let length = prose[at..].iter().take_while(|byte| is_inside(**byte)).count();
        // `{word}` in a message is a variable.
        let is_name = at > 0 && prose[at - 1] == b'{';
        if !is_name {
            let text = String::from_utf8_lossy(&prose[at..at + length]);
            let lower = text.trim_matches('-').to_lowercase();
            words.push(Word { offset: at, lower, follows });
        }
        follows = !is_name;
        at += length;
    }
    words
}

fn begins_with(words: &[Word], phrase: &str) -> bool {
    let initial = words.first().and_then(|word| word.lower.bytes().next());
    if initial != phrase.bytes().next() {
        return false;
    }
    let wanted = phrase.split(' ').enumerate();
    let mut words = words.iter();
    for (index, wanted) in wanted {
        let Some(word) = words.next() else { return false };
        let is_same = match wanted.strip_suffix('*') {
            Some(stem) => word.lower.starts_with(stem),
            None => word.lower == wanted,
        };
        if !is_same || (index > 0 && !word.follows) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        let mut findings = Vec::new();
        check(&Source::new(path, text), &mut findings);
        findings.len()
    }

    #[test]
    fn words_are_found_in_comments_messages_and_pages() {
        assert_eq!(found("x.rs", "/// Nobody's.\nfn f() { g(\"it was told of\") }"), 2);
        assert_eq!(found("x.rs", "// for\n    // ever\n\"for \\\n  ever\""), 2);
        assert_eq!(found("x.md", "Whoever (and whomever) it is, for\never; a stand-in.\n"), 4);
        assert_eq!(found("x.1", "It is believed\\-anew."), 2);
    }

    #[test]
    fn names_inputs_and_strings_of_tests_are_free() {
        assert_eq!(found("x.rs", "fn nobody() { Nobody; f(\"{nobody}\") } // `Nobody`"), 0);
        assert_eq!(found("x.rs", "// is_shaken, for. Ever"), 0);
        assert_eq!(found("x.rs", "#[cfg(test)]\nmod tests { f(\"anew\") }"), 0);
        assert_eq!(found("a/tests/lab/x.rs", "f(\"anew\")"), 0);
        assert_eq!(found("a/tests/lab/x.rs", "// anew"), 1);
        assert_eq!(found("fuzz/seeds/a/x.toml", "anew"), 0);
        assert_eq!(found("x.md", "The user `nobody`."), 0);
    }
}
