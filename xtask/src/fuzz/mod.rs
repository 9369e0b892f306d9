//! `cargo xtask fuzz`: fuzzes parsers with libFuzzer and the stable compiler.
//!
//! ```text
//!   fuzz/seeds, fuzz/corpus ──> libFuzzer mutates an input ──> target ──> new code: keep the input
//!                                                                 └─ failure: reduce the input,
//!                                                                    write it to target/fuzz/NAME/
//! ```
//!
//! CI does not search for new inputs. CI runs `replay`. This command executes the inputs in the
//! repository. `replay` fails if the inputs reach less code than `fuzz/coverage.toml` requires.
//! `cover --update` writes both the inputs in the repository and the file `fuzz/coverage.toml`.
//! `canary` checks that the fuzzer finds a known fault.

use std::fs;
use std::path::Path;
use std::time::Instant;

use crate::workspace::Outcome;

mod canary;
mod corpus;
mod engine;
mod figures;
mod program;
mod target;

use corpus::Corpus;
use engine::{Engine, Messages, Until};
use figures::Figures;
pub(crate) use program::{compile, is_compiler};
use target::{TARGETS, Target};

/// Default duration in seconds.
const SECONDS_DEFAULT: u64 = 60;

const USAGE: &str = "\
usage: cargo xtask fuzz NAME [--seconds N | --input FILE]
       cargo xtask fuzz list|canary
       cargo xtask fuzz replay [NAME...]
       cargo xtask fuzz cover [NAME...] [--update]";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
enum Command<'a> {
    List,
    Canary,
    Replay(Vec<&'a str>),
    Cover { names: Vec<&'a str>, then: Then },
    Fuzz { name: &'a str, seconds: u64 },
    Input { name: &'a str, file: &'a Path },
}

/// Runs the command with these arguments.
pub(crate) fn run(words: &[&str]) -> Outcome {
    match parse(words)? {
        Command::List => list(),
        Command::Canary => canary::run(&program::build()?),
        Command::Replay(names) => replay(&Target::named(&names)?),
        Command::Cover { names, then } => cover(&Target::named(&names)?, then),
        Command::Fuzz { name, seconds } => fuzz(Target::find(name)?, seconds),
        Command::Input { name, file } => input(Target::find(name)?, file),
    }
}

fn parse<'a>(words: &'a [&'a str]) -> Result<Command<'a>, String> {
    let is_flag = |word: &&&str| word.starts_with("--");
    match words {
        [] => Err(format!("fuzz needs the name of a target\n{USAGE}")),
        ["list"] => Ok(Command::List),
        ["canary"] => Ok(Command::Canary),
        ["replay", names @ ..] if !names.iter().any(|name| is_flag(&name)) => {
            Ok(Command::Replay(names.to_vec()))
        }
        ["cover", rest @ ..] => {
            let names = rest.iter().filter(|word| **word != "--update").copied();
            let names: Vec<&str> = names.collect();
            match names.iter().find(is_flag) {
                None => {
                    let then = if names.len() < rest.len() { Then::Keep } else { Then::Show };
                    Ok(Command::Cover { names, then })
                }
                Some(flag) => Err(format!("fuzz cover: unknown option `{flag}`\n{USAGE}")),
            }
        }
        [name] if !is_flag(&name) => Ok(Command::Fuzz { name, seconds: SECONDS_DEFAULT }),
        [name, "--input", file] => Ok(Command::Input { name, file: Path::new(file) }),
        [name, "--seconds", seconds] => match seconds.parse() {
            Ok(seconds) if seconds > 0 => Ok(Command::Fuzz { name, seconds }),
            _ => Err(format!("`--seconds {seconds}`: expected a number above 0")),
        },
        [verb, rest @ ..] => {
            Err(format!("fuzz {verb}: unknown argument `{}`\n{USAGE}", rest.join(" ")))
        }
    }
}

fn list() -> Outcome {
    for Target { name, input, bytes_max } in &TARGETS {
        println!("{name:18} {input} (up to {bytes_max} bytes)");
    }
    Ok(())
}

/// Fuzzes until an input fails or the time is over. New inputs are kept for the next run.
fn fuzz(target: &Target, seconds: u64) -> Outcome {
    let program = program::build()?;
    let corpus = Corpus::of(target.name)?;
    let engine = engine(&program, target, &corpus);
    let mut inputs = vec![corpus.found()?];
    inputs.extend(corpus.committed()?);
    let Some(failing) = engine.fuzz(Until::Seconds(seconds), &inputs, Messages::Shown)? else {
        println!("fuzz {}: found no failure in {seconds} s", target.name);
        return Ok(());
    };
    let kept = corpus.keep_failing(&engine.minimise(failing)?)?;
    let bytes = fs::metadata(&kept).map_or(0, |metadata| metadata.len());
    Err(format!(
        "fuzz {name}: the target fails with this input, see the messages above\n  input: {bytes} \
         bytes, {path}\n  reproduce the failure with: cargo xtask fuzz {name} --input {path}",
        name = target.name,
        path = kept.display(),
    ))
}

/// Runs a target once with the content of a file.
fn input(target: &Target, file: &Path) -> Outcome {
    let file =
        file.canonicalize().map_err(|error| format!("cannot find {}: {error}", file.display()))?;
    let program = program::build()?;
    engine(&program, target, &Corpus::of(target.name)?).input(&file)
}

/// Runs the committed inputs of all targets, and then reports all failures.
fn replay(targets: &[&Target]) -> Outcome {
    let program = program::build()?;
    let figures = Figures::read()?;
    let mut failures = Vec::new();
    for target in targets {
        let started = Instant::now();
        let corpus = Corpus::of(target.name)?;
        let edges = engine(&program, target, &corpus).edges(&corpus.committed()?);
        let outcome = edges.and_then(|edges| {
            let name = target.name;
            let seconds = started.elapsed().as_secs_f64();
            println!("fuzz {name:18} {edges:6} edges {seconds:6.1} s");
            if figures::ARE_HERE { figures.check(name, edges) } else { Ok(()) }
        });
        failures.extend(outcome.err());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

/// What to do with the measured coverage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// Print it.
    Show,
    /// Pack the inputs, and write the numbers to coverage.toml.
    Keep,
}

/// Prints the coverage of all inputs and the committed numbers; with `--update` writes both.
fn cover(targets: &[&Target], then: Then) -> Outcome {
    let program = program::build()?;
    let mut figures = Figures::read()?;
    for target in targets {
        let name = target.name;
        let corpus = Corpus::of(name)?;
        let engine = engine(&program, target, &corpus);
        let mut inputs = corpus.committed()?;
        inputs.push(corpus.found()?);
        let edges = engine.edges(&inputs)?;
        let figure = figures.of(name).map_or_else(|| "none".to_owned(), |edges| edges.to_string());
        println!("fuzz {name:18} {edges:6} edges, {figure:>6} in fuzz/coverage.toml");
        if then == Then::Keep {
            let merged = corpus.empty("merged")?;
            engine.merge(&merged, &inputs)?;
            let bytes = corpus.pack(&merged)?;
            let edges = engine.edges(&corpus.committed()?)?;
            println!("fuzz {name:18} {edges:6} edges, archive of {bytes} bytes");
            figures.set(name, edges);
            figures.write()?;
        }
    }
    Ok(())
}

fn engine<'a>(program: &'a Path, target: &'a Target, corpus: &'a Corpus) -> Engine<'a> {
    let Target { name, bytes_max, .. } = *target;
    Engine { program, name, bytes_max, folder: &corpus.folder }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_parsed() {
        let file = Path::new("a.bin");
        for (words, command) in [
            (&["list"][..], Command::List),
            (&["canary"], Command::Canary),
            (&["replay"], Command::Replay(vec![])),
            (&["replay", "dns", "icmp"], Command::Replay(vec!["dns", "icmp"])),
            (&["cover"], Command::Cover { names: vec![], then: Then::Show }),
            (
                &["cover", "dns", "--update"],
                Command::Cover { names: vec!["dns"], then: Then::Keep },
            ),
            (&["dns"], Command::Fuzz { name: "dns", seconds: SECONDS_DEFAULT }),
            (&["dns", "--seconds", "5"], Command::Fuzz { name: "dns", seconds: 5 }),
            (&["dns", "--input", "a.bin"], Command::Input { name: "dns", file }),
        ] {
            assert_eq!(parse(words), Ok(command), "{words:?}");
        }
    }

    #[test]
    fn unknown_arguments_are_refused_with_the_usage() {
        for wrong in [
            &[][..],
            &["--seconds", "5"],
            &["dns", "--seconds"],
            &["dns", "--seed", "1"],
            &["replay", "--update"],
            &["cover", "--seconds"],
            &["list", "dns"],
        ] {
            assert!(parse(wrong).unwrap_err().contains("usage: cargo xtask fuzz"), "{wrong:?}");
        }
        for wrong in ["x", "0", "-1"] {
            assert!(parse(&["dns", "--seconds", wrong]).unwrap_err().contains("expected a number"));
        }
        let error = run(&["nonesuch"]).unwrap_err();
        assert!(
            error.contains("no fuzz target `nonesuch`; the targets are attls, certificate"),
            "{error}"
        );
        assert!(run(&["replay", "dns", "nonesuch"]).unwrap_err().contains("`nonesuch`"));
    }
}
