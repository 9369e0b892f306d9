//! Sockets that the launcher was started with, and CMD would inherit.
//!
//! A socket stays in the network namespace that it was made in. One of the caller's would carry
//! CMD's bytes past the agent, in clear, so the launcher refuses to start with one unless the
//! command line names it. UNIX sockets lead to processes of this machine and pass.

use std::fmt;
use std::io;
use std::os::fd::RawFd;

use tacit_sys::descriptor::{self, Inheritable, SocketKind};

/// Why the launcher does not start CMD.
#[derive(Debug)]
pub enum InheritError {
    /// What is open cannot be told.
    Unknown(io::Error),
    /// A socket that nobody named.
    Socket {
        /// Its number.
        number: RawFd,
        /// What it is.
        kind: SocketKind,
    },
    /// One was named that is not there.
    NotOpen(RawFd),
}

impl fmt::Display for InheritError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(error) => write!(f, "cannot tell which files are open: {error}"),
            Self::NotOpen(number) => {
                write!(f, "--inherit-fd {number}: no such file is open here")
            }
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

fn judge(open: &[Inheritable], allowed: &[RawFd]) -> Result<(), InheritError> {
    for number in allowed {
        if !open.iter().any(|one| one.number == *number) {
            return Err(InheritError::NotOpen(*number));
        }
    }
    for one in open {
        match one.socket {
            Some(kind) if kind.leads_out && !allowed.contains(&one.number) => {
                return Err(InheritError::Socket { number: one.number, kind });
            }
            _ => {}
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
            Inheritable { number: 0, socket: None },
            Inheritable { number: 1, socket: Some(kind(false)) },
            Inheritable { number: 7, socket: Some(kind(true)) },
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
        let input = [Inheritable { number: 0, socket: Some(kind(true)) }];
        assert!(judge(&input, &[]).unwrap_err().to_string().contains("0 (standard input)"));
    }
}
