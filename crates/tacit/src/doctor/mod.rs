//! `tacit doctor`: checks whether the kernel and the host provide the features that tacit needs.
//!
//! ```text
//! namespace.rs   makes a namespace and starts a program in it, as `tacit run` does
//! host.rs        reads features and settings from /proc, /dev and netlink
//! crypto.rs      reads the instructions of the CPUs, and measures cipher suites
//! ```
//!
//! The output has one line for each feature: its name, whether it is available, and which function
//! of tacit needs the feature. Two tables follow: the AES and SHA instructions, and the speed of
//! each cipher suite. The command changes nothing and sends no packets.

mod crypto;
mod finding;
mod host;
mod namespace;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use serde_json::json;

use self::finding::Finding;
use crate::control::display::VERSION;
use crate::control::render::Table;
use crate::control::render::table::lay_out;
use crate::control::render::width::TextWidth;
use crate::cpus::CryptoDisplay;
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
    let crypto = crypto::look();
    findings.extend(crypto.findings);
    let display = DoctorDisplay {
        version: VERSION,
        run_works: works(&findings),
        findings: findings.iter().map(FindingDisplay::of).collect(),
        crypto: crypto.display,
    };
    let text =
        if args.json { pretty(&json!(display)) } else { display.text(TextWidth::of_stdout()) };
    print(text, if display.run_works { EXIT_OK } else { EXIT_FAILURE })
}

/// Whether `tacit run` works on this host.
fn works(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.is_present() || !finding.needed)
}

/// The results, as `--json` prints them.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct DoctorDisplay<'a> {
    version: u32,
    run_works: bool,
    findings: Vec<FindingDisplay<'a>>,
    /// `None` if the measurement failed. Then `findings` contains the reason.
    #[serde(flatten)]
    crypto: Option<CryptoDisplay>,
}

/// A feature that tacit uses, and whether this host has it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct FindingDisplay<'a> {
    name: &'a str,
    present: bool,
    needed: bool,
    note: &'a str,
}

impl<'a> FindingDisplay<'a> {
    fn of(finding: &'a Finding) -> Self {
        let Finding { name, presence: _, needed, note } = finding;
        Self { name, present: finding.is_present(), needed: *needed, note }
    }
}

impl Table for DoctorDisplay<'_> {
    fn text(&self, width: TextWidth) -> String {
        let Self { version: _, run_works, findings, crypto } = self;
        let row = |finding: &FindingDisplay<'_>| {
            let answer = match (finding.present, finding.needed) {
                (true, _) => "yes",
                (false, true) => "NO",
                (false, false) => "no",
            };
            [finding.name, answer, finding.note].map(str::to_owned).to_vec()
        };
        let rows: Vec<_> = findings.iter().map(row).collect();
        let mut text = lay_out(&rows, width.wrapped());
        if let Some(crypto) = crypto {
            text += &format!("\n{}\n", crypto.text(width));
        }
        text.push_str(if *run_works {
            "`tacit run` works on this host\n"
        } else {
            "`tacit run` does not work on this host: see the lines with NO\n"
        });
        text
    }
}

#[cfg(test)]
mod tests {
    use super::finding::Presence;
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
        let display = DoctorDisplay {
            version: VERSION,
            run_works: works(&findings),
            findings: findings.iter().map(FindingDisplay::of).collect(),
            crypto: None,
        };
        assert_eq!(
            display.text(TextWidth::Whole),
            "network namespace  NO   user.max_user_namespaces is 0\n\
             cubic              no   a byte costs more\n\
             kernel             yes  Linux 6.18\n\
             `tacit run` does not work on this host: see the lines with NO\n"
        );
        let json = json!(display);
        assert_eq!(json["run-works"], false);
        assert_eq!(json["findings"][0]["needed"], true);
        assert_eq!(json["findings"][2]["note"], "Linux 6.18");
    }
}
