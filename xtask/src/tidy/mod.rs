//! `cargo xtask tidy`: checks style rules for which there is no lint.
//!
//! Each check gets the files of the repository, and returns its findings. A test in this file fails
//! if there are findings.

use std::path::Path;

use crate::workspace::Outcome;

mod finding;
mod graph;
mod identifiers;
mod layers;
mod manual;
mod modules;
mod prose;
mod rust;
mod source;
mod statements;
mod types;
mod vocabulary;
mod walk;

use finding::Finding;

/// Checks the repository and prints the findings.
pub(crate) fn run() -> Outcome {
    let findings = check(&crate::workspace::root())?;
    for finding in &findings {
        println!("{}", finding.render());
    }
    let wrong = findings.iter().filter(|finding| !finding.note).count();
    match wrong {
        0 => {
            println!("tidy: no findings");
            Ok(())
        }
        _ => Err(format!("tidy: {wrong} findings to fix")),
    }
}

fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let sources = source::repository(root)?;
    let mut findings = Vec::new();
    for source in &sources {
        if source.is_rust() {
            rust::check(source, &mut findings);
            statements::check(source, &mut findings);
        }
        prose::check(source, &mut findings);
        vocabulary::check(source, &mut findings);
        manual::check(source, &mut findings);
    }
    modules::check_reached(&sources, &mut findings);
    types::check(&sources, &mut findings);
    layers::check(&sources, &mut findings);
    walk::check(&sources, &mut findings);
    prose::check_promises(&sources, &mut findings);
    prose::check_manual(&sources, &mut findings);
    identifiers::check(&sources, &mut findings);
    findings.sort_by(|a, b| (a.note, &a.path, a.line).cmp(&(b.note, &b.path, b.line)));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_has_no_findings() {
        let findings = check(&crate::workspace::root()).unwrap();
        let wrong: Vec<String> =
            findings.iter().filter(|finding| !finding.note).map(Finding::render).collect();
        assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    }
}
