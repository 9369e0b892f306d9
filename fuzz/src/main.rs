//! Runs the fuzz targets with libFuzzer. This program contains all targets, because one target
//! takes as long to build as all targets together.
//!
//! `cargo xtask fuzz` builds and runs the program. The environment variable [`TARGET`] selects the
//! target. The target cannot be an argument, because libFuzzer reads all arguments. If libFuzzer
//! starts the program again, the variable is still set.
#![no_main]

use std::sync::LazyLock;

mod targets;

/// The environment variable with the name of the target.
const TARGET: &str = "TACIT_FUZZ_TARGET";

static CHOSEN: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var(TARGET).unwrap_or_default();
    targets::find(&name).unwrap_or_else(|| panic!("{TARGET}: there is no fuzz target `{name}`"))
});

libfuzzer_sys::fuzz_target!(
    // Checks the name before the first input.
    init: LazyLock::force(&CHOSEN),
    |input: &[u8]| CHOSEN(input)
);
