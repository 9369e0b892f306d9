//! stub
use std::process::ExitCode;
/// stub
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {}
/// stub
pub fn run(_: &ExplainArgs) -> ExitCode {
    ExitCode::SUCCESS
}
