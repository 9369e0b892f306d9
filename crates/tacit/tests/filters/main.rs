//! Tests the filters of a captured host: the kernel, `tacit explain --packet` and a scan of the
//! rules decide in the same way.
//!
//! This is a separate test binary, because it runs itself again in network namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at what it did not expect"
)]
#![allow(unreachable_pub, reason = "only this test program uses it")]

mod evaluators;
mod kernel;
mod policies;
mod random;
