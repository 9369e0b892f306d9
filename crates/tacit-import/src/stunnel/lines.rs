//! Parses stunnel configuration files into sections of options, and follows `include`.
//!
//! ```text
//!   debug = notice          before all sections: a global option, or a default of all services
//!   [imaps]                 a section: one service
//!   accept = 993
//!   ; a comment
//!   include = /etc/conf.d   includes all files of the directory in the order of their names
//! ```
//!
//! Limits: [`INCLUDE_DEPTH_MAX`] nested files; [`LINES_MAX`] lines in total.

use crate::files::Files;
use crate::finding::{Findings, Origin};
use std::sync::Arc;

/// Deepest nesting of `include`.
const INCLUDE_DEPTH_MAX: usize = 8;
/// Most lines of all files together.
const LINES_MAX: usize = 200_000;

/// `name = value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) at: Origin,
}

/// The options below one `[name]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    pub(super) at: Origin,
    pub(super) entries: Vec<Entry>,
}

/// The content of one file and of all files that it includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Configuration {
    /// The options before all sections.
    pub(super) global: Vec<Entry>,
    pub(super) sections: Vec<Section>,
}

/// Reads a file, reporting everything that is wrong with its lines.
pub(super) fn read(file: &str, files: &dyn Files, findings: &mut Findings) -> Configuration {
    let mut reader = Reader { files, findings, lines: 0, read: Configuration::default() };
    let first = Origin { file: file.into(), line: 1 };
    reader.file(file, &first, 0);
    reader.read
}

struct Reader<'r> {
    files: &'r dyn Files,
    findings: &'r mut Findings,
    lines: usize,
    read: Configuration,
}

impl Reader<'_> {
    /// Reads a file that `named_at` names.
    fn file(&mut self, path: &str, named_at: &Origin, depth: usize) {
        if self.lines > LINES_MAX {
            return;
        }
        let bytes = match self.files.read(path) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!("cannot read {path}: {error}");
                self.findings.error(
                    named_at,
                    message,
                    "correct the path, or make the file readable",
                );
                return;
            }
        };
        // Values are names, paths and addresses; bytes that are not UTF-8 are replaced.
        let text = String::from_utf8_lossy(&bytes);
        let content = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let file: Arc<str> = path.into();
        for (line, number) in content.lines().zip(1..) {
            let at = Origin { file: Arc::clone(&file), line: number };
            self.lines += 1;
            if self.lines > LINES_MAX {
                let message = format!("the configuration has more than {LINES_MAX} lines");
                self.findings.error(&at, message, "import each file separately");
                return;
            }
            self.line(line.trim(), at, depth);
        }
    }

    fn line(&mut self, line: &str, at: Origin, depth: usize) {
        if line.is_empty() || line.starts_with([';', '#']) {
            return;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            self.read.sections.push(Section { name: name.to_owned(), at, entries: Vec::new() });
            return;
        }
        let Some((before, after)) = line.split_once('=') else {
            let message = format!("`{line}` has no `=`");
            self.findings.error(&at, message, "write `option = value`, `[service]` or `; comment`");
            return;
        };
        let name = before.trim();
        let value = after.trim();
        if name.eq_ignore_ascii_case("include") {
            self.include(value, &at, depth + 1);
            return;
        }
        let entry = Entry { name: name.to_owned(), value: value.to_owned(), at };
        match self.read.sections.last_mut() {
            Some(section) => section.entries.push(entry),
            None => self.read.global.push(entry),
        }
    }

    fn include(&mut self, directory: &str, at: &Origin, depth: usize) {
        if depth > INCLUDE_DEPTH_MAX {
            let message = format!("`include` is nested more than {INCLUDE_DEPTH_MAX} levels deep");
            self.findings.error(at, message, "include each directory only once");
            return;
        }
        let mut names = match self.files.names(directory) {
            Ok(names) => names,
            Err(error) => {
                let message = format!("cannot read the directory {directory}: {error}");
                self.findings.error(
                    at,
                    message,
                    "correct the path, or make the directory readable",
                );
                return;
            }
        };
        names.sort();
        for name in names.into_iter().filter(|name| !name.starts_with('.')) {
            self.file(&format!("{}/{name}", directory.trim_end_matches('/')), at, depth);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InMemory;
    use crate::files::texts;
    use proptest::prelude::*;

    fn show(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let mut findings = Findings::default();
        let read = read(files[0].0, &InMemory(&texts(files)), &mut findings);
        let entry = |e: &Entry| format!("{}={}@{}", e.name, e.value, e.at);
        let mut shown: Vec<String> = read.global.iter().map(entry).collect();
        for section in &read.sections {
            shown.push(format!("[{}]", section.name));
            shown.extend(section.entries.iter().map(entry));
        }
        let found = findings.finish();
        (
            shown,
            found.into_iter().map(|f| format!("{}:{}: {}", f.file, f.line, f.message)).collect(),
        )
    }

    #[test]
    fn options_stand_below_their_section() {
        let text =
            "\u{feff}debug = 5\n; no\n # no\n[a b]\r\n Accept=993 \nconnect = h : 1 = 2\n[c]";
        let (shown, found) = show(&[("f", text)]);
        let wanted = ["debug=5@f:1", "[a b]", "Accept=993@f:5", "connect=h : 1 = 2@f:6", "[c]"];
        assert_eq!((shown, found), (wanted.map(str::to_owned).to_vec(), vec![]));
        let (_, found) = show(&[("f", "[s]\naccept\n")]);
        assert_eq!(found, ["f:2: `accept` has no `=`"]);
    }

    #[test]
    fn a_directory_is_included_by_the_names_of_its_files() {
        let files = [
            ("f", "include = d\n[z]\na=1"),
            ("d/02", "[y]\nb=2"),
            ("d/01", "g = 0"),
            ("d/.hidden", "h = 0"),
        ];
        let wanted = ["g=0@d/01:1", "[y]", "b=2@d/02:2", "[z]", "a=1@f:3"];
        assert_eq!(show(&files).0, wanted);
        let (_, found) = show(&[("d/f", "include = d")]);
        assert_eq!(found, ["d/f:1: `include` is nested more than 8 levels deep"]);
        assert_eq!(show(&[("f", "include = no")]).1, [""; 0]);
        assert!(show(&[("f", "[a]")]).1.is_empty());
    }

    proptest! {
        #[test]
        fn whatever_the_text_every_finding_has_a_line_of_it(
            text in "([a =;#\\[\\]\n]|\\PC){0,200}",
        ) {
            let mut findings = Findings::default();
            read("f", &InMemory(&texts(&[("f", &text)])), &mut findings);
            let lines = text.lines().count();
            prop_assert!(findings.finish().iter().all(|found| (1..=lines).contains(&found.line)));
        }
    }
}
