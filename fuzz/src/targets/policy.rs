//! Fuzzes the parser of policy files.

use tacit_core::policy;

/// Checks that each diagnostic has a position in the text and is one line, and that there is a
/// policy if and only if there is no error.
pub(crate) fn policy(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let parsed = policy::parse(&text);
    let lines = text.split('\n').count();
    for finding in &parsed.diagnostics {
        assert!((1..=lines).contains(&finding.position.line), "{finding:?}");
        assert!(finding.position.column >= 1, "{finding:?}");
        for line in [Some(&finding.message), finding.fix.as_ref()].into_iter().flatten() {
            assert!(!line.contains(char::is_control), "{finding:?}");
        }
    }
    let errors = parsed.diagnostics.iter().any(|f| f.severity == policy::DiagnosticSeverity::Error);
    assert_eq!(parsed.policy.is_none(), errors, "{:?}", parsed.diagnostics);
}
