//! Uses the stable compiler to build the program that contains all fuzz targets.
//!
//! Only tacit's own crates are compiled with the arguments for coverage. So the numbers in
//! `fuzz/coverage.toml` do not depend on the versions of libraries. To compile a crate, cargo calls
//! xtask in place of the compiler. If the crate is not one of tacit's own, xtask removes the
//! arguments for coverage. Then xtask calls the compiler ([`compile`]).

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::workspace::{cargo, root, status, target_folder};

/// The environment variable that selects this mode.
const COMPILER: &str = "TACIT_XTASK_COMPILER";

/// The compiler arguments for coverage.
const FLAGS: [&str; 5] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
];

/// Builds the program; quick if it is up to date.
pub(crate) fn build() -> Result<PathBuf, String> {
    let this = std::env::current_exe().map_err(|error| format!("cannot find xtask: {error}"))?;
    let folder = target_folder().join("fuzz-build");
    let mut cargo = cargo();
    cargo
        .args(["build", "--quiet", "--locked", "--release", "--manifest-path", "fuzz/Cargo.toml"])
        .arg("--target-dir")
        .arg(&folder)
        .env("RUSTC_WRAPPER", this)
        .env(COMPILER, "1")
        // This variable has priority over all other sources of flags.
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f"))
        .current_dir(root());
    match status(&mut cargo)?.success() {
        true => Ok(folder.join("release/tacit-fuzz")),
        false => {
            Err("cannot build the fuzz targets: see the messages above; libFuzzer needs g++"
                .to_owned())
        }
    }
}

/// Whether cargo calls this program instead of the compiler.
pub(crate) fn is_compiler() -> bool {
    std::env::var_os(COMPILER).is_some()
}

/// Executes the compiler, whose path and arguments are the arguments of this program.
pub(crate) fn compile() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let compiler = words.next().unwrap_or_else(|| "rustc".into());
    let error = Command::new(&compiler).args(for_crate(words.collect())).exec();
    eprintln!("xtask: cannot run {}: {error}", compiler.display());
    ExitCode::FAILURE
}

/// The arguments for a crate: without those for coverage, unless it is one of tacit's crates.
fn for_crate(words: Vec<OsString>) -> Vec<OsString> {
    let name = words.iter().skip_while(|word| *word != "--crate-name").nth(1);
    let is_ours = name.is_some_and(|name| name.as_encoded_bytes().starts_with(b"tacit"));
    let is_flag = |word: &OsStr| FLAGS.iter().any(|flag| word == *flag);
    words.into_iter().filter(|word| is_ours || !is_flag(word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The name and version of each package of a `Cargo.lock`.
    fn packages(path: &str) -> BTreeSet<(String, String)> {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        let value = |package: &str, key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim_matches('"').to_owned())
        };
        let package = |text| Some((value(text, "name = ")?, value(text, "version = ")?));
        text.split("[[package]]").filter_map(package).collect()
    }

    #[test]
    fn targets_are_built_with_the_libraries_of_the_workspace() {
        let workspace = packages("Cargo.lock");
        let fuzz = packages("fuzz/Cargo.lock");
        assert!(fuzz.iter().any(|(name, _)| name == "rustls"));
        for (name, version) in &fuzz {
            let is_shared = workspace.iter().any(|(other, _)| other == name);
            let is_same = workspace.contains(&(name.clone(), version.clone()));
            assert!(
                is_same || !is_shared,
                "{name} {version}: cargo update --manifest-path fuzz/Cargo.toml --package {name} \
                 --precise the version of the workspace"
            );
        }
    }

    #[test]
    fn only_our_own_crates_are_instrumented() {
        let kept = |name: &str| {
            let words =
                ["--crate-name", name, "--edition=2024", FLAGS[0], FLAGS[1], "-Copt-level=2"];
            for_crate(words.map(OsString::from).to_vec()).len()
        };
        assert_eq!((kept("tacit_core"), kept("tacit_fuzz"), kept("rustls")), (6, 6, 4));
        assert_eq!(kept("build_script_build"), 4);
        assert_eq!(for_crate(vec!["-vV".into(), FLAGS[0].into()]), ["-vV"]);
    }
}
