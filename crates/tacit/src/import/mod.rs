//! `tacit import`: converts the configuration of another product to a policy of tacit.
//!
//! The command writes the policy to standard output or to the file of `--output`, and errors and
//! warnings to standard error. After an error, the command writes no policy.

use std::process::ExitCode;

use clap::{Args, Subcommand};

mod attls;
mod finish;
mod stunnel;

/// The options of `tacit import`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit import stunnel /etc/stunnel/stunnel.conf -o policy.toml
  tacit import attls pagent.policy --map map.toml -o policy.toml")]
pub struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Import policies of AT-TLS, the TLS support of z/OS
    Attls(attls::AttlsArgs),
    /// Import configuration files of stunnel
    Stunnel(stunnel::StunnelArgs),
}

/// Runs the command. The exit status is 0 if a policy was written, and 78 after an error.
#[must_use]
pub fn run(args: &ImportArgs) -> ExitCode {
    match &args.from {
        From::Attls(args) => attls::run(args),
        From::Stunnel(args) => stunnel::run(args),
    }
}
