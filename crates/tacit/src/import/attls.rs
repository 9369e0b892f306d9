//! Defines the options of `tacit import attls`, and reads its input files.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tacit_import::attls::{AttlsOptions, AttlsRequest, import};
use tacit_import::{Files, Findings, Input, Origin};

use super::finish::{OnDisk, OutputArgs, finish, print_diagnostics};
use crate::exit::{EXIT_OK, EXIT_POLICY, print};

/// The options of `tacit import attls`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit import attls pagent.policy                          prints the lines to add to the map file
  tacit import attls pagent.policy --map map.toml -o policy.toml
  tacit import attls --effective pagent.policy              prints all settings in effect

Several files form one policy. Jobs, users and key rings of z/OS have other names on this host. The
map file (--map) translates them; the command prints each line that you must add to this file. The
command reports every difference in behaviour as `changed`. After an error it writes no policy.")]
pub(super) struct AttlsArgs {
    /// AT-TLS policy files, or a main or image file of the z/OS Policy Agent that lists these files
    #[arg(required_unless_present = "ipsec", value_name = "FILE")]
    files: Vec<String>,
    /// File of IP filter rules, which are evaluated before TLS rules; may be repeated
    #[arg(long, value_name = "FILE")]
    ipsec: Vec<String>,
    /// Directory to prepend to the paths in main and image files of the Policy Agent
    #[arg(long, value_name = "DIR")]
    root: Option<String>,
    /// Map file: translates job names, user IDs and key rings to names on this host
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// If an AT-TLS rule does not check the server's name, do not check the name in the imported
    /// rule either
    #[arg(long)]
    keep_no_name_check: bool,
    /// Deny connections that match no rule, instead of permitting them in clear as AT-TLS does
    #[arg(long)]
    fail_closed: bool,
    /// Write a policy for `tacit agent --host`, which captures the connections of this host
    #[arg(long, conflicts_with = "ipsec")]
    host: bool,
    /// Print each rule with all its settings, and write no policy
    #[arg(long, conflicts_with_all = ["output", "json"])]
    effective: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
pub(super) fn run(args: &AttlsArgs) -> ExitCode {
    let disk = OnDisk::below(args.root.as_deref());
    let mut findings = Findings::default();
    let map_name = args.map.as_ref().map(|map| map.display().to_string());
    let map_bytes = map_name.as_ref().and_then(|file| read(&disk, file, &mut findings));
    let map = match (&map_name, &map_bytes) {
        (Some(file), Some(bytes)) => Some(Input { file, bytes }),
        _ => None,
    };
    let request = AttlsRequest {
        policies: &args.files,
        filters: &args.ipsec,
        root: args.root.as_deref(),
        map,
        options: AttlsOptions {
            keep_no_name_check: args.keep_no_name_check,
            fail_closed: args.fail_closed,
            host: args.host,
        },
    };
    let imported = import(&request, &disk, &mut findings);
    if args.effective {
        print_diagnostics(&findings.finish());
        let code = if imported.policy.is_some() { EXIT_OK } else { EXIT_POLICY };
        return print(imported.effective, code);
    }
    finish(&args.output, &disk, imported.policy.as_deref(), findings)
}

/// Reads a file; `None` after an error.
fn read(disk: &OnDisk, file: &str, findings: &mut Findings) -> Option<Vec<u8>> {
    match disk.read(file) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let at = Origin { file: file.into(), line: 1 };
            let fix = "use a file that you can read, or run this command as another user";
            findings.error(&at, format!("cannot read the file: {error}"), fix);
            None
        }
    }
}
