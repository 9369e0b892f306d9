//! One listening socket of the agent: opened, or taken from another process.
//!
//! A UNIX socket is a file with an owner: one with a listener is never touched, one that
//! has no listener is replaced only if the rule says so, and ours is removed at exit, unless a
//! successor has the socket by then.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_core::policy::UnixSocket;
use tacit_sys::socket::{self, StreamOptions};

use super::holder::Holder;
use crate::address;
use crate::net::Security;
use crate::stream::intercept::{ConnectionSource, Listener};

/// A listening socket that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Where it listens.
    pub(super) address: Address,
    /// Whether what arrives is in clear.
    pub(super) clear: bool,
    /// How its file is made, for a UNIX socket.
    pub(super) unix: UnixSocket,
}

/// A listening socket, and what the agent must do when it closes.
#[derive(Debug)]
pub(super) struct Opened {
    /// What workers accept on.
    pub(super) listener: Arc<Listener>,
    /// How its file was made, if it has one.
    pub(super) unix: UnixSocket,
    /// The file to remove at the end.
    file: Option<SocketFile>,
    /// Whether the file becomes ours to remove when the agent before us is done.
    inherits_file: bool,
}

/// A socket file of ours, told from one that somebody else put in its place.
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
    fn new(wanted: &Wanted, socket: OwnedFd, file: Option<SocketFile>) -> Self {
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

    /// Takes over the file that the agent before us has left.
    pub(super) fn take_file(&mut self) {
        if let Address::Path(path) = &self.listener.address
            && self.inherits_file
        {
            self.file = SocketFile::of(path).ok();
        }
    }

    /// Whether the file is ours, and thus a successor's to take.
    #[must_use]
    pub(super) fn has_file(&self) -> bool {
        self.file.is_some()
    }

    /// Gives the socket file another mode and owner.
    ///
    /// # Errors
    /// The kernel refuses, or there is no user or group of that name.
    pub(super) fn dress_file(&mut self, unix: &UnixSocket) -> Result<(), ListenError> {
        let Address::Path(path) = &self.listener.address else { return Ok(()) };
        if let Err(error) = dress(path, unix) {
            return Err(ListenError::new(&self.listener.address, error.to_string()));
        }
        self.unix = unix.clone();
        Ok(())
    }
}

/// Why an address cannot be listened on.
#[derive(Debug)]
pub struct ListenError {
    address: Address,
    reason: String,
    /// Who has the address, if that is the reason.
    holder: Option<Holder>,
}

impl ListenError {
    pub(super) fn new(address: &Address, reason: String) -> Self {
        Self { address: address.clone(), reason, holder: None }
    }

    /// The kernel's refusal, with what it means here.
    pub(super) fn refused(address: &Address, error: &io::Error) -> Self {
        let holder = (error.kind() == io::ErrorKind::AddrInUse).then(|| Holder::of(address));
        let reason = match error.kind() {
            io::ErrorKind::AddrNotAvailable => format!("{error}: this host has no such address"),
            io::ErrorKind::PermissionDenied => {
                format!("{error}: ports below 1024 need CAP_NET_BIND_SERVICE")
            }
            _ => error.to_string(),
        };
        Self { address: address.clone(), reason, holder }
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot listen on {}: {}", self.address, self.reason)?;
        self.holder.as_ref().map_or(Ok(()), |holder| write!(f, "; {holder}"))
    }
}

impl std::error::Error for ListenError {}

/// Removes the socket file of an agent that is done with it, when it has no listener any more.
pub(super) fn remove_file(address: &Address) {
    if let Address::Path(path) = address {
        // One that is gone already is as good.
        drop(SocketFile::of(path));
    }
}

/// A listening socket that another process opened.
#[derive(Debug)]
pub(super) struct Inherited {
    pub(super) socket: OwnedFd,
    pub(super) file: InheritedFile,
}

/// Who removes the file of a UNIX socket that another process opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InheritedFile {
    /// This agent, from [`Opened::take_file`] on.
    Agent,
    /// The process that opened it.
    Opener,
}

/// Opens a listening socket.
///
/// # Errors
/// Says who holds the address, where that can be known.
pub(super) fn open(
    wanted: &Wanted,
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

/// Takes a listening socket that another process opened; its file stays theirs until
/// [`Opened::take_file`].
///
/// # Errors
/// It cannot be given the options that accepted sockets inherit.
pub(super) fn adopt(
    wanted: &Wanted,
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

fn options(wanted: &Wanted, congestion_control: Option<&str>) -> StreamOptions {
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
    let listen = || socket::listen_unix(&address, unix.mode, || dress(path, unix));
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

/// Gives a socket file its owner and mode.
fn dress(path: &Path, unix: &UnixSocket) -> io::Result<()> {
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

/// The path exists: removes it if it is a socket without a listener and the rule allows it.
fn remove_stale(
    path: &Path,
    address: &socket::SocketAddress,
    unix: &UnixSocket,
) -> Result<(), String> {
    use std::os::unix::fs::FileTypeExt;
    let file = std::fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !file.file_type().is_socket() {
        return Err("the path exists and is not a socket; remove it or use another path".into());
    }
    match socket::dial(address, &StreamOptions::default()) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            return Err(format!("the path exists, and its listener cannot be determined: {error}"));
        }
        Ok(dialled) => {
            let owner = owner(&dialled.socket);
            return Err(format!("{owner} listens there; end it, or use another path"));
        }
        Err(_) => return Err("a process listens there that is too busy to accept".into()),
    }
    if !unix.replace_stale {
        return Err("no process listens on the socket at this path; remove it, or set \
                    replace-stale = true in the rule"
            .into());
    }
    std::fs::remove_file(path).map_err(|error| format!("cannot remove the stale socket: {error}"))
}

fn owner(peer: &OwnedFd) -> String {
    let Ok(credentials) = socket::peer_credentials(peer.as_fd()) else {
        return "another process".into();
    };
    let pid = credentials.pid.as_raw_nonzero();
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let user = address::user_name(credentials.uid.as_raw());
    format!("process {pid} ({}) of user {user}", program.trim())
}

/// What of a file's owner is to be set.
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

/// The number of a name; `None` where no name is written.
fn id_of(name: &str, kind: &str, find: fn(&str) -> Option<u32>) -> io::Result<Option<u32>> {
    if name.is_empty() {
        return Ok(None);
    }
    let absent = || io::Error::new(io::ErrorKind::NotFound, format!("there is no {kind} `{name}`"));
    find(name).map(Some).ok_or_else(absent)
}
