//! Checks the descriptors that a program would inherit under `tacit run`. With an inherited socket,
//! io_uring or directory, the program could bypass the agent.
//!
//! A socket stays in the network namespace in which it was created. Through an inherited network
//! socket or io_uring, the program could send in clear. So `tacit run` refuses to start the
//! program, unless `--inherit-fd` lists the descriptor. UNIX sockets are allowed, because they lead
//! to processes on this machine.
//!
//! Through an inherited directory, the program could open the files that tacit hides, so
//! `--inherit-fd` must list directories too.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use tacit_sys::descriptor::{self, DescriptorKind, Inheritable, SocketKind};

/// The reason why the launcher does not start the program.
#[derive(Debug)]
pub enum InheritError {
    /// The open descriptors cannot be listed.
    Unknown(io::Error),
    /// A network socket that no `--inherit-fd` names.
    Socket {
        /// The descriptor.
        number: RawFd,
        /// The type and addresses of the socket.
        kind: SocketKind,
    },
    /// An io_uring that no `--inherit-fd` names.
    IoUring(RawFd),
    /// A directory that no `--inherit-fd` names.
    Directory(RawFd),
    /// `--inherit-fd` names a descriptor that is not open.
    NotOpen(RawFd),
    /// The working directory has no path in this mount namespace.
    WorkingDirectory(io::Error),
}

impl fmt::Display for InheritError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(error) => write!(f, "cannot list the open file descriptors: {error}"),
            Self::NotOpen(number) => {
                write!(
                    f,
                    "--inherit-fd {number}: file descriptor {number} is not open\n    fix: remove \
                     the option, or open the descriptor in the process that starts tacit"
                )
            }
            Self::IoUring(number) => write!(
                f,
                "the program would inherit file descriptor {number}: it is an io_uring, whose \
                 operations bypass the policy\n    fix: close the descriptor ({number}>&-), or \
                 allow it with --inherit-fd {number}"
            ),
            Self::Directory(number) => write!(
                f,
                "the program would inherit file descriptor {number}: it is a directory through \
                 which the program could read the policy and its private keys\n    fix: close \
                 the descriptor ({number}>&-), or allow it with --inherit-fd {number}"
            ),
            Self::WorkingDirectory(error) => write!(
                f,
                "cannot determine the working directory: {error}. The directory was removed, or it \
                 is in another mount namespace. In another namespace, tacit cannot hide the policy \
                 and its private keys from the program\n    fix: change to another directory"
            ),
            Self::Socket { number, kind } => {
                write!(f, "the program would inherit file descriptor {number}")?;
                if let Some(name) = ["standard input", "standard output", "standard error"]
                    .get(usize::try_from(*number).unwrap_or(usize::MAX))
                {
                    write!(f, " ({name})")?;
                }
                f.write_str(", a network socket")?;
                if let Some(local) = kind.local {
                    write!(f, " at {local}")?;
                }
                if let Some(peer) = kind.peer {
                    write!(f, ", connected to {peer}")?;
                }
                write!(
                    f,
                    ": this socket bypasses the policy\n    fix: close the descriptor \
                     ({number}>&-), or allow it with --inherit-fd {number}"
                )
            }
        }
    }
}

impl std::error::Error for InheritError {}

/// Refuses descriptors that bypass the policy. Call before the launcher opens any file.
pub(super) fn check(allowed: &[RawFd]) -> Result<(), InheritError> {
    check_open(&descriptor::inheritable().map_err(InheritError::Unknown)?, allowed)
}

/// The path of the working directory. A removed directory has no path; one of another mount
/// namespace has a path that starts with `(unreachable)`, which libc would replace by another.
pub(super) fn working_directory() -> Result<PathBuf, InheritError> {
    let path = rustix::process::getcwd(Vec::new())
        .map_err(|errno| InheritError::WorkingDirectory(errno.into()))?;
    let path = PathBuf::from(OsString::from_vec(path.into_bytes()));
    match path.is_absolute() {
        true => Ok(path),
        false => Err(InheritError::WorkingDirectory(io::ErrorKind::NotFound.into())),
    }
}

fn check_open(open: &[Inheritable], allowed: &[RawFd]) -> Result<(), InheritError> {
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
    fn network_sockets_are_refused_unless_an_option_allows_them() {
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
        let refused = check_open(&open, &[]).unwrap_err().to_string();
        assert_eq!(
            refused,
            "the program would inherit file descriptor 7, a network socket at 127.0.0.1:4000, \
             connected to 127.0.0.1:5432: this socket bypasses the policy\n    \
             fix: close the descriptor (7>&-), or allow it with --inherit-fd 7"
        );
        assert!(check_open(&open, &[7]).is_ok());
        assert!(check_open(&open, &[7, 0]).is_ok());
        assert!(check_open(&open, &[7, 8]).unwrap_err().to_string().contains("--inherit-fd 8"));
        let input = [Inheritable { number: 0, kind: DescriptorKind::Socket(kind(true)) }];
        assert!(check_open(&input, &[]).unwrap_err().to_string().contains("0 (standard input)"));
    }

    #[test]
    fn io_urings_are_refused_unless_an_option_allows_them() {
        let open = [Inheritable { number: 5, kind: DescriptorKind::IoUring }];
        let refused = check_open(&open, &[]).unwrap_err().to_string();
        assert!(refused.contains("file descriptor 5: it is an io_uring, "), "{refused}");
        assert!(check_open(&open, &[5]).is_ok());
    }

    #[test]
    fn directories_are_refused_unless_an_option_allows_them() {
        let open = [Inheritable { number: 5, kind: DescriptorKind::Directory }];
        let refused = check_open(&open, &[]).unwrap_err().to_string();
        assert!(refused.contains("file descriptor 5: it is a directory "), "{refused}");
        assert!(refused.ends_with("--inherit-fd 5"), "{refused}");
        assert!(check_open(&open, &[5]).is_ok());
    }
}
