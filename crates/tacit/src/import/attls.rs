//! `tacit import attls`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tacit_import::attls::{AttlsOptions, AttlsRequest, import};
use tacit_import::{Files, Findings, Input, Origin};

use super::finish::{OnDisk, OutputArgs, finish, told};
use crate::exit::{EXIT_OK, EXIT_POLICY, print};

/// The files to import, and how.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit import attls pagent.policy                          what the map file must contain
  tacit import attls pagent.policy --map map.toml -o policy.toml
  tacit import attls --effective pagent.policy              all settings in effect

Several files are one policy. Job names, user IDs and key rings have other
names here: the map file translates them, and each missing line is printed.
Each difference is reported as `changed`; an error imports nothing.")]
pub(super) struct AttlsArgs {
    /// The policy files, or a main or image file of the Policy Agent, which names them
    #[arg(required_unless_present = "ipsec", value_name = "FILE")]
    files: Vec<String>,
    /// A file of IP filter rules, which decide before TLS rules do; may be repeated
    #[arg(long, value_name = "FILE")]
    ipsec: Vec<String>,
    /// The directory that replaces / in paths of main and image files
    #[arg(long, value_name = "DIR")]
    root: Option<String>,
    /// The map file: the names of job names, user IDs and key rings on this host
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Keep clients that accept a certificate for any name, without a check of the name
    #[arg(long)]
    keep_no_name_check: bool,
    /// Deny connections that match no rule; otherwise they pass in clear
    #[arg(long)]
    fail_closed: bool,
    /// Print each rule with all its settings, and no policy
    #[arg(long, conflicts_with_all = ["output", "json"])]
    effective: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs it.
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
        },
    };
    let imported = import(&request, &disk, &mut findings);
    if args.effective {
        told(&findings.finish());
        let code = if imported.policy.is_some() { EXIT_OK } else { EXIT_POLICY };
        return print(imported.effective, code);
    }
    finish(&args.output, &disk, imported.policy.as_deref(), findings)
}

/// What the file holds; `None` after an error.
fn read(disk: &OnDisk, file: &str, findings: &mut Findings) -> Option<Vec<u8>> {
    match disk.read(file) {
        Ok(bytes) => Some(bytes),
        Err(error) => {
            let at = Origin { file: file.into(), line: 1 };
            findings.error(&at, format!("cannot be read: {error}"), "name a file that can be read");
            None
        }
    }
}
