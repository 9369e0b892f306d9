//! Runs the fuzz targets with libFuzzer. All targets are in this one program, because building one
//! takes as long as building all.
//!
//! `cargo xtask fuzz` builds and runs it. The environment variable [`TARGET`] selects the target.
//! An argument could not do this, because libFuzzer reads all arguments. libFuzzer may restart
//! itself; the variable is then still set.
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
