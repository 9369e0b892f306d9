//! Checks that a manual page uses either the macros of man(7) or the macros of mdoc(7). For each
//! page, the formatter uses only one of these two macro packages. The formatter omits every line
//! with a macro of the other package. So a page with both would lose text.

use super::finding::Finding;
use super::source::Source;

/// The packages, and the macro with which their pages begin.
const PACKAGES: [(&str, &str); 2] = [(".TH ", "man"), (".Dd ", "mdoc")];

pub(crate) fn check(source: &Source, findings: &mut Vec<Finding>) {
    if ![".1", ".5", ".7"].iter().any(|section| source.path.ends_with(section)) {
        return;
    }
    let begins = |begin: &str| source.text.lines().any(|line| line.starts_with(begin));
    let Some((_, package)) = PACKAGES.iter().find(|(begin, _)| begins(begin)) else { return };
    for (number, line) in (1..).zip(source.text.lines()) {
        let Some(name) = line.strip_prefix('.').and_then(|rest| rest.split(' ').next()) else {
            continue;
        };
        if macro_package(name).is_some_and(|other| other != *package) {
            let message = format!("the page uses {package}(7), which has no macro `{name}`");
            findings.push(Finding::new(source, number, message));
        }
    }
}

/// The package of a macro. Macros of man(7) have capital letters, those of mdoc(7) also a small
/// one, and requests of roff only small ones.
fn macro_package(name: &str) -> Option<&'static str> {
    let is_capital = |letter: char| letter.is_ascii_uppercase();
    match (name.contains(is_capital), name.contains(|letter: char| letter.is_ascii_lowercase())) {
        (true, false) => Some("man"),
        (true, true) => Some("mdoc"),
        (false, _) => None,
    }
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
    fn a_page_uses_the_macros_of_its_package() {
        assert_eq!(found("x.5", ".TH X 5\n.SH NAME\n.B text\n.nf\n.\\\" A comment.\n"), 0);
        assert_eq!(found("x.1", ".Dd today\n.Sh NAME\n.Cm text\n.sp\n"), 0);
        assert_eq!(found("x.5", ".TH X 5\n.Cm text\n.Ql more\n"), 2);
        assert_eq!(found("x.7", ".Dd today\n.B text\n"), 1);
        assert_eq!(found("x.md", ".TH X 5\n.Cm text\n"), 0);
    }
}
