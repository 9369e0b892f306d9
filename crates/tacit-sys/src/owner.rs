//! Finds the process that holds a socket, by the inode number of the socket.
//!
//! The search covers only the descendants of a process that the caller selects. The search takes
//! about two microseconds for each descriptor. So the agent searches only if a rule selects
//! connections by program. The search begins with the newest descriptors, because the socket was
//! opened a moment ago. A process that is not dumpable (such as `ssh-agent`) hides its descriptors,
//! and is not found.
//!
//! Limits: [`DESCENDANTS_MAX`] processes.

use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::RawFd;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, RawDir};

/// The largest number of processes that one search examines.
pub const DESCENDANTS_MAX: usize = 4096;

/// Returns the descendants of `root`, each after its parent.
///
/// If the parent of a process has ended, the process is a descendant of the nearest ancestor that
/// collects orphans.
#[must_use]
pub fn descendants(root: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut next = Some(root);
    let mut searched = 0;
    while let Some(pid) = next {
        found.extend(children(pid));
        found.truncate(DESCENDANTS_MAX);
        next = found.get(searched).copied();
        searched += 1;
    }
    found
}

/// Finds the descendant of `root` that holds the socket with this inode number. Returns `None` if
/// no process that may be examined holds it.
///
/// If several processes hold it (a program and its children), this returns the one nearest to
/// `root`.
#[must_use]
pub fn holder(root: u32, inode: u32) -> Option<u32> {
    if inode == 0 {
        return None;
    }
    // Processes may end during the search. A process that cannot be read holds no socket any more.
    descendants(root).into_iter().find(|pid| holds(*pid, inode).unwrap_or(false))
}

/// Whether the process has the socket open.
///
/// # Errors
/// The process has ended, or must not be examined.
pub fn holds(pid: u32, inode: u32) -> io::Result<bool> {
    let mut is_held = false;
    each_socket(pid, |found| {
        is_held = found == inode;
        if is_held { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(is_held)
}

/// Calls `take` with the inode number of each socket that the process has open, the newest first,
/// until it breaks.
///
/// # Errors
/// As [`holds`].
pub fn each_socket(pid: u32, mut take: impl FnMut(u32) -> ControlFlow<()>) -> io::Result<()> {
    each_descriptor(pid, |found, _| take(found))
}

/// A descriptor of another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldDescriptor {
    /// The process.
    pub pid: u32,
    /// The number of the descriptor.
    pub number: RawFd,
}

/// Finds the descriptor of a descendant of `root` that refers to the socket with this inode number.
#[must_use]
pub fn descriptor(root: u32, inode: u32) -> Option<HeldDescriptor> {
    descendants(root).into_iter().find_map(|pid| {
        let mut number = None;
        // A process that has ended meanwhile holds nothing.
        let _ = each_descriptor(pid, |found, at| {
            number = (found == inode).then_some(at);
            if number.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Some(HeldDescriptor { pid, number: number? })
    })
}

fn each_descriptor(
    pid: u32,
    mut take: impl FnMut(u32, RawFd) -> ControlFlow<()>,
) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptors = rustix::fs::openat(CWD, format!("/proc/{pid}/fd"), flags, Mode::empty())?;
    let mut names = Vec::new();
    let mut space = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&descriptors, &mut space);
    while let Some(entry) = entries.next() {
        names.push(entry?.file_name().to_owned());
    }
    let mut space = [MaybeUninit::uninit(); 32];
    for name in names.iter().rev() {
        let Ok((link, _)) = rustix::fs::readlinkat_raw(&descriptors, name, &mut space) else {
            continue;
        };
        let number = std::str::from_utf8(link)
            .ok()
            .and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
        let at = name.to_str().ok().and_then(|name| name.parse().ok());
        if let (Some(inode), Some(at)) = (number, at)
            && take(inode, at).is_break()
        {
            break;
        }
    }
    Ok(())
}

/// Identifies the network namespace of a process. Returns `None` if the process has ended, or must
/// not be examined.
#[must_use]
pub fn network(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

/// Returns the children of a process, including those that have ended and are not yet reaped.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| {
        let list = std::fs::read_to_string(task.path().join("children"));
        list.ok()
    });
    lists
        .flat_map(|list| list.split_whitespace().flat_map(str::parse).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::{Command, Stdio};

    #[test]
    fn the_grandchild_that_holds_a_socket_is_found() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let inode = |fd: &dyn AsFd| {
            let inode = rustix::fs::fstat(fd.as_fd()).unwrap().st_ino;
            u32::try_from(inode).unwrap()
        };
        let kept = inode(&ours);
        let given = inode(&theirs);
        // The shell stays the parent; `read` in the shell ends when `ours` is dropped.
        let mut shell = Command::new("sh")
            .args(["-c", "(read x; exit 0); exit 0"])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .unwrap();
        let me = std::process::id();
        let found = holder(me, given).unwrap();
        assert!(descendants(me).contains(&found));
        assert_eq!(found, shell.id(), "the nearest of those that hold it");
        assert_eq!(holder(shell.id(), kept), None);
        assert_eq!(holder(me, 0), None);
        let held = descriptor(me, given).unwrap();
        assert_eq!((held.pid, held.number), (shell.id(), 0), "its standard input");
        assert_eq!(descriptor(me, kept + 1_000_000), None);
        drop(ours);
        shell.wait().unwrap();
        assert!(holds(shell.id(), given).is_err());
    }
}
