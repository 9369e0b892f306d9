//! What the launcher was started with, and CMD would inherit: sockets, io_urings, directories.
//!
//! A socket stays in the network namespace that it was made in. One of the caller's would carry
//! CMD's bytes past the agent, in clear, so the launcher refuses to start with one unless the
//! command line names it. UNIX sockets lead to processes of this machine and pass.
//!
//! So would the sockets that the operations of an io_uring of the caller's make, and its kernel
//! thread can poll the ring without a system call.
//!
//! An open directory stays in the mount namespace that it was opened in, where the files of the
//! policy are not hidden. The launcher refuses to start with one in the same way, and in a working
//! directory of another mount namespace.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use tacit_sys::descriptor::{self, DescriptorKind, Inheritable, SocketKind};

/// Why the launcher does not start CMD.
#[derive(Debug)]
pub enum InheritError {
    /// What is open cannot be told.
    Unknown(io::Error),
    /// A socket that the command line does not name.
    Socket {
        /// Its number.
        number: RawFd,
        /// What it is.
        kind: SocketKind,
    },
    /// An io_uring that the command line does not name.
    IoUring(RawFd),
    /// A directory that the command line does not name.
    Directory(RawFd),
    /// One was named that is not there.
    NotOpen(RawFd),
    /// The working directory has no name here.
    WorkingDirectory(io::Error),
}

impl fmt::Display for InheritError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(error) => write!(f, "cannot tell which files are open: {error}"),
            Self::NotOpen(number) => {
                write!(f, "--inherit-fd {number}: no such file is open here")
            }
            Self::IoUring(number) => write!(
                f,
                "file descriptor {number} is an io_uring, whose operations would go past the \
                 policy: close it ({number}>&-), or let the program have it with --inherit-fd \
                 {number}"
            ),
            Self::Directory(number) => write!(
                f,
                "file descriptor {number} is a directory, opened outside, through which the \
                 program would reach the policy and its keys: close it ({number}>&-), or let the \
                 program have it with --inherit-fd {number}"
            ),
            Self::WorkingDirectory(error) => write!(
                f,
                "cannot determine the working directory ({error}): it was removed, or is in \
                 another mount namespace, where the policy and its keys cannot be hidden from the \
                 program; change to another directory first"
            ),
            Self::Socket { number, kind } => {
                write!(f, "file descriptor {number}")?;
                if let Some(name) = ["standard input", "standard output", "standard error"]
                    .get(usize::try_from(*number).unwrap_or(usize::MAX))
                {
                    write!(f, " ({name})")?;
                }
                f.write_str(" is a network socket")?;
                if let Some(local) = kind.local {
                    write!(f, " at {local}")?;
                }
                if let Some(peer) = kind.peer {
                    write!(f, ", connected to {peer}")?;
                }
                write!(
                    f,
                    ", which would carry the program's bytes past the policy: close it \
                     ({number}>&-), or let the program have it with --inherit-fd {number}"
                )
            }
        }
    }
}

impl std::error::Error for InheritError {}

/// Refuses what would go round the policy. Call before the launcher opens anything itself.
pub(super) fn check(allowed: &[RawFd]) -> Result<(), InheritError> {
    judge(&descriptor::inheritable().map_err(InheritError::Unknown)?, allowed)
}

/// The working directory. One that was removed has no path, and one of another mount namespace has
/// one that begins with `(unreachable)`, as the kernel says it; libc looks for another path then.
pub(super) fn working_directory() -> Result<PathBuf, InheritError> {
    let path = rustix::process::getcwd(Vec::new())
        .map_err(|errno| InheritError::WorkingDirectory(errno.into()))?;
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    match path.is_absolute() {
        true => Ok(path),
        false => Err(InheritError::WorkingDirectory(io::ErrorKind::NotFound.into())),
    }
}

fn judge(open: &[Inheritable], allowed: &[RawFd]) -> Result<(), InheritError> {
    for number in allowed {
        if !open.iter().any(|one| one.number == *number) {
            return Err(InheritError::NotOpen(*number));
        }
    }
    for one in open {
        match one.kind {
            _ if allowed.contains(&one.number) => {}
            DescriptorKind::Socket(kind) if kind.leads_out => {
                return Err(InheritError::Socket { number: one.number, kind });
            }
            DescriptorKind::IoUring => return Err(InheritError::IoUring(one.number)),
            DescriptorKind::Directory => return Err(InheritError::Directory(one.number)),
            DescriptorKind::Socket(_) | DescriptorKind::Other => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_network_sockets_that_nobody_named_are_refused() {
        let kind = |leads_out| SocketKind {
            leads_out,
            local: "127.0.0.1:4000".parse().ok(),
            peer: "127.0.0.1:5432".parse().ok(),
        };
        let open = [
            Inheritable { number: 0, kind: DescriptorKind::Other },
            Inheritable { number: 1, kind: DescriptorKind::Socket(kind(false)) },
            Inheritable { number: 7, kind: DescriptorKind::Socket(kind(true)) },
        ];
        let refused = judge(&open, &[]).unwrap_err().to_string();
        assert_eq!(
            refused,
            "file descriptor 7 is a network socket at 127.0.0.1:4000, connected to \
             127.0.0.1:5432, which would carry the program's bytes past the policy: close it \
             (7>&-), or let the program have it with --inherit-fd 7"
        );
        assert!(judge(&open, &[7]).is_ok());
        assert!(judge(&open, &[7, 0]).is_ok());
        assert!(judge(&open, &[7, 8]).unwrap_err().to_string().contains("--inherit-fd 8"));
        let input = [Inheritable { number: 0, kind: DescriptorKind::Socket(kind(true)) }];
        assert!(judge(&input, &[]).unwrap_err().to_string().contains("0 (standard input)"));
    }

    #[test]
    fn only_io_urings_that_nobody_named_are_refused() {
        let open = [Inheritable { number: 5, kind: DescriptorKind::IoUring }];
        let refused = judge(&open, &[]).unwrap_err().to_string();
        assert!(refused.starts_with("file descriptor 5 is an io_uring, "), "{refused}");
        assert!(judge(&open, &[5]).is_ok());
    }

    #[test]
    fn only_directories_that_nobody_named_are_refused() {
        let open = [Inheritable { number: 5, kind: DescriptorKind::Directory }];
        let refused = judge(&open, &[]).unwrap_err().to_string();
        assert!(refused.starts_with("file descriptor 5 is a directory, "), "{refused}");
        assert!(refused.ends_with("--inherit-fd 5"), "{refused}");
        assert!(judge(&open, &[5]).is_ok());
    }
}
