//! Determines which capabilities a process needs for its files.

use std::fs::File;
use std::path::PathBuf;

use rustix::fs::{Access, access};
use tacit_sys::sandbox::{self, CapabilitySet};

/// The capability of the log thread: the log may be in another user's directory.
pub const OF_LOG: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

const NAMES: [(CapabilitySet, &str); 8] = [
    (CapabilitySet::NET_BIND_SERVICE, "net_bind_service"),
    (CapabilitySet::DAC_READ_SEARCH, "dac_read_search"),
    (CapabilitySet::DAC_OVERRIDE, "dac_override"),
    (CapabilitySet::CHOWN, "chown"),
    (CapabilitySet::FOWNER, "fowner"),
    (CapabilitySet::NET_ADMIN, "net_admin"),
    (CapabilitySet::NET_RAW, "net_raw"),
    (CapabilitySet::SYS_PTRACE, "sys_ptrace"),
];

/// Calls `find` on a thread that has only the capabilities in `kept`, and returns those that it
/// finds missing.
pub fn with_only(
    kept: CapabilitySet,
    find: impl FnOnce() -> CapabilitySet + Send,
) -> CapabilitySet {
    let find = || match sandbox::keep_capabilities(kept) {
        Ok(()) => find(),
        Err(_) => CapabilitySet::all(),
    };
    std::thread::scope(|scope| scope.spawn(find).join().unwrap_or_else(|_| CapabilitySet::all()))
}

/// The capabilities that the calling thread does not have, and needs to read these files and to
/// write to these directories.
#[must_use]
pub fn missing_for_files(files: &[PathBuf], directories: &[PathBuf]) -> CapabilitySet {
    let mut missing = CapabilitySet::empty();
    let is_refused = |path: &PathBuf| {
        File::open(path).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    if files.iter().any(is_refused) {
        missing |= CapabilitySet::DAC_READ_SEARCH;
    }
    let is_writable = |path: &PathBuf| access(path, Access::WRITE_OK).is_ok();
    if !directories.iter().all(is_writable) {
        missing |= CapabilitySet::DAC_OVERRIDE;
    }
    missing
}

/// The names of capabilities, for displays.
#[must_use]
pub fn names_of(kept: CapabilitySet) -> String {
    let names: Vec<_> =
        NAMES.iter().filter(|(one, _)| kept.contains(*one)).map(|(_, name)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" ") }
}
