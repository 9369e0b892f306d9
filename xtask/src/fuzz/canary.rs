//! Checks that the fuzzer works. The fuzzer must find the known fault of a special target. Then it
//! must minimise the input that triggers the fault.

use std::fs;
use std::path::Path;

use super::corpus::Corpus;
use super::engine::{Engine, Messages, Until};
use crate::workspace::Outcome;

const NAME: &str = "canary";
/// The fault must be found within this many runs; it usually takes some hundred thousand.
const RUNS_MAX: u64 = 2_000_000;
const INPUT_BYTES_MAX: usize = 64;
/// Size of the completely reduced input.
const LEFT_BYTES_MAX: u64 = 5;

/// Searches for the fault without inputs, with the same random numbers each time.
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
    println!("fuzz {NAME}: the fuzzer found and reduced the known fault");
    Ok(())
}

fn bytes(file: &Path) -> Result<u64, String> {
    let metadata =
        fs::metadata(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    Ok(metadata.len())
}

/// Judges the result by the size of the reduced input.
fn judge(left: Option<u64>) -> Outcome {
    match left {
        None => {
            Err(format!("fuzz {NAME}: the fuzzer did not find the known fault in {RUNS_MAX} runs"))
        }
        Some(bytes) if bytes > LEFT_BYTES_MAX => Err(format!(
            "fuzz {NAME}: the fuzzer reduced the failing input to {bytes} bytes, but must reduce \
             it to at most {LEFT_BYTES_MAX} bytes"
        )),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_that_is_not_found_or_not_reduced_is_an_error() {
        assert!(judge(None).unwrap_err().contains("did not find"));
        assert!(judge(Some(LEFT_BYTES_MAX + 1)).unwrap_err().contains("but must reduce it"));
        assert_eq!(judge(Some(LEFT_BYTES_MAX)), Ok(()));
    }
}
