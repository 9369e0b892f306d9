//! Determines which AES and SHA instructions a CPU has, and which of them the TLS library uses.
//!
//! The library (AWS-LC) chooses its code by the features of the CPU. This module repeats the
//! conditions for this choice. The conditions come from the source code of the AWS-LC version in
//! `Cargo.lock`.

use super::display::InstructionDisplay;

/// An instruction set extension, as `/proc/cpuinfo` names it.
struct Extension {
    name: &'static str,
    purpose: &'static str,
    used: Used,
}

/// When AWS-LC uses an extension.
#[derive(Clone, Copy)]
enum Used {
    /// If the CPU has it.
    Always,
    /// If the CPU has all of these, too.
    With(&'static [&'static str]),
    /// The instruction is not used.
    Never,
}

/// The features that the AES-GCM code with vectors of 512 bits needs.
const VECTOR_AES: &[&str] = &["vaes", "vpclmulqdq", "avx512f", "avx512dq", "avx512bw", "avx512vl"];

const X86_64: [Extension; 6] = [
    Extension { name: "aes", purpose: "AES", used: Used::Always },
    Extension { name: "pclmulqdq", purpose: "GCM", used: Used::Always },
    Extension { name: "vaes", purpose: "AES", used: Used::With(VECTOR_AES) },
    Extension { name: "vpclmulqdq", purpose: "GCM", used: Used::With(VECTOR_AES) },
    Extension { name: "sha_ni", purpose: "SHA-256", used: Used::With(&["ssse3"]) },
    Extension { name: "sha512", purpose: "SHA-384, SHA-512", used: Used::Never },
];

const AARCH64: [Extension; 4] = [
    Extension { name: "aes", purpose: "AES", used: Used::Always },
    Extension { name: "pmull", purpose: "GCM", used: Used::With(&["aes"]) },
    Extension { name: "sha2", purpose: "SHA-256", used: Used::Always },
    Extension { name: "sha512", purpose: "SHA-384, SHA-512", used: Used::Always },
];

/// The message security assist of Linux on Z, for which AWS-LC has no code.
const S390X: [Extension; 1] =
    [Extension { name: "msa", purpose: "AES, GCM, SHA", used: Used::Never }];

/// Returns the extensions that CPUs of an architecture can have, and which of them a CPU with these
/// features has; empty for an unknown architecture.
pub(super) fn of(architecture: &str, features: &[String]) -> Vec<InstructionDisplay> {
    let known: &[Extension] = match architecture {
        "x86_64" => &X86_64,
        "aarch64" => &AARCH64,
        "s390x" => &S390X,
        _ => &[],
    };
    let has = |name: &str| features.iter().any(|feature| feature == name);
    let shown = known.iter().map(|Extension { name, purpose, used }| {
        let present = has(name);
        let is_used = match used {
            Used::Always => true,
            Used::With(others) => others.iter().all(|other| has(other)),
            Used::Never => false,
        };
        InstructionDisplay {
            name: (*name).to_owned(),
            purpose: (*purpose).to_owned(),
            present,
            used: present && is_used,
        }
    });
    shown.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(architecture: &str, features: &str) -> Vec<String> {
        let features: Vec<_> = features.split(' ').map(str::to_owned).collect();
        let shown = of(architecture, &features);
        assert!(shown.iter().all(|one| one.present || !one.used));
        shown.into_iter().filter(|one| one.used).map(|one| one.name).collect()
    }

    #[test]
    fn an_extension_is_used_where_the_library_has_code_for_it() {
        let vectors = "vaes vpclmulqdq avx512f avx512dq avx512bw";
        assert_eq!(used("x86_64", "aes pclmulqdq sse2"), ["aes", "pclmulqdq"]);
        assert_eq!(used("x86_64", &format!("aes pclmulqdq {vectors}")), ["aes", "pclmulqdq"]);
        assert_eq!(
            used("x86_64", &format!("aes pclmulqdq {vectors} avx512vl ssse3 sha_ni sha512")),
            ["aes", "pclmulqdq", "vaes", "vpclmulqdq", "sha_ni"]
        );
        assert_eq!(used("aarch64", "fp aes pmull sha2"), ["aes", "pmull", "sha2"]);
        assert_eq!(used("aarch64", "fp pmull"), [""; 0]);
        assert_eq!(used("s390x", "esan3 msa"), [""; 0]);
        assert!(of("riscv64", &[]).is_empty());
    }

    #[test]
    fn what_a_cpu_lacks_is_shown_as_well() {
        let shown = of("s390x", &["msa".to_owned()]);
        assert_eq!((shown[0].present, shown[0].used), (true, false));
        assert!(of("x86_64", &[]).iter().all(|one| !one.present));
    }
}
