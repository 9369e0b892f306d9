//! Reads a policy and its included files.
//!
//! `include = "conf.d/*.toml"` is relative to the directory of the policy. The files of one pattern
//! are read in the order of their names. Wildcards do not match names that begin with a dot. If a
//! pattern with wildcards matches no file, or if its directory does not exist, the result is a
//! warning.
//!
//! Limits: `INCLUDED_FILES_MAX` files in total, and `ENTRIES_MAX` entries in a directory.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tacit_core::message_id::MessageId;
use tacit_core::policy::{
    Diagnostic, INCLUDED_FILES_MAX, IncludePattern, POLICY_BYTES_MAX, PolicyText, SourcePosition,
};
use tacit_sys::input_file::open_regular;

use crate::runtime::limit_fix;

/// The largest number of entries of a directory that a pattern searches.
const ENTRIES_MAX: usize = 4096;
/// The file name of standard input.
pub(super) const STANDARD_INPUT: &str = "-";
const START: SourcePosition = SourcePosition { file: 0, line: 1, column: 1 };
/// The fix if a file is not UTF-8.
pub const ENCODING_FIX: &str = "save the file with the encoding UTF-8";
const UNREADABLE: MessageId = MessageId("unreadable-policy");

/// Reads a policy that `open` opens. It is read only once, because it may be a pipe. `admit` may
/// refuse a pattern, given with its path, before its directory is read.
///
/// # Errors
/// The policy cannot be read, or an included file cannot be read or included.
pub fn read_policy(
    path: &Path,
    open: impl FnOnce(&Path) -> io::Result<File>,
    admit: impl Fn(&IncludePattern, &Path) -> Result<(), Diagnostic>,
) -> Result<PolicyText, Vec<Diagnostic>> {
    let read = open(path).and_then(read_limited).map_err(|error| {
        let fix = limit_fix(&error).unwrap_or("use a regular file that this user can read");
        let message = format!("cannot read the policy file: {error}");
        vec![Diagnostic::error(UNREADABLE, START, message).with_fix(fix)]
    })?;
    let text = read.map_err(|invalid| {
        let message = "the policy file contains bytes that are not UTF-8";
        vec![Diagnostic::error(UNREADABLE, invalid, message).with_fix(ENCODING_FIX)]
    })?;
    with_included(text, path, admit)
}

/// Reads a text that must not be longer than a policy. Of a longer text, it returns more than
/// [`POLICY_BYTES_MAX`] bytes. The inner error is the position of the first byte that is not UTF-8.
///
/// # Errors
/// The error of `read`.
pub fn read_limited(file: impl Read) -> io::Result<Result<String, SourcePosition>> {
    let mut bytes = Vec::new();
    // The last character of a longer text may be cut: it has at most four bytes.
    file.take(POLICY_BYTES_MAX as u64 + 4).read_to_end(&mut bytes)?;
    Ok(String::from_utf8(bytes).or_else(|error| {
        let valid = error.utf8_error().valid_up_to();
        let text = String::from_utf8_lossy(&error.as_bytes()[..valid]).into_owned();
        if valid > POLICY_BYTES_MAX { Ok(text) } else { Err(end_of(&text)) }
    }))
}

/// The position after a text.
fn end_of(text: &str) -> SourcePosition {
    let last = text.rsplit('\n').next().unwrap_or_default();
    let line = text.matches('\n').count() + 1;
    SourcePosition { file: 0, line, column: last.chars().count() + 1 }
}

/// Reads a policy from standard input. What it includes is relative to the current directory.
///
/// # Errors
/// As [`read_policy`].
pub(super) fn read_standard_input() -> Result<PolicyText, Vec<Diagnostic>> {
    let read = read_limited(io::stdin().lock()).map_err(|error| {
        let message = format!("cannot read the policy from standard input: {error}");
        let error = Diagnostic::error(UNREADABLE, START, message);
        vec![error.with_fix("pass a policy on standard input")]
    })?;
    let text = read.map_err(|invalid| {
        let message = "the policy on standard input contains bytes that are not UTF-8";
        let error = Diagnostic::error(UNREADABLE, invalid, message);
        vec![error.with_fix("pass a policy in UTF-8 on standard input")]
    })?;
    with_included(text, Path::new(STANDARD_INPUT), |_, _| Ok(()))
}

/// Adds the files that the policy at `path` includes to its text.
fn with_included(
    text: String,
    path: &Path,
    admit: impl Fn(&IncludePattern, &Path) -> Result<(), Diagnostic>,
) -> Result<PolicyText, Vec<Diagnostic>> {
    let mut text = PolicyText::new(text);
    let mut errors = Vec::new();
    let mut files = Vec::new();
    for pattern in text.includes() {
        let path = beside(path, &pattern.pattern);
        match admit(&pattern, &path).and_then(|()| matching(&pattern, &path)) {
            Ok(found) if found.is_empty() => text.note_unmatched(&pattern),
            Ok(found) => files.extend(found.into_iter().map(|file| (file, pattern.position))),
            Err(error) => errors.push(error),
        }
    }
    if let Some((_, position)) = files.get(INCLUDED_FILES_MAX) {
        let message = format!("the policy includes {files} files", files = files.len());
        let fix = format!("the limit is {INCLUDED_FILES_MAX}: merge some of the files");
        errors.push(Diagnostic::error(MessageId("too-many"), *position, message).with_fix(fix));
        files.clear();
    }
    let mut known = Vec::new();
    for (file, position) in files {
        if known.contains(&file) {
            continue;
        }
        match read_file(&file) {
            Ok(content) => {
                let included = text.include(file.display().to_string(), &content);
                errors.extend(included.err().unwrap_or_default());
            }
            Err(error) => errors.push(unreadable(position, &file, &error)),
        }
        known.push(file);
    }
    if errors.is_empty() {
        return Ok(text);
    }
    text.quote(&mut errors);
    Err(errors)
}

/// The directory that paths in a policy are relative to.
#[must_use]
pub fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A path of a policy: relative to the directory of the policy.
fn beside(policy: &Path, named: &str) -> PathBuf {
    match policy.parent() {
        Some(directory) => directory.join(named),
        None => PathBuf::from(named),
    }
}

/// The files of a pattern, in the order of their names.
fn matching(pattern: &IncludePattern, path: &Path) -> Result<Vec<PathBuf>, Diagnostic> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !name.contains(['*', '?']) {
        return Ok(vec![path.to_owned()]);
    }
    let directory = directory_of(path);
    let error_of = |error: io::Error| unreadable(pattern.position, &directory, &error);
    let entries = match directory.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error_of(error)),
    };
    let mut names = Vec::new();
    for (count, entry) in entries.enumerate() {
        if count >= ENTRIES_MAX {
            let message = format!("the directory {} has too many entries", directory.display());
            let fix =
                format!("the limit is {ENTRIES_MAX}: use a separate directory for the policy");
            let id = MessageId("too-many");
            return Err(Diagnostic::error(id, pattern.position, message).with_fix(fix));
        }
        let entry = entry.map_err(error_of)?.file_name();
        // A pattern cannot match a name that is not UTF-8.
        names.extend(entry.into_string().ok().filter(|entry| matches(name, entry)));
    }
    names.sort_unstable();
    Ok(names.into_iter().map(|name| path.with_file_name(name)).collect())
}

/// Whether a name matches: `*` stands for any characters, `?` for one. Hidden files do not match.
fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let name: Vec<char> = name.chars().collect();
    // Whether the pattern so far matches the first 0, 1, 2 … characters of the name.
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for wanted in pattern.chars() {
        if wanted == '*' {
            let first = reached.iter().position(|reached| *reached).unwrap_or(reached.len());
            reached[first..].fill(true);
            continue;
        }
        for at in (0..name.len()).rev() {
            let fits = wanted == '?' || wanted == name[at];
            reached[at + 1] = reached[at] && fits;
        }
        reached[0] = false;
    }
    reached[name.len()]
}

fn read_file(path: &Path) -> io::Result<String> {
    read_limited(open_regular(path)?)?.map_err(|SourcePosition { line, column, .. }| {
        let message = format!("the byte at {line}:{column} is not UTF-8: {ENCODING_FIX}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn unreadable(position: SourcePosition, path: &Path, error: &io::Error) -> Diagnostic {
    let message = format!("cannot include {}: {error}", path.display());
    let fix = "make the file readable for the agent's user, or remove the file from `include`";
    Diagnostic::error(UNREADABLE, position, message).with_fix(fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_byte_that_is_not_utf_8_is_found() {
        let position = |bytes: &[u8]| read_limited(bytes).unwrap().unwrap_err();
        let at = |line, column| SourcePosition { file: 0, line, column };
        assert_eq!(position(b"\xffversion = 1\n"), at(1, 1));
        assert_eq!(position("version = 1\n# é".as_bytes().split_last().unwrap().1), at(2, 3));
        assert_eq!(position(b"a\nb\n# M\xfcller"), at(3, 4));
    }

    #[test]
    fn a_text_is_read_up_to_the_limit_of_a_policy() {
        let read = |file: &mut dyn Read| read_limited(file).unwrap().unwrap().len();
        assert_eq!(read(&mut &b"version = 1"[..]), 11);
        assert_eq!(read(&mut io::repeat(b'#')), POLICY_BYTES_MAX + 4);
        let long = "é".repeat(POLICY_BYTES_MAX / 2 + 9);
        assert_eq!(read(&mut long.as_bytes()), POLICY_BYTES_MAX + 4, "no character is cut");
        let long = format!("#{long}");
        assert_eq!(read(&mut long.as_bytes()), POLICY_BYTES_MAX + 3, "a character is cut");
        let mut invalid = long.into_bytes();
        invalid[0] = 0xff;
        let position = read_limited(&invalid[..]).unwrap().unwrap_err();
        assert_eq!(position, START, "no other byte is skipped");
    }

    #[test]
    fn wildcards_match_parts_of_a_name() {
        for (pattern, name, fits) in [
            ("*.toml", "a.toml", true),
            ("*.toml", ".toml", false),
            ("*.toml", ".a.toml", false),
            (".*", ".a", true),
            ("*.toml", "a.toml~", false),
            ("?-*.toml", "1-web.toml", true),
            ("?-*.toml", "10-web.toml", false),
            ("*a*a*", "banana", true),
            ("*a*a*a*a", "banana", false),
            ("é?", "éa", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
