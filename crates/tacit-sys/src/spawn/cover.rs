//! Hides files and directories from a program: mounts an empty file or directory over each of them,
//! in the program's mount namespace.
//!
//! If a hidden file is replaced, its mount disappears. Then a process in the program's mount
//! namespace must hide the new file ([`cover`]).

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::descriptor;

/// A file or directory to hide.
pub(super) struct Hidden {
    pub(super) target: CString,
    is_directory: bool,
}

impl Hidden {
    /// `None` if the path does not exist, because it needs no hiding, or if it may not be examined,
    /// because the program cannot read it either.
    pub(super) fn new(path: &Path) -> io::Result<Option<Self>> {
        let Ok(kind) = fs::metadata(path) else { return Ok(None) };
        let target = CString::new(path.as_os_str().as_bytes())?;
        Ok(Some(Self { target, is_directory: kind.is_dir() }))
    }

    /// Hides the path. Makes only a system call, because it runs between `fork` and `exec`.
    pub(super) fn cover(&self) -> io::Result<()> {
        if self.is_directory { cover_directory(&self.target) } else { cover_file(&self.target) }
    }
}

fn cover_directory(target: &CStr) -> io::Result<()> {
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount(c"none", target, c"tmpfs", flags, c"size=4k,mode=755")
}

fn cover_file(target: &CStr) -> io::Result<()> {
    mount(c"/dev/null", target, c"", libc::MS_BIND, c"")
}

fn mount(
    source: &CStr,
    target: &CStr,
    kind: &CStr,
    flags: libc::c_ulong,
    data: &CStr,
) -> io::Result<()> {
    // SAFETY: four live C strings.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, data.as_ptr().cast())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Moves the process into a copy of its mount namespace, so that its changes are not visible to
/// other processes. Makes only system calls.
pub(super) fn own_mounts() -> io::Result<()> {
    // SAFETY: takes no pointers; the process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let none = std::ptr::null();
    let root = c"/".as_ptr();
    let flags = libc::MS_REC | libc::MS_SLAVE;
    // SAFETY: the target is a live C string; a change of propagation reads nothing else.
    let result = unsafe { libc::mount(none, root, none, flags, none.cast()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a descriptor of the mount namespace of this process. Makes only system calls.
pub(super) fn send_own_mounts(socket: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mounts = rustix::fs::open(c"/proc/self/ns/mnt", flags, Mode::empty())?;
    descriptor::send(socket, &[0], &[mounts.as_fd()]).map(drop)
}

/// Hides a file in the mount namespace of this process, unless it is hidden already. Directories
/// and paths that do not exist are skipped.
///
/// # Errors
/// The error of `mount`.
pub fn cover(path: &Path) -> io::Result<()> {
    let Ok(data) = fs::metadata(path) else { return Ok(()) };
    let is_covered = data.file_type().is_char_device() && data.rdev() == NULL_DEVICE;
    if is_covered || data.is_dir() {
        return Ok(());
    }
    cover_file(&CString::new(path.as_os_str().as_bytes())?)
}

/// `/dev/null`.
const NULL_DEVICE: u64 = libc::makedev(1, 3);
