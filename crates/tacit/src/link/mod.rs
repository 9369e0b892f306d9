//! Lets programs without a network use sockets of another environment, which has a network. For
//! example, the programs are in a container. `tacit run --link` starts each program (a *run*), and
//! `tacit link serve` opens the sockets.
//!
//! ```text
//!   no network                                       network
//!   CMD ── captured ──> agent of the run ── UNIX ──> tacit link serve ── socket ──> kernel
//!                             ^                           │
//!                             └──── the socket itself ────┘
//! ```
//!
//! A link has a side without a network and a side with a network. If both sides run on one kernel,
//! one server passes the socket itself (SCM_RIGHTS) and moves no bytes. If the sides run on two
//! kernels, each side has a server ([`server`]). Between the two servers, each socket has a stream
//! of its own (`wire`). Between hosts, this stream is TCP with TLS. To a virtual machine, this
//! stream is vsock or a UNIX socket.
//!
//! A program cannot get a socket of another kernel. Instead, the server on the program's kernel
//! opens two connected sockets in a separate network namespace (`mirror`). The program gets the
//! first socket, which has the same addresses as the socket on the other kernel. The server copies
//! the bytes between the second socket and the stream.
//!
//! Two policies must permit a socket. The policy of the run decides first, and applies TLS. Then
//! the policy of the server decides, with `[link.NAME]` and the rules with `link`.
//!
//! Trust: the kernel reports the user at the other end of the UNIX socket. `tacit link serve` and
//! `tacit run` must run as the same user. The other side also reports facts about itself, such as
//! its host name. The agent shows these facts, but never uses them for decisions.

pub mod command;
mod enabled;
mod hand;
mod init;
mod mirror;
mod query;
pub mod server;
mod start;
mod status;
mod wire;

use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tacit_sys::process;

use crate::control;
use crate::run::link::choice::SOCKET_SUFFIX;

/// The environment variable with the link of `tacit run`.
pub const LINK_VARIABLE: &str = "TACIT_LINK";
/// Permission bits of the group and of all other users.
const OTHERS: u32 = 0o077;

/// The directory with the sockets of this user's links: beside the default control socket.
#[must_use]
pub fn directory() -> PathBuf {
    control::default_path().with_file_name("links")
}

/// The socket of a link: a path if the word contains `/`, otherwise the link with this name.
#[must_use]
pub fn path_of(word: &Path) -> PathBuf {
    if word.as_os_str().as_encoded_bytes().contains(&b'/') {
        return word.to_owned();
    }
    let mut name = word.as_os_str().to_owned();
    name.push(SOCKET_SUFFIX);
    directory().join(name)
}

/// Creates the directory of links, if it does not exist.
///
/// # Errors
/// The directory cannot be created, or another user owns it or may enter it.
pub(crate) fn make_directory() -> io::Result<()> {
    let directory = directory();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let found = std::fs::symlink_metadata(&directory)?;
    let is_private =
        found.is_dir() && found.uid() == process::effective_user() && found.mode() & OTHERS == 0;
    if is_private {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{directory} must be a directory that belongs to this user and has mode 0700: remove \
         {directory}, or set `listen` in [link.NAME]",
        directory = directory.display()
    )))
}
