//! Checks that each `let` assigns one value: `let (a, b) = (f(), g());` must be two statements.

use super::finding::Finding;
use super::source::{Source, bracketed_bytes, words};

/// Finds every `let` that destructures a tuple expression.
pub(crate) fn check(source: &Source, findings: &mut Vec<Finding>) {
    for start in words(&source.code, "let") {
        let statement = source.code.get(start..).unwrap_or_default();
        if binds_a_tuple_to_names(statement) {
            let message =
                "this `let` destructures a tuple expression: write one `let` for each name";
            findings.push(Finding::new(source, source.line_of(start), message.to_owned()));
        }
    }
}

/// Whether the text starts with `let (NAME, NAME) = (VALUE, VALUE);`.
fn binds_a_tuple_to_names(statement: &str) -> bool {
    let Some(rest) = after_names(statement) else { return false };
    let Some(value) = after_type(rest).strip_prefix('=') else { return false };
    let value = value.trim_start();
    let end = bracketed_bytes(value, b'(', b')');
    end > 0 && value.get(end..).is_some_and(|rest| rest.starts_with(';'))
}

/// The text after the pattern of a `let`, if the pattern is a tuple of names.
fn after_names(statement: &str) -> Option<&str> {
    let pattern = statement.strip_prefix("let")?.trim_start().strip_prefix('(')?;
    let close = pattern.find(')')?;
    let names = pattern.get(..close)?;
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c.is_whitespace() || "_,".contains(c);
    if !names.contains(',') || !names.chars().all(is_of_a_name) {
        return None;
    }
    pattern.get(close + 1..).map(str::trim_start)
}

/// The text after the type of a `let`, if it has one.
fn after_type(rest: &str) -> &str {
    let Some(written) = rest.strip_prefix(':') else { return rest };
    let end = written.find('=').unwrap_or(written.len());
    written.get(end..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_found(code: &str) -> bool {
        let mut findings = Vec::new();
        check(&Source::new("x.rs", code), &mut findings);
        !findings.is_empty()
    }

    #[test]
    fn a_destructured_tuple_expression_is_found() {
        assert!(is_found("let (a, b) = (f(), g(1, 2));"));
        assert!(is_found("let (mut a, _) =\n    (f(),\n     g());"));
        assert!(is_found("let (a, b): (u8, u16) = (1, 2);"));
    }

    #[test]
    fn other_tuples_are_permitted() {
        assert!(!is_found("let (a, b) = pair();"));
        assert!(!is_found("let (a, b) = (f)(x).y();"));
        assert!(!is_found("let (Some(a), Some(b)) = (f(), g()) else { return };"));
        assert!(!is_found("if let (Some(a), true) = (f(), g()) {}"));
        assert!(!is_found("let a = (f(), g());"));
    }
}
