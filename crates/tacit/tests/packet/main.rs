//! Tests the data path of IPsec: packet workers and their TUN devices. The tests create their own
//! network namespaces.
//!
//! In the module `faults`, the peer of a worker sends invalid packets. This peer runs in the same
//! process as the worker. In the module `moving`, the two threads of a worker take turns to receive
//! packets. In the module `bulk`, two workers in separate namespaces transfer the data of
//! unmodified programs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]

mod bulk;
mod driver;
mod faults;
mod filters;
mod flood;
mod keys;
mod lifecycle;
mod moving;
mod peer;

use std::process::Command;

const CHILD: &str = "PACKET_TEST_CHILD";

/// Runs a test of this binary again, with rights over new namespaces. Returns whether this is that
/// second process.
fn in_namespace(name: &str) -> bool {
    if std::env::var_os(CHILD).is_some() {
        rustix::thread::set_no_new_privs(true).unwrap();
        return true;
    }
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60", "unshare", "-rn"]).arg(std::env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

fn ip(command: &str) {
    let status = Command::new("ip").args(command.split(' ')).status().unwrap();
    assert!(status.success(), "ip {command}");
}
