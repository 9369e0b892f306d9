//! Defines the options of `tacit import stunnel`, and reads its input files.

use std::process::ExitCode;

use clap::Args;
use tacit_import::Findings;
use tacit_import::stunnel::{StunnelOptions, import};

use super::finish::{OnDisk, OutputArgs, finish};

/// The options of `tacit import stunnel`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit import stunnel /etc/stunnel/stunnel.conf -o policy.toml
  tacit import stunnel /etc/stunnel/*.conf | less

Each service becomes a rule. The command reports every difference in behaviour as `changed`. After
an error it writes no policy.")]
pub(super) struct StunnelArgs {
    /// Configuration files; each is for one stunnel process
    #[arg(required = true, value_name = "FILE")]
    files: Vec<String>,
    /// If a service does not verify the server's certificate, do not verify it in the imported rule
    /// either
    #[arg(long)]
    keep_no_verification: bool,
    /// If a service does not check the server's name, do not check the name in the imported rule
    /// either
    #[arg(long)]
    keep_no_name_check: bool,
    /// Import services that use OCSP; the imported rules do not use OCSP, because tacit does not
    /// support OCSP
    #[arg(long)]
    without_ocsp: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs the command.
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
