//! Contains a parser with a known fault. The fuzzer must find this fault, as a check that the
//! fuzzer works.

/// Trusts a length after four fixed bytes. Finding it by chance takes billions of inputs; with
/// coverage, the fuzzer keeps an input for each correct byte.
pub(crate) fn canary(input: &[u8]) {
    for (at, wanted) in b"sing".iter().enumerate() {
        if input.get(at) != Some(wanted) {
            return;
        }
    }
    if let Some((&length, rest)) = input.get(4..).and_then(<[u8]>::split_first) {
        assert!(length < 200 || usize::from(length) <= rest.len(), "the canary sings");
    }
}
