//! All fuzz targets in one program with libFuzzer, because building one target takes as long as
//! building all.
//!
//! `cargo xtask fuzz` builds and runs it. The environment variable [`TARGET`] selects the target,
//! because all arguments belong to libFuzzer, which passes the environment on if it restarts
//! itself.
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
