//! Tests the namespace module on the running kernel: the tests start a program in its own network
//! namespace.
//!
//! ```text
//! test --starts--> launcher --> helper: creates the namespace and its sockets
//!                      |-----> program inside: executes its commands
//! ```
//!
//! All these processes execute this test binary. Each process reads its role from the variable
//! `ROLE` before `main` runs. At this time the process has one thread, and only such a process can
//! create a user namespace. If root runs the tests, every scenario runs twice: as root and as an
//! ordinary user. If a kernel or a container refuses namespaces, the tests fail and print the error
//! of the library.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking, also in the processes that it starts"
)]

mod agent;
mod launcher;
mod program;
mod scenarios;
mod tunnels;

use std::ffi::CStr;
use std::os::unix::process::CommandExt;
use std::process::Command;

const ROLE: &str = "TACIT_TEST_ROLE";
const ORDERS: &str = "TACIT_TEST_ORDERS";

/// A user who owns no files here.
const ORDINARY_USER: u32 = 54_321;

/// Runs before `main`, while the process has one thread.
// SAFETY: the section holds functions that the C runtime calls once each, and this is one.
#[used]
#[unsafe(link_section = ".init_array")]
static TAKE_ROLE: extern "C" fn() = take_role;

extern "C" fn take_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let orders = std::env::var(ORDERS).unwrap_or_default();
    match role.as_str() {
        "launcher" => launcher::run(&orders),
        "helper" => launcher::help(&orders),
        "rejoin" => launcher::rejoin(&orders),
        "program" => program::run(&orders),
        other => panic!("no such role: {other}"),
    }
    // SAFETY: ends this process, which has nothing left to do.
    unsafe { libc::_exit(0) }
}

/// The command that runs this binary in another role.
fn role(role: &str, orders: &str) -> Command {
    // Not by its path, because another user may have no access to the directories above it.
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, role).env(ORDERS, orders);
    command
}

/// Makes `/dev/net/tun` usable by every user, as it is on most systems, and changes the user.
fn become_ordinary(user: u32) -> std::io::Result<()> {
    use rustix::fs::{FileType, Mode, makedev, mknodat};
    // SAFETY: takes no pointers; the process has one thread.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE)?;
    mount(Some(c"tmpfs"), c"/dev/net", 0)?;
    let all = Mode::from_raw_mode(0o666);
    mknodat(rustix::fs::CWD, c"/dev/net/tun", FileType::CharacterDevice, all, makedev(10, 200))?;
    rustix::fs::chmod(c"/dev/net/tun", all)?;
    // SAFETY: the list is empty.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: takes no pointers.
    check(unsafe { libc::setgid(user) })?;
    // SAFETY: takes no pointers.
    check(unsafe { libc::setuid(user) })
}

fn mount(kind: Option<&CStr>, at: &CStr, flags: libc::c_ulong) -> std::io::Result<()> {
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the strings are terminated and live; without data.
    check(unsafe { libc::mount(kind, at.as_ptr(), kind, flags, std::ptr::null()) })
}

fn check(result: libc::c_int) -> std::io::Result<()> {
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs the scenario as every kind of user that the tests may use.
fn as_each_user(scenario: &str) {
    let is_root = rustix::process::geteuid().is_root();
    for user in [None, Some(ORDINARY_USER)] {
        if user.is_some() && !is_root {
            continue;
        }
        let mut command = role("launcher", scenario);
        command.current_dir("/");
        if let Some(user) = user {
            // SAFETY: the function only makes system calls.
            unsafe { command.pre_exec(move || become_ordinary(user)) };
        }
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{scenario} as {user:?}: {}\n{said}", done.status);
    }
}
