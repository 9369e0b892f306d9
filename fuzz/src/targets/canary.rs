//! A parser with a fault, which the fuzzer must find: else it is the fuzzer that is broken.

/// Trusts a length, behind four bytes that must be right. By chance alone it takes billions of
/// inputs to get there; with coverage, each right byte is a step that is kept.
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
