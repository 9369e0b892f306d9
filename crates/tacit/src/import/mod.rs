//! `tacit import`: the policy of another product as a policy of ours.
//!
//! What was found goes to standard error, the policy to `-o` or standard output: all of it, or,
//! after an error, nothing.

use std::process::ExitCode;

use clap::{Args, Subcommand};

mod attls;
mod finish;
mod output;
mod stunnel;

/// The product to import from.
#[derive(Debug, Args)]
pub struct ImportArgs {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// Policies of AT-TLS, the TLS of z/OS
    Attls(attls::AttlsArgs),
    /// Configurations of stunnel
    Stunnel(stunnel::StunnelArgs),
}

/// Runs the verb: 0 if there is a policy, changed or not, 78 if there is none.
#[must_use]
pub fn run(args: &ImportArgs) -> ExitCode {
    match &args.from {
        From::Attls(args) => attls::run(args),
        From::Stunnel(args) => stunnel::run(args),
    }
}
