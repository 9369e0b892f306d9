//! `tacit doctor`: checks which features tacit needs the kernel and the host provide.
//!
//! ```text
//! namespace.rs   makes a namespace and starts a program in it, as `tacit run` does
//! host.rs        reads features and settings from /proc, /dev and netlink
//! ```
//!
//! The output has one line for each feature: its name, whether it is available, and what it is for
//! or what does not work without it. The command changes nothing and sends no packets.

mod finding;
mod host;
mod namespace;

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use self::finding::{Finding, Presence};
use crate::exit::{EXIT_FAILURE, EXIT_OK, pretty, print};

/// Check which features of the kernel and the host are available to tacit
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit doctor
  tacit doctor --json | jq '.findings[] | select(.present | not)'

Exit status: 0 if `tacit run` works on this host, otherwise 1.")]
pub struct DoctorArgs {
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
#[must_use]
pub fn run(args: &DoctorArgs) -> ExitCode {
    // Must come first: it forks, which requires that this process has one thread.
    let mut findings = namespace::look();
    findings.extend(host::look());
    let text = if args.json { pretty(&as_json(&findings)) } else { text(&findings) };
    print(text, if works(&findings) { EXIT_OK } else { EXIT_FAILURE })
}

/// Whether `tacit run` works on this host.
fn works(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.is_present() || !finding.needed)
}

fn as_json(findings: &[Finding]) -> Value {
    let shown: Vec<_> = findings
        .iter()
        .map(|finding| {
            let Finding { name, needed, note, .. } = finding;
            json!({ "name": name, "present": finding.is_present(), "needed": needed, "note": note })
        })
        .collect();
    json!({ "run-works": works(findings), "findings": shown })
}

fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { name, presence, needed, note } in findings {
        let answer = match presence {
            Presence::There => "yes",
            Presence::Missing if *needed => "NO",
            Presence::Missing => "no",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:width$}  {answer:3}  {note}");
    }
    text.push_str(if works(findings) {
        "`tacit run` works on this host\n"
    } else {
        "`tacit run` does not work on this host: see the lines with NO\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_agree_and_required_features_are_marked() {
        let findings = [
            Finding::needed(
                "network namespace",
                Presence::Missing,
                "user.max_user_namespaces is 0",
            ),
            Finding::wanted("cubic", Presence::Missing, "a byte costs more"),
            Finding::wanted("kernel", Presence::There, "Linux 6.18"),
        ];
        assert_eq!(
            text(&findings),
            "network namespace  NO   user.max_user_namespaces is 0\n\
             cubic              no   a byte costs more\n\
             kernel             yes  Linux 6.18\n\
             `tacit run` does not work here: see the lines with NO\n"
        );
        let json = as_json(&findings);
        assert_eq!(json["run-works"], false);
        assert_eq!(json["findings"][0]["needed"], true);
        assert_eq!(json["findings"][2]["note"], "Linux 6.18");
    }
}
