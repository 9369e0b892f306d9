//! Seeded fuzzing on the stable compiler: an ordinary program, the same run again from its seed.
//!
//! ```text
//! seeds ──> corpus ──> pick one, mutate ──> target ──> outcome not met before? keep the input
//!                                              └─ panic? minimise, write to target/fuzz/, fail
//! ```
//!
//! There is no instrumentation to tell which code an input reached. A target returns an outcome
//! instead (which error, how many of what), and an input with a new outcome joins the corpus; that
//! is enough to walk into a parser step by step.
//!
//! `smoke` runs every target briefly with a fixed seed, for CI. `canary` is a target with a known
//! fault: if that is not found and made small, the fuzzer itself is broken.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::workspace::Outcome;

mod engine;
mod mutate;
mod starttls;
mod targets;

use engine::{Failure, Fuzzer};
use targets::{CANARY, TARGETS, Target};

/// Runs within which the canary must be found; seeds take some hundred.
const CANARY_RUNS: u64 = 20_000;
const SMOKE_SEED: u64 = 1;
/// What is missing where xtask was built without them.
const TLS_TARGETS: &str =
    "; handshake and session by `cargo run --package xtask --features tls -- fuzz NAME`";
/// How long a target is run where nothing is said.
const SECONDS_DEFAULT: u64 = 60;
/// What is left of the canary's input when all that can go has gone.
const CANARY_BYTES_MIN: usize = 4;

/// `fuzz NAME [--seed N] [--runs N | --seconds N] [--input FILE]`.
pub(crate) fn run(words: &[&str]) -> Outcome {
    match words {
        ["smoke"] => {
            canary(SMOKE_SEED)?;
            TARGETS.iter().try_for_each(|target| {
                fuzz(target, &Options { seed: SMOKE_SEED, until: Until::Runs(target.smoke_runs) })
            })
        }
        ["canary"] => canary(fresh_seed()),
        ["canary", "--seed", seed] => canary(number("--seed", seed)?),
        [name, rest @ ..] => {
            let target = TARGETS.iter().find(|target| target.name == *name).ok_or_else(|| {
                let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                let names = names.join(", ");
                let more = if cfg!(feature = "tls") { "" } else { TLS_TARGETS };
                format!("no fuzz target `{name}`: smoke, canary, {names}{more}")
            })?;
            match rest {
                ["--input", file] => replay(target, Path::new(file)),
                _ => fuzz(target, &Options::parse(rest)?),
            }
        }
        [] => Err("fuzz what? `cargo xtask` shows how".to_owned()),
    }
}

struct Options {
    seed: u64,
    until: Until,
}

/// When a run without a failure ends.
enum Until {
    Runs(u64),
    Elapsed(Duration),
}

impl Options {
    fn parse(mut words: &[&str]) -> Result<Self, String> {
        let until = Until::Elapsed(Duration::from_secs(SECONDS_DEFAULT));
        let mut options = Self { seed: fresh_seed(), until };
        while let [flag, value, rest @ ..] = words {
            match *flag {
                "--seed" => options.seed = number(flag, value)?,
                "--runs" => options.until = Until::Runs(number(flag, value)?),
                "--seconds" => {
                    options.until = Until::Elapsed(Duration::from_secs(number(flag, value)?));
                }
                _ => return Err(format!("fuzz does not know `{flag}`")),
            }
            words = rest;
        }
        match words {
            [] => Ok(options),
            [flag, ..] => Err(format!("`{flag}` wants a value")),
        }
    }
}

/// Runs a target until a failure or the end.
fn fuzz(target: &Target, options: &Options) -> Outcome {
    let seed = options.seed;
    println!("fuzz {}: seed {seed}", target.name);
    let started = Instant::now();
    let mut fuzzer = Fuzzer::new(target, &seeds(target)?, seed);
    let failure = loop {
        let over = match options.until {
            Until::Runs(runs) => fuzzer.runs() >= runs,
            Until::Elapsed(limit) => started.elapsed() >= limit,
        };
        if over {
            break None;
        }
        if let Err(failure) = fuzzer.step() {
            break Some(failure);
        }
    };
    let spent = started.elapsed().as_secs_f64();
    let runs = fuzzer.runs();
    let kinds = fuzzer.outcomes();
    println!("fuzz {}: {runs} runs, {kinds} outcomes, {spent:.1} s", target.name);
    failure.map_or(Ok(()), |failure| report(target, seed, &failure))
}

/// Writes the input of a failure and says how to see it again.
fn report(target: &Target, seed: u64, failure: &Failure) -> Outcome {
    let folder = crate::workspace::root().join("target/fuzz");
    let path = folder.join(format!("{}-{seed}-{}.bin", target.name, failure.input.len()));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&path, &failure.input))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Err(format!(
        "fuzz {name}: {message}\n  input: {bytes} bytes, {path}\n  again: cargo xtask fuzz {name} \
         --input {path}",
        name = target.name,
        message = failure.message,
        bytes = failure.input.len(),
        path = path.display(),
    ))
}

/// Runs a target once, on the bytes of a file, with the panic left to be seen.
fn replay(target: &Target, file: &Path) -> Outcome {
    let input = fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    println!("fuzz {}: outcome {:#018x}", target.name, (target.run)(&input));
    Ok(())
}

/// The fault of the canary must be found, and made as small as it can be.
fn canary(seed: u64) -> Outcome {
    println!("fuzz canary: seed {seed}");
    let mut fuzzer = Fuzzer::new(&CANARY, &seeds(&CANARY)?, seed);
    while fuzzer.runs() < CANARY_RUNS {
        let Err(failure) = fuzzer.step() else { continue };
        if failure.input.len() > CANARY_BYTES_MIN {
            let bytes = failure.input.len();
            return Err(format!("fuzz canary: found, but left at {bytes} bytes"));
        }
        println!("fuzz canary: found after {} runs, as it must be", fuzzer.runs());
        return Ok(());
    }
    Err(format!("fuzz canary: not found in {CANARY_RUNS} runs: the fuzzer is broken"))
}

/// The inputs to start from: those in the code and the files of `fuzz/seeds/NAME/`.
fn seeds(target: &Target) -> Result<Vec<Vec<u8>>, String> {
    let mut seeds: Vec<Vec<u8>> = (target.seeds)();
    let folder = crate::workspace::root().join("fuzz/seeds").join(target.name);
    if folder.is_dir() {
        let wrong = |error| format!("{}: {error}", folder.display());
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&folder).map_err(wrong)? {
            paths.push(entry.map_err(wrong)?.path());
        }
        // In one order everywhere, so that a seed means one run.
        paths.sort();
        for path in paths {
            seeds.push(fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?);
        }
    }
    Ok(seeds)
}

fn number(flag: &str, value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("`{flag} {value}`: not a number"))
}

/// A seed of the moment; it is printed, so that the run can be had again.
fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::from(now.subsec_nanos()) ^ (now.as_secs() << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canary_is_found_from_several_seeds() {
        for seed in 0..5 {
            canary(seed).unwrap();
        }
    }

    #[test]
    fn a_seed_gives_the_same_run_again() {
        let target = TARGETS.first().unwrap();
        let outcomes = || {
            let mut fuzzer = Fuzzer::new(target, &seeds(target).unwrap(), 7);
            (0..500).map(|_| fuzzer.step().unwrap()).collect::<Vec<u64>>()
        };
        assert_eq!(outcomes(), outcomes());
    }

    #[test]
    fn options_are_checked() {
        let options = Options::parse(&["--runs", "5", "--seed", "3"]).unwrap();
        assert!(options.seed == 3 && matches!(options.until, Until::Runs(5)));
        for wrong in [&["--runs"][..], &["--runs", "x"], &["--depth", "1"]] {
            assert!(Options::parse(wrong).is_err());
        }
        assert!(run(&["nonesuch"]).is_err());
    }
}
