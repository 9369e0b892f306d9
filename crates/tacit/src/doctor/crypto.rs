//! Reports for `tacit doctor` which AES and SHA instructions the CPUs have. Also reports the speed
//! of each cipher suite.

use super::finding::{Finding, Presence};
use crate::cpus::{self, CpusError, CryptoDisplay};

/// The results of the checks.
pub(super) struct Crypto {
    pub(super) findings: Vec<Finding>,
    pub(super) display: Option<CryptoDisplay>,
}

/// Reads the instructions and measures the suites.
pub(super) fn look() -> Crypto {
    match cpus::crypto(&[]) {
        Ok(display) => {
            let findings = ["AES", "SHA"].map(|purpose| instructions(&display, purpose)).to_vec();
            Crypto { findings, display: Some(display) }
        }
        Err(error) => Crypto { findings: vec![not_measured(&error)], display: None },
    }
}

fn not_measured(error: &CpusError) -> Finding {
    Finding::wanted("cipher suites", Presence::Missing, format!("not measured: {error}"))
}

/// The instructions in use for a purpose.
fn instructions(display: &CryptoDisplay, purpose: &'static str) -> Finding {
    let used = display.instructions.iter().filter(|one| one.used);
    let names: Vec<_> =
        used.filter(|one| one.purpose.contains(purpose)).map(|one| one.name.as_str()).collect();
    let name = if purpose == "AES" { "AES instructions" } else { "SHA instructions" };
    let note = match (names.as_slice(), purpose) {
        ([], "AES") => {
            "tacit uses no AES instructions of this CPU: suites with AES need much more CPU time \
             than suites with CHACHA20; compare the speed of the suites below"
                .to_owned()
        }
        ([], _) => {
            "tacit uses no SHA instructions of this CPU: handshakes need a little more CPU time"
                .to_owned()
        }
        (names, _) => format!("{} in use", names.join(" and ")),
    };
    Finding::wanted(name, Presence::when(!names.is_empty()), note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpus::InstructionDisplay;

    #[test]
    fn instructions_that_are_not_used_count_as_missing() {
        let instruction = |name: &str, purpose: &str, used| InstructionDisplay {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            present: true,
            used,
        };
        let instructions_of = vec![
            instruction("aes", "AES", true),
            instruction("vaes", "AES", true),
            instruction("sha512", "SHA-512", false),
        ];
        let display = CryptoDisplay { instructions: instructions_of, suites: Vec::new() };
        let aes = instructions(&display, "AES");
        assert_eq!((aes.is_present(), aes.note.as_str()), (true, "aes and vaes in use"));
        assert!(!instructions(&display, "SHA").is_present());
    }
}
