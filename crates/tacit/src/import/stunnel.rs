//! `tacit import stunnel`.

use std::process::ExitCode;

use clap::Args;
use tacit_import::Findings;
use tacit_import::stunnel::{StunnelOptions, import};

use super::finish::{OnDisk, OutputArgs, finish};

/// The files to import, and how.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit import stunnel /etc/stunnel/stunnel.conf -o policy.toml
  tacit import stunnel /etc/stunnel/*.conf | less

Each service becomes a rule. Each difference is reported as `changed`; an error
imports nothing.")]
pub(super) struct StunnelArgs {
    /// The configurations, one for each stunnel
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// Keep clients that do not verify the server
    #[arg(long)]
    keep_no_verification: bool,
    /// Keep clients that accept a certificate for any name, without a check of the name
    #[arg(long)]
    keep_no_name_check: bool,
    /// Import services that use OCSP, without it: tacit does not support OCSP
    #[arg(long)]
    without_ocsp: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs it.
pub(super) fn run(args: &StunnelArgs) -> ExitCode {
    let options = StunnelOptions {
        keep_no_verification: args.keep_no_verification,
        keep_no_name_check: args.keep_no_name_check,
        without_ocsp: args.without_ocsp,
    };
    let disk = OnDisk::default();
    let mut findings = Findings::default();
    let policy = import(&args.files, &disk, &options, &mut findings);
    finish(&args.output, &disk, policy.as_deref(), findings)
}
