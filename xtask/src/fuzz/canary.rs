//! A target with a fault that is known: if that is not found and made small, the fuzzer is broken.

use std::fs;
use std::path::Path;

use super::corpus::Corpus;
use super::engine::{Engine, Messages, Until};
use crate::workspace::Outcome;

const NAME: &str = "canary";
/// Runs within which it must be found; it takes some hundred thousand.
const RUNS_MAX: u64 = 2_000_000;
const INPUT_BYTES_MAX: usize = 64;
/// What is left of its input when all that can go has gone.
const LEFT_BYTES_MAX: u64 = 5;

/// Looks for the fault, from nothing and by the same runs each time.
pub(crate) fn run(program: &Path) -> Outcome {
    let corpus = Corpus::of(NAME)?;
    let folder = &corpus.folder;
    let engine = Engine { program, name: NAME, bytes_max: INPUT_BYTES_MAX, folder };
    let found = engine.fuzz(Until::Runs(RUNS_MAX), &[corpus.empty("corpus")?], Messages::Hidden)?;
    let left = match found {
        Some(input) => Some(bytes(&engine.minimise(input)?)?),
        None => None,
    };
    judge(left)?;
    println!("fuzz {NAME}: its fault is found and made small, as it must be");
    Ok(())
}

fn bytes(file: &Path) -> Result<u64, String> {
    let metadata = fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(metadata.len())
}

/// What was found, by the bytes that are left of it.
fn judge(left: Option<u64>) -> Outcome {
    match left {
        None => Err(format!("fuzz {NAME}: not found in {RUNS_MAX} runs: the fuzzer is broken")),
        Some(bytes) if bytes > LEFT_BYTES_MAX => Err(format!(
            "fuzz {NAME}: found, but left at {bytes} bytes: the fuzzer does not make inputs small"
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_that_is_not_found_or_not_made_small_is_an_error() {
        assert!(judge(None).unwrap_err().contains("not found"));
        assert!(judge(Some(LEFT_BYTES_MAX + 1)).unwrap_err().contains("does not make"));
        assert_eq!(judge(Some(LEFT_BYTES_MAX)), Ok(()));
    }
}
