//! Tests the packet filters of a captured host. Four evaluators must make the same decisions. The
//! evaluators are the kernel, `tacit explain --packet`, the classifier of tunnels, and a scan of
//! the rules.
//!
//! These tests are in a separate binary, because the binary runs itself again in network
//! namespaces.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]
#![allow(unreachable_pub, reason = "only this test program uses it")]

mod evaluators;
mod kernel;
mod many;
mod policies;
mod random;

use std::process::Command;

/// Runs a test of this binary again, with interfaces and nftables rules of another network
/// namespace. Returns whether this is that second process.
fn inside(test: &str) -> bool {
    const INSIDE: &str = "FILTER_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut again = Command::new("unshare");
    again.args(["--net", "--"]).arg(std::env::current_exe().unwrap());
    let status = again.args(["--exact", "--nocapture", test]).env(INSIDE, "1").status().unwrap();
    assert!(status.success());
    false
}
