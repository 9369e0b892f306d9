//! Every fuzz target, in one program with libFuzzer: a build of all costs as much as one of one.
//!
//! `cargo xtask fuzz` builds and runs it. The variable [`TARGET`] of the environment chooses, as
//! the arguments are libFuzzer's own and it hands the environment on where it starts itself again.
#![no_main]

use std::sync::LazyLock;

mod targets;

/// Names the target.
const TARGET: &str = "TACIT_FUZZ_TARGET";

static CHOSEN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var(TARGET).unwrap_or_default();
    targets::find(&name).unwrap_or_else(|| panic!("{TARGET}: fuzz/src has no target `{name}`"))
});

libfuzzer_sys::fuzz_target!(
    // A name that is wrong is told before the first input.
    init: LazyLock::force(&CHOSEN),
    |input: &[u8]| CHOSEN(input)
);
