//! Opens a listening socket of the agent, or takes it over from another process.
//!
//! The agent never replaces the file of a UNIX socket on which a process listens. If no process
//! listens, the agent replaces the file only if the rule has `replace-stale`. When the agent ends,
//! it removes its socket files, unless a successor has taken over the sockets.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_core::policy::UnixSocket;
use tacit_sys::socket::{self, StreamOptions};

use super::listening_process::ListeningProcess;
use crate::address;
use crate::exit::with_fix;
use crate::net::Security;
use crate::stream::intercept::{ConnectionSource, Listener};

/// A listening socket that the policy or the command line requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequiredListener {
    /// The address.
    pub(super) address: Address,
    /// Whether clients of this socket send clear text.
    pub(super) clear: bool,
    /// The owner and mode of the file, for a UNIX socket.
    pub(super) unix: UnixSocket,
}

/// A listening socket, and what the agent must do when it closes.
#[derive(Debug)]
pub(super) struct Opened {
    /// The listener on which workers accept.
    pub(super) listener: Arc<Listener>,
    /// The owner and mode of the file, for a UNIX socket.
    pub(super) unix: UnixSocket,
    /// The socket file, which this agent removes at its end.
    file: Option<SocketFile>,
    /// Whether this agent becomes responsible for the file when its predecessor is released.
    inherits_file: bool,
}

/// A socket file of this agent, identified by its inode: another process may have replaced it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|file| (file.dev(), file.ino()) == (self.device, self.inode));
        if ours {
            // Another process may have removed it first.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Opened {
    fn new(wanted: &RequiredListener, socket: OwnedFd, file: Option<SocketFile>) -> Self {
        let listener = Arc::new(Listener {
            address: wanted.address.clone(),
            socket: Arc::new(socket),
            security: if wanted.clear { Security::Clear } else { Security::Tls },
            source: ConnectionSource::Forward,
        });
        Self { listener, unix: wanted.unix.clone(), file, inherits_file: false }
    }

    /// Leaves the socket file to a successor.
    pub(super) fn leave_file(&mut self) {
        if let Some(file) = self.file.take() {
            std::mem::forget(file);
        }
    }

    /// Takes over the socket file of the predecessor.
    pub(super) fn take_file(&mut self) {
        if let Address::Path(path) = &self.listener.address
            && self.inherits_file
        {
            self.file = SocketFile::of(path).ok();
        }
    }

    /// Whether this agent removes the file, so that a successor must take it over.
    #[must_use]
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Changes the mode and owner of the socket file.
    ///
    /// # Errors
    /// The kernel refuses the change, or there is no user or group of that name.
    pub(super) fn set_file_owner(&mut self, unix: &UnixSocket) -> Result<(), ListenError> {
        let Address::Path(path) = &self.listener.address else { return Ok(()) };
        if let Err(error) = set_owner(path, unix) {
            return Err(ListenError::new(&self.listener.address, error.to_string()));
        }
        self.unix = unix.clone();
        Ok(())
    }
}

/// Why the agent cannot listen on an address.
#[derive(Debug)]
pub struct ListenError {
    address: Address,
    reason: String,
    /// The process that listens on the address, if that is the reason.
    holder: Option<ListeningProcess>,
}

impl ListenError {
    pub(super) fn new(address: &Address, reason: String) -> Self {
        Self { address: address.clone(), reason, holder: None }
    }

    /// An error of the kernel, with an explanation.
    pub(super) fn refused(address: &Address, error: &io::Error) -> Self {
        let holder =
            (error.kind() == io::ErrorKind::AddrInUse).then(|| ListeningProcess::of(address));
        let reason = match error.kind() {
            io::ErrorKind::AddrNotAvailable => {
                format!(
                    "{error}: no interface of this host has the address\n    \
                     fix: use one of the addresses that `ip address` lists"
                )
            }
            io::ErrorKind::PermissionDenied => {
                format!(
                    "{error}\n    fix: to listen on a port below 1024, run the agent as root or \
                     with CAP_NET_BIND_SERVICE"
                )
            }
            _ => error.to_string(),
        };
        Self { address: address.clone(), reason, holder }
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!("cannot listen on {}: {}", self.address, self.reason);
        if let Some(holder) = &self.holder {
            text.push_str(&format!("; {holder}"));
        }
        f.write_str(&with_fix(&text, "use another address in the policy"))
    }
}

impl std::error::Error for ListenError {}

/// Removes the socket file of a predecessor, if no process listens on it any more.
pub(super) fn remove_file(address: &Address) {
    if let Address::Path(path) = address {
        // The file may have been removed already.
        drop(SocketFile::of(path));
    }
}

/// A listening socket that another process opened.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) socket: OwnedFd,
    pub(super) file: InheritedFile,
}

/// Which process removes the file of a UNIX socket that another process opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InheritedFile {
    /// This agent, after [`Opened::take_file`].
    Agent,
    /// The process that opened it.
    Opener,
}

/// Opens a listening socket.
///
/// # Errors
/// The agent cannot listen on the address. The error names the process that does, if it is known.
pub(super) fn open(
    wanted: &RequiredListener,
    congestion_control: Option<&str>,
) -> Result<Opened, ListenError> {
    let address = &wanted.address;
    let options = options(wanted, congestion_control);
    if let Address::Path(path) = address {
        let fail = |reason: String| ListenError::new(address, reason);
        let PathSocket { socket, file } = open_path(path, &wanted.unix).map_err(fail)?;
        return Ok(Opened::new(wanted, socket, Some(file)));
    }
    let refused = |error: io::Error| ListenError::refused(address, &error);
    let kernel = address::to_socket(address).map_err(refused)?;
    let socket = socket::listen(&kernel, &options.for_address(&kernel)).map_err(refused)?;
    Ok(Opened::new(wanted, socket, None))
}

/// Takes over a listening socket that another process opened. That process removes the file until
/// [`Opened::take_file`] is called.
///
/// # Errors
/// The options that accepted sockets inherit cannot be set.
pub(super) fn adopt(
    wanted: &RequiredListener,
    inherited: Inherited,
    congestion_control: Option<&str>,
) -> Result<Opened, ListenError> {
    let Inherited { socket, file } = inherited;
    let options = options(wanted, congestion_control);
    address::to_socket(&wanted.address)
        .and_then(|at| socket::adopt(socket.as_fd(), &options.for_address(&at)))
        .map_err(|error| ListenError::new(&wanted.address, error.to_string()))?;
    let inherits_file = file == InheritedFile::Agent;
    Ok(Opened { inherits_file, ..Opened::new(wanted, socket, None) })
}

fn options(wanted: &RequiredListener, congestion_control: Option<&str>) -> StreamOptions {
    StreamOptions {
        congestion_control: congestion_control.map(str::to_owned),
        reset_on_exit: wanted.clear,
    }
}

/// A UNIX socket of this agent, with its file.
struct PathSocket {
    socket: OwnedFd,
    file: SocketFile,
}

fn open_path(path: &Path, unix: &UnixSocket) -> Result<PathSocket, String> {
    let address =
        address::to_socket(&Address::Path(path.to_owned())).map_err(|error| error.to_string())?;
    let listen = || socket::listen_unix(&address, unix.mode, || set_owner(path, unix));
    let socket = match listen() {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            remove_stale(path, &address, unix)?;
            listen().map_err(|error| error.to_string())?
        }
        other => other.map_err(|error| error.to_string())?,
    };
    let file = SocketFile::of(path).map_err(|error| error.to_string())?;
    Ok(PathSocket { socket, file })
}

/// Sets the owner and mode of a socket file.
fn set_owner(path: &Path, unix: &UnixSocket) -> io::Result<()> {
    if let Some(owner) = &unix.owner {
        let owner = FileOwner::parse(owner)?;
        std::os::unix::fs::chown(path, owner.user, owner.group)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(unix.mode))
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        let file = std::fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: file.dev(), inode: file.ino() })
    }
}

/// Removes an existing file if it is a socket without a listener and the rule allows that.
fn remove_stale(
    path: &Path,
    address: &socket::SocketAddress,
    unix: &UnixSocket,
) -> Result<(), String> {
    use std::os::unix::fs::FileTypeExt;
    let file = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !file.file_type().is_socket() {
        return Err(
            "the file exists and is not a socket\n    fix: remove the file, or use another path"
                .into(),
        );
    }
    match socket::dial(address, &StreamOptions::default()) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            return Err(format!(
                "the file exists, and the agent cannot determine whether a process listens on it: \
                 {error}\n    fix: remove the file, or use another path"
            ));
        }
        Ok(dialled) => {
            let owner = owner(&dialled.socket);
            return Err(format!(
                "{owner} listens on the socket file\n    \
                 fix: end that process, or use another path"
            ));
        }
        Err(_) => {
            return Err("a process listens on the socket file, and its accept queue is full\n    \
                 fix: end that process, or use another path"
                .into());
        }
    }
    if !unix.replace_stale {
        return Err("the socket file exists, and no process listens on it\n    \
                    fix: remove the file, or set replace-stale = true in the rule"
            .into());
    }
    std::fs::remove_file(path)
        .map_err(|error| format!("cannot remove the stale socket file: {error}"))
}

fn owner(peer: &OwnedFd) -> String {
    let Ok(credentials) = socket::peer_credentials(peer.as_fd()) else {
        return "another process".into();
    };
    let user = address::user_name(credentials.uid);
    let Some(pid) = credentials.pid else {
        return format!("a process of user {user} in another PID namespace");
    };
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({}) of user {user}", program.trim())
}

/// The owner and group to set; `None` leaves them unchanged.
struct FileOwner {
    user: Option<u32>,
    group: Option<u32>,
}

impl FileOwner {
    /// Reads `user`, `user:group` or `:group`.
    fn parse(owner: &str) -> io::Result<Self> {
        let (user, group) = owner.split_once(':').unwrap_or((owner, ""));
        let user = id_of(user, "user", address::user_id)?;
        let group = id_of(group, "group", address::group_id)?;
        Ok(Self { user, group })
    }
}

/// The number of a user or group name; `None` if the name is empty.
fn id_of(name: &str, kind: &str, find: fn(&str) -> Option<u32>) -> io::Result<Option<u32>> {
    if name.is_empty() {
        return Ok(None);
    }
    let absent = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("this host has no {kind} `{name}`: correct the name, or write the numeric ID"),
        )
    };
    find(name).map(Some).ok_or_else(absent)
}
