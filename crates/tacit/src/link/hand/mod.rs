//! `tacit link give` and `tacit link take`: pass a connected socket of one program to another
//! program.
//!
//! ```text
//!   tacit link take NAME -- CMD     listens at NAME.sock
//!   tacit link give ID --to NAME    1. stops the program that has the socket (the giver)
//!                                   2. sends a copy of the socket to NAME.sock
//!                                   3. waits until `take` has started CMD
//!                                   4. continues the giver, or does what `--then` requests
//! ```
//!
//! ID is PID/FD, or the id of a connection. The giver is stopped when `give` copies the socket. So
//! the giver reads no byte during the transfer, and all unread bytes stay in the socket. If CMD
//! cannot be started, the giver continues as before.
//!
//! `give` and `take` must run as the same user: each checks the user of the other (SO_PEERCRED).

pub(super) mod find;
pub(super) mod give;
pub(super) mod take;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tacit_sys::{process, socket};

use crate::control;

/// The maximum size of a message.
const MESSAGE_BYTES_MAX: usize = 4096;
/// The longest name of a taker.
const NAME_BYTES_MAX: usize = 64;

/// The first message of a giver, which comes with the socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Offer {
    /// The process that has the socket, for the log of the taker.
    giver: u32,
}

/// The answer of a taker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Acceptance {
    /// This process has the socket.
    Taken(u32),
    /// No process has it, for this reason.
    Refused(String),
}

/// The directory with the sockets of this user's takers: beside the default control socket.
fn directory() -> PathBuf {
    control::default_path().with_file_name("takers")
}

/// The socket of a taker.
fn path_of(name: &str) -> io::Result<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(plain) {
        let reason = format!("use 1 to {NAME_BYTES_MAX} of the characters A-Z a-z 0-9 . _ -");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    Ok(directory().join(format!("{name}.sock")))
}

/// Creates the directory of takers, if it does not exist.
fn make_directory() -> io::Result<()> {
    let directory = directory();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let found = std::fs::symlink_metadata(&directory)?;
    let is_private =
        found.is_dir() && found.uid() == process::effective_user() && found.mode() & 0o077 == 0;
    if is_private {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "cannot use {directory}, because it is not a private directory of this user (mode 0700): \
         remove {directory}",
        directory = directory.display()
    )))
}

/// Checks that the other side belongs to this user or to root.
fn check_user(stream: impl AsFd) -> io::Result<()> {
    let other = socket::peer_credentials(stream.as_fd())?.uid;
    let user = process::effective_user();
    if other == 0 || other == user {
        return Ok(());
    }
    let reason = format!(
        "the process that gives or takes the socket runs as user {other}, but must run as user \
         {user} or as root"
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}
