//! Finds the policy file of a command: the argument `--policy`, or the variable `TACIT_POLICY`.

use std::path::{Path, PathBuf};

/// The environment variable with the policy file.
pub const POLICY_VARIABLE: &str = "TACIT_POLICY";

/// The error of a command without a policy.
pub const NO_POLICY: &str =
    "no policy was given\n    fix: add --policy FILE, or set the environment variable TACIT_POLICY";

/// The policy file of the command line, otherwise that of the environment.
#[must_use]
pub fn named(flag: Option<&Path>) -> Option<PathBuf> {
    let from_environment = || {
        let value = std::env::var_os(POLICY_VARIABLE)?;
        Some(PathBuf::from(value)).filter(|path| !path.as_os_str().is_empty())
    };
    flag.map(Path::to_owned).or_else(from_environment)
}
