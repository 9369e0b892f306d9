//! Opens a network namespace that another program has created, and detects the end of this
//! namespace.
//!
//! ```text
//! ExistingNetwork::open(path)        a file such as /run/netns/NAME
//! ExistingNetwork::of_process(pid)   the namespace of a process, such as a process in a container
//!   .network() .user()               descriptors for `join` and `spawn::spawn`
//!   .has_ended()                     the file was removed or replaced, or the process has ended
//! ```
//!
//! A network namespace belongs to a user namespace. A process without rights over the network
//! namespace must enter that user namespace first. The kernel allows this only to the user who
//! created the user namespace.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::CapabilitySet;

/// A network namespace that exists.
#[derive(Debug)]
pub struct ExistingNetwork {
    network: OwnedFd,
    identity: Identity,
    /// The user namespace to enter first.
    user: Option<OwnedFd>,
    lifetime: NetworkLifetime,
}

/// Device and inode of a file.
type Identity = (u64, u64);

/// What ends together with the namespace.
#[derive(Debug)]
enum NetworkLifetime {
    File(PathBuf),
    /// A process, by its pidfd.
    Process(OwnedFd),
}

/// Why a namespace cannot be opened.
#[derive(Debug)]
pub enum ExistingNetworkError {
    /// The file cannot be opened.
    Open(PathBuf, io::Error),
    /// The file is no network namespace.
    OtherFile(PathBuf),
    /// There is no such process.
    NoProcess(u32, io::Error),
    /// It is the network namespace of this process.
    Own,
    /// The user namespace that it belongs to cannot be opened.
    Owner(io::Error),
}

impl fmt::Display for ExistingNetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(path, error) => {
                write!(
                    f,
                    "cannot open the network namespace {path}: {error}\n    \
                     fix: use a file that `ls /run/netns` lists, and run tacit as the user who \
                     made the namespace, or as root",
                    path = path.display()
                )
            }
            Self::OtherFile(path) => write!(
                f,
                "{path} is not a network namespace\n    fix: use a file in /run/netns, or use \
                 /proc/PID/ns/net; for a container of rootless podman, use --pid with the PID of a \
                 process in the container",
                path = path.display()
            ),
            Self::NoProcess(pid, error) => write!(
                f,
                "cannot open the process {pid}: {error}\n    \
                 fix: use the PID of a running process; `ps -e` lists the processes"
            ),
            Self::Own => f.write_str(
                "the requested network namespace is that of tacit itself\n    \
                 fix: to protect all programs of a host, use `tacit agent --host`",
            ),
            Self::Owner(error) => write!(
                f,
                "cannot open the user namespace of the network namespace: {error}\n    \
                 fix: run tacit as the user who made the network namespace, or as root"
            ),
        }
    }
}

impl std::error::Error for ExistingNetworkError {}

impl ExistingNetwork {
    /// Opens the namespace of a file.
    ///
    /// # Errors
    /// See [`ExistingNetworkError`].
    pub fn open(path: &Path) -> Result<Self, ExistingNetworkError> {
        let lifetime = NetworkLifetime::File(path.to_owned());
        Self::new(path, lifetime)
    }

    /// Opens the namespace of a process.
    ///
    /// # Errors
    /// See [`ExistingNetworkError`].
    pub fn of_process(pid: u32) -> Result<Self, ExistingNetworkError> {
        let failed = |error| ExistingNetworkError::NoProcess(pid, error);
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let process =
            pidfd_open(number, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
        let path = PathBuf::from(format!("/proc/{pid}/ns/net"));
        let opened = Self::new(&path, NetworkLifetime::Process(process))?;
        // Otherwise the path may be that of another process with the same number.
        if opened.has_ended() {
            return Err(failed(io::Error::from_raw_os_error(libc::ESRCH)));
        }
        Ok(opened)
    }

    fn new(path: &Path, lifetime: NetworkLifetime) -> Result<Self, ExistingNetworkError> {
        let failed = |error| ExistingNetworkError::Open(path.to_owned(), error);
        let network = File::open(path).map_err(failed)?;
        if !is_network(network.as_fd()) {
            return Err(ExistingNetworkError::OtherFile(path.to_owned()));
        }
        let own = std::fs::metadata("/proc/self/ns/net").map_err(failed)?;
        let identity = identity(&network.metadata().map_err(failed)?);
        if identity == self::identity(&own) {
            return Err(ExistingNetworkError::Own);
        }
        let network = OwnedFd::from(network);
        let user = owner_to_enter(network.as_fd()).map_err(ExistingNetworkError::Owner)?;
        Ok(Self { network, identity, user, lifetime })
    }

    /// Replaces the descriptor by another one of the same namespace, which a process in it has
    /// opened. The descriptor of a file would keep the file from being unmounted.
    pub fn release_file(&mut self, opened_inside: OwnedFd) {
        self.network = opened_inside;
    }

    /// The namespace.
    #[must_use]
    pub fn network(&self) -> BorrowedFd<'_> {
        self.network.as_fd()
    }

    /// The user namespace to enter first; `None` if this process has rights over the namespace.
    #[must_use]
    pub fn user(&self) -> Option<BorrowedFd<'_>> {
        self.user.as_ref().map(AsFd::as_fd)
    }

    /// Whether the file or the process that it was opened by is gone. The kernel keeps the
    /// namespace as long as this object exists.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        match &self.lifetime {
            NetworkLifetime::File(path) => {
                std::fs::metadata(path).map_or(true, |at_path| identity(&at_path) != self.identity)
            }
            NetworkLifetime::Process(process) => {
                let mut polled = [PollFd::new(process, PollFlags::IN)];
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
            }
        }
    }
}

fn identity(file: &std::fs::Metadata) -> Identity {
    (file.dev(), file.ino())
}

/// The user namespace that a process without rights over the network namespace has to enter.
fn owner_to_enter(network: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let has_rights = |sets: rustix::thread::CapabilitySets| {
        sets.effective.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN)
    };
    if rustix::thread::capabilities(None).is_ok_and(has_rights) {
        return Ok(None);
    }
    // SAFETY: takes no pointers; the descriptor is open.
    let owner = unsafe { libc::ioctl(network.as_raw_fd(), NS_GET_USERNS) };
    if owner < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    let owner = File::from(unsafe { OwnedFd::from_raw_fd(owner) });
    let is_own =
        identity(&owner.metadata()?) == identity(&std::fs::metadata("/proc/self/ns/user")?);
    Ok((!is_own).then(|| owner.into()))
}

fn is_network(file: BorrowedFd<'_>) -> bool {
    // SAFETY: takes no pointers; the descriptor is open. Other files refuse the request.
    let kind = unsafe { libc::ioctl(file.as_raw_fd(), NS_GET_NSTYPE) };
    kind == libc::CLONE_NEWNET
}

const NS_GET_USERNS: libc::Ioctl = rustix::ioctl::opcode::none(0xb7, 1) as libc::Ioctl;
const NS_GET_NSTYPE: libc::Ioctl = rustix::ioctl::opcode::none(0xb7, 3) as libc::Ioctl;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_network_of_others_is_opened() {
        let opened = |path: &str| ExistingNetwork::open(Path::new(path)).unwrap_err();
        assert!(matches!(opened("/proc/self/ns/net"), ExistingNetworkError::Own));
        assert!(matches!(opened("/proc/self/ns/user"), ExistingNetworkError::OtherFile(_)));
        assert!(matches!(opened("/dev/null"), ExistingNetworkError::OtherFile(_)));
        assert!(matches!(opened("/proc/self/ns/none"), ExistingNetworkError::Open(..)));
        let own = ExistingNetwork::of_process(std::process::id()).unwrap_err();
        assert!(matches!(own, ExistingNetworkError::Own), "{own}");
        let none = ExistingNetwork::of_process(0).unwrap_err();
        assert!(matches!(none, ExistingNetworkError::NoProcess(0, _)), "{none}");
    }
}
