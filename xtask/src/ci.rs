//! `cargo xtask ci`: runs all checks that must pass before a merge. The command is the same on a
//! developer's machine and on a CI server.
//!
//! Each check is a step, and the steps run in order. The command ends at the first failure. It
//! never repeats a step.

use std::time::{Duration, Instant};

use crate::workspace::{self, Outcome, root, target_folder};
use crate::{dependencies, fuzz, tidy};

/// A step.
struct Step {
    name: &'static str,
    run: fn() -> Outcome,
}

/// The steps. Quick ones are first, so that simple mistakes are reported early.
const STEPS: [Step; 7] = [
    Step { name: "fmt", run: fmt },
    Step { name: "tidy", run: tidy::run },
    Step { name: "dependencies", run: dependencies::run },
    Step { name: "clippy", run: clippy },
    Step { name: "test", run: test },
    Step { name: "doc", run: doc },
    Step { name: "fuzz replay", run: fuzz_replay },
];

/// The fuzz targets, which are not a member of the workspace, and the features they need.
const FUZZ: &str = "fuzz/Cargo.toml";
const FUZZ_ENTRIES: &str = "tacit/fuzz,tacit-sys/fuzz,tacit-tls/fuzz,tacit-ipsec/fuzz";

/// Runs every step.
pub(crate) fn run() -> Outcome {
    let started = Instant::now();
    let mut summary = Vec::new();
    for (index, step) in STEPS.iter().enumerate() {
        println!("\n== ci {}/{}: {}", index + 1, STEPS.len(), step.name);
        let begun = Instant::now();
        let outcome = (step.run)();
        let line = format!("{:14} {:>8}", step.name, seconds(begun.elapsed()));
        println!("== {line}");
        match outcome {
            Ok(()) => summary.push(format!("  ok     {line}")),
            Err(message) => {
                summary.push(format!("  FAILED {line}"));
                println!("\n{}", summary.join("\n"));
                return Err(format!("ci failed at `{}`: {message}", step.name));
            }
        }
    }
    println!(
        "\n{}\nci passed: {} steps, {}",
        summary.join("\n"),
        STEPS.len(),
        seconds(started.elapsed())
    );
    Ok(())
}

fn fmt() -> Outcome {
    cargo(&["fmt", "--all", "--check"], None)?;
    cargo(&["fmt", "--manifest-path", FUZZ, "--check"], None)
}

fn clippy() -> Outcome {
    let strict = ["--", "-D", "warnings"];
    let what = ["clippy", "--locked", "--workspace", "--all-targets", "--features", FUZZ_ENTRIES];
    cargo(&[&what[..], &strict].concat(), None)?;
    // The same target directory, because the libraries are checked there already.
    let folder = target_folder();
    let folder = folder.to_string_lossy();
    let what = ["clippy", "--locked", "--manifest-path", FUZZ, "--target-dir", &folder];
    cargo(&[&what[..], &strict].concat(), None)
}

/// A failed test does not keep the others from running: one run reports all failures.
fn test() -> Outcome {
    cargo(&["test", "--locked", "--workspace", "--no-fail-fast"], None)
}

/// Checks that the fuzzer works, and that the committed inputs reach as much code as before.
fn fuzz_replay() -> Outcome {
    fuzz::run(&["canary"])?;
    fuzz::run(&["replay"])
}

fn doc() -> Outcome {
    let args = ["doc", "--locked", "--workspace", "--no-deps"];
    cargo(&args, Some(Variable { name: "RUSTDOCFLAGS", value: "-D warnings" }))
}

/// An environment variable.
struct Variable {
    name: &'static str,
    value: &'static str,
}

/// Runs cargo.
fn cargo(args: &[&str], variable: Option<Variable>) -> Outcome {
    let mut cargo = workspace::cargo();
    cargo
        .args(args)
        .envs(variable.map(|Variable { name, value }| (name, value)))
        .current_dir(root());
    let status = workspace::status(&mut cargo)?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("cargo {} failed: {status}", args.join(" ")))
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
