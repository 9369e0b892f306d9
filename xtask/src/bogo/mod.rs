//! `cargo xtask bogo`: tests tacit's TLS with BoringSSL's test runner.
//!
//! ```text
//!   sources of the runner ──go──> runner ──> bogo_shim (an example of tacit-tls), once per test
//!   disabled.json ─────────────────^         the tests that are not run, and why
//! ```
//!
//! The environment variable [`CHECKOUT`] names the directory with the sources of the runner. If
//! this variable is not set, the sources come from the crate [`CRATE`], which cargo downloads but
//! does not build. Go downloads the runner's dependencies.
//!
//! The runner compares alerts and data, but not error messages. If a test uses an option that the
//! shim does not support, the test is skipped and counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{Outcome, cargo, root, status, target_folder};

/// The environment variable with a checkout of BoringSSL.
const CHECKOUT: &str = "BORINGSSL";
/// The crate that contains the sources, and its version.
const CRATE: &str = "boring-sys";
const CRATE_VERSION: &str = "5.1.0";

/// The parts of the sources that the runner needs.
const PARTS: [&str; 4] = ["go.mod", "go.sum", "ssl/test/runner", "util/testresult"];
const RUNNER: &str = "ssl/test/runner";

/// The runner's keys, and the openssl options that generate them.
const KEYS: [(&str, &[&str]); 7] = [
    ("rsa_1024_key.pem", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:1024"]),
    ("rsa_2048_key.pem", &["-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]),
    ("ecdsa_p256_key.pem", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
    ("ecdsa_p384_key.pem", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"]),
    ("ecdsa_p521_key.pem", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"]),
    ("ed25519_key.pem", &["-algorithm", "ED25519"]),
    ("channel_id_key.pem", &["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]),
];

/// Builds runner and shim, and runs the tests that match the patterns, or all.
pub(crate) fn run(words: &[&str]) -> Outcome {
    let folder = target_folder().join("bogo");
    let sources = folder.join("sources");
    let from = match std::env::var_os(CHECKOUT) {
        Some(checkout) => PathBuf::from(checkout),
        None => fetched(&folder.join("fetch"))?,
    };
    copy_sources(&from, &sources)?;
    make_keys(&sources.join(RUNNER))?;
    let runner = folder.join("runner");
    go(&sources, &["test", "-c", "-o", &text(&runner), "./ssl/test/runner"])?;
    build_shim()?;
    let config = root().join("xtask/src/bogo/disabled.json");
    let mut command = Command::new(&runner);
    command.current_dir(sources.join(RUNNER));
    command.arg("-shim-path").arg(target_folder().join("debug/examples/bogo_shim"));
    command.arg("-shim-config").arg(config);
    command.args(["-pipe", "-allow-unimplemented", "-loose-errors"]);
    if !words.is_empty() {
        command.arg("-test").arg(words.join(";"));
    }
    let output =
        command.output().map_err(|error| format!("cannot run BoringSSL's test runner: {error}"))?;
    let passed = report(&String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    if output.status.success() && passed > 0 {
        Ok(())
    } else {
        Err("bogo failed: see the messages above".to_owned())
    }
}

/// Prints the failed tests and the counts; returns the number of passed tests.
fn report(output: &str) -> usize {
    let count = |word: &str| output.lines().filter(|line| line.starts_with(word)).count();
    let [passed, skipped] = ["PASSED (", "UNIMPLEMENTED ("].map(count);
    let is_good = |line: &&str| line.starts_with("PASSED (") || line.starts_with("UNIMPLEMENTED (");
    output.lines().filter(|line| !is_good(line)).for_each(|line| println!("{line}"));
    println!("bogo: {passed} passed, {} failed, {skipped} skipped", count("FAILED ("));
    passed
}

/// Downloads the crate with cargo; returns the path of its copy of BoringSSL.
fn fetched(folder: &Path) -> Result<PathBuf, String> {
    let manifest = format!(
        "[package]\nname = \"fetch\"\nedition = \"2024\"\n[workspace]\n\
         [dependencies]\n{CRATE} = \"={CRATE_VERSION}\"\n"
    );
    write(&folder.join("src/lib.rs"), "")?;
    write(&folder.join("Cargo.toml"), &manifest)?;
    let mut cargo = cargo();
    cargo.args(["metadata", "--format-version", "1", "--quiet"]).current_dir(folder);
    let output = cargo.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let end = format!("{CRATE}-{CRATE_VERSION}/Cargo.toml");
    let path = printed.split('"').find(|word| word.ends_with(&end)).map(Path::new);
    let home = path.and_then(Path::parent).ok_or_else(|| {
        format!(
            "cargo cannot download {CRATE} {CRATE_VERSION}, which contains the runner's sources: \
             set {CHECKOUT} to a checkout of BoringSSL"
        )
    })?;
    Ok(home.join("deps/boringssl"))
}

fn copy_sources(from: &Path, to: &Path) -> Outcome {
    // Removes files of other sources.
    let _ = fs::remove_dir_all(to);
    for part in PARTS {
        copy(&from.join(part), &to.join(part))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Outcome {
    let fail = |error| format!("cannot copy {}: {error}", from.display());
    if !from.is_dir() {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(fail)?;
        }
        // Reading and writing makes the copy writable even if the original is not.
        return fs::write(to, fs::read(from).map_err(fail)?).map_err(fail);
    }
    for entry in fs::read_dir(from).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        copy(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

/// Generates the keys that the sources lack.
fn make_keys(folder: &Path) -> Outcome {
    for (name, words) in KEYS {
        let path = folder.join(name);
        if path.exists() {
            continue;
        }
        let mut openssl = Command::new("openssl");
        openssl.args(["genpkey", "-quiet"]).args(words).arg("-out").arg(&path);
        let ended = openssl.status().map_err(|error| format!("cannot run openssl: {error}"))?;
        if !ended.success() {
            return Err(format!("openssl cannot generate {name}"));
        }
    }
    Ok(())
}

fn go(folder: &Path, words: &[&str]) -> Outcome {
    let ended = Command::new("go").args(words).current_dir(folder).status();
    match ended {
        Ok(ended) if ended.success() => Ok(()),
        Ok(ended) => Err(format!("go cannot build the runner: {ended}")),
        Err(error) => Err(format!("cannot run go, which builds the runner: {error}: install Go")),
    }
}

fn build_shim() -> Outcome {
    let mut cargo = cargo();
    cargo.args(["build", "--locked", "--quiet", "--package", "tacit-tls"]);
    cargo.args(["--example", "bogo_shim"]).current_dir(root());
    let ended = status(&mut cargo)?;
    if ended.success() { Ok(()) } else { Err(format!("cannot build bogo_shim: {ended}")) }
}

fn write(path: &Path, content: &str) -> Outcome {
    let fail = |error| format!("cannot write {}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(fail)?;
    }
    fs::write(path, content).map_err(fail)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
