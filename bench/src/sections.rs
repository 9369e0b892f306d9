//! Writes BENCHMARKS.md: the main report, followed by the sections of `bench compare` and of single
//! workloads. A new main report replaces only the old main report. The other sections do not
//! change.

use std::fs;

use crate::workspace::root;

/// The start of a section's heading.
const HEAD: &str = "\n## Compared: ";

/// Replaces the report, and keeps the sections.
pub(crate) fn write_report(report: &str) -> Result<(), String> {
    change(|before| format!("{}\n{}", report.trim_end(), sections(before)))
}

/// Replaces the section of this title, or appends it.
pub(crate) fn write_section(title: &str, text: &str) -> Result<(), String> {
    change(|before| with_section(before, title, text))
}

fn change(to: impl FnOnce(&str) -> String) -> Result<(), String> {
    let path = root().join("BENCHMARKS.md");
    let failed = |error| format!("cannot write {}: {error}", path.display());
    let before = fs::read_to_string(&path).map_err(failed)?;
    fs::write(&path, to(&before)).map_err(failed)
}

fn sections(before: &str) -> &str {
    before.find(HEAD).map_or("", |at| &before[at..])
}

fn with_section(before: &str, title: &str, text: &str) -> String {
    let head = format!("{HEAD}{title}\n");
    let section = format!("{head}\n{}\n", text.trim_end());
    match before.split_once(&head) {
        Some((front, old)) => {
            let rest = old.find(HEAD).map_or("", |at| &old[at..]);
            format!("{front}{section}{rest}")
        }
        None => format!("{}\n{section}", before.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_in_place_and_kept_by_a_new_report() {
        let report = "# Benchmarks\n\ntext\n";
        let one = with_section(report, "a", "1\n");
        let two = with_section(&one, "b", "2\n");
        assert_eq!(two, "# Benchmarks\n\ntext\n\n## Compared: a\n\n1\n\n## Compared: b\n\n2\n");
        assert_eq!(with_section(&two, "a", "3"), two.replace("\n1\n", "\n3\n"));
        assert_eq!(with_section(&two, "b", "3"), two.replace("\n2\n", "\n3\n"));
        assert_eq!(sections(&two), "\n## Compared: a\n\n1\n\n## Compared: b\n\n2\n");
        assert_eq!(sections(report), "");
    }
}
