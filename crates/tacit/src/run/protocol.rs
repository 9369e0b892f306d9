//! What launcher, helper and agent say to each other: frames over UNIX sockets.
//!
//! ```text
//!   launcher ── Enrolment + sockets ──> agent      a run begins
//!            <─────── Terms ─────────              captured from here on; CMD may start
//!            ── Line + descriptor ────>            a new helper, the old one is dead
//!            ──────── (closed) ───────>            the run has ended
//!
//!   agent    ──────── Request ────────> helper     one at a time on each line
//!            <── Reply (+ descriptor) ─
//! ```
//!
//! A frame is the length of its JSON text as four bytes, then the text; descriptors ride with the
//! length. Unknown words are errors: all three are of one version, or newer agents know what older
//! launchers and helpers say.
//!
//! Limits: [`FRAME_BYTES_MAX`]; an agent takes less from launchers and helpers, which may be
//! another user's: [`LAUNCHER_BYTES_MAX`], [`ANSWER_BYTES_MAX`].

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tacit_core::flow::Protocol;
use tacit_core::policy::Captured;
use tacit_core::refusal::SocketKind;
use tacit_sys::descriptor::{self, Received};

use super::host::HostAddresses;

/// A frame at most: 65,536 captured boxes of IPv6 fit.
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a launcher says at most: a name that is too long is to be told so.
pub const LAUNCHER_BYTES_MAX: usize = 256 * 1024;
/// What a helper reports at once at most: the path of a program, escaped.
pub const REPORT_BYTES_MAX: usize = 32 * 1024;
/// What a helper answers at most: programs that listen on every port there is.
pub const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// What a launcher says to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FromLauncher {
    /// A run; its sockets ride along.
    Enrol(Enrolment),
    /// A new helper serves the line that rides along.
    Line,
}

/// What a launcher says of its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Enrolment {
    /// What displays call it.
    pub name: String,
    /// The launcher's process.
    pub pid: u32,
    /// Which sockets ride along.
    #[serde(default)]
    pub sockets: SocketSet,
    /// Whether its helper takes [`Request::Hide`].
    #[serde(default)]
    pub covers_files: bool,
}

/// Which sockets of a run its launcher makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SocketSet {
    /// As an older launcher makes them: programs are connected before their destination has
    /// answered.
    #[default]
    Connected,
    /// With those that hold SYNs.
    Held,
}

/// What an agent answers to an enrolment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToLauncher {
    /// The run is taken; CMD may start.
    Terms(Terms),
    /// It is not, and why.
    Refused(String),
}

/// On what terms CMD may start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Terms {
    /// Files and directories that are none of CMD's business, by each of their names.
    pub hide: Vec<PathBuf>,
    /// CPUs that are set aside.
    #[serde(default)]
    pub keep_off: Vec<usize>,
    /// The one CPU to be on.
    #[serde(default)]
    pub cpu: Option<usize>,
}

/// What an agent asks of the helper inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// Give the namespace these address families; further ones may come later.
    Families {
        /// IPv4.
        v4: bool,
        /// IPv6.
        v6: bool,
    },
    /// The same, together with the host's interfaces and addresses as they are now.
    Network {
        /// IPv4.
        v4: bool,
        /// IPv6.
        v6: bool,
        /// The host.
        host: HostAddresses,
    },
    /// Change what is captured.
    Change {
        /// No longer.
        remove: Vec<Captured>,
        /// From now on.
        add: Vec<Captured>,
    },
    /// Capture this and nothing else.
    Replace(Vec<Captured>),
    /// Make sockets that may stand in for any address.
    Socket {
        /// Their transport.
        protocol: Protocol,
        /// Their family.
        ipv6: bool,
        /// How many, at most [`SOCKETS_AT_ONCE_MAX`](crate::net::pool::SOCKETS_AT_ONCE_MAX);
        /// fewer may come.
        #[serde(default = "one")]
        count: usize,
    },
    /// Who holds these sockets?
    Owners(Vec<Ends>),
    /// Does a program wait there for the answer to a SYN that no program takes?
    Connecting(Ends),
    /// On which addresses do programs listen for TCP?
    Listening,
    /// How much CPU time have the programs used?
    Cpu,
    /// Keep these files hidden from programs, beside what the launcher named and in place of what
    /// was asked for before. Refused if one of them is in sight.
    Hide(Vec<PathBuf>),
    /// Make a further line, for a successor of the agent.
    Line,
    /// Report on this line from now on, in [`Report`]s, which kinds of sockets programs are
    /// refused; nothing more is asked on it.
    Reports,
}

/// What a helper reports on a line that is for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// Programs were refused a kind of sockets.
    Refused(RefusedSocket),
    /// They are refused some without a report: the kernel makes no listener for it.
    Unreported,
}

/// A kind of sockets that programs were refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RefusedSocket {
    /// The kind.
    pub socket: SocketKind,
    /// How many times since the last report of it.
    pub times: u64,
    /// The latest program, where that can be seen.
    pub program: Option<PathBuf>,
}

/// What an agent asks for that does not know of several.
fn one() -> usize {
    1
}

/// Both ends of a program's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Ends {
    /// Its transport.
    pub protocol: Protocol,
    /// The program's end.
    pub program: SocketAddr,
    /// The end it talks to.
    pub peer: SocketAddr,
}

/// Who holds a socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Owner {
    /// The process nearest to the launcher that holds it.
    pub pid: u32,
    /// What it runs, where that can be seen.
    pub program: Option<PathBuf>,
}

/// What the helper answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply {
    /// It is done; what was asked for rides along.
    Done,
    /// In the order of the question.
    Owners(Vec<Option<Owner>>),
    /// Whether one does.
    Connecting(bool),
    /// In no order.
    Listening(Vec<SocketAddr>),
    /// In nanoseconds.
    Cpu(u64),
    /// It is not, and why.
    Refused(String),
}

/// A frame that was read.
#[derive(Debug)]
pub struct Frame<T> {
    /// What it says.
    pub message: T,
    /// What rode along.
    pub descriptors: Vec<OwnedFd>,
}

/// Writes one frame to a blocking socket.
///
/// # Errors
/// Whatever the kernel answers.
pub fn write(
    mut socket: &UnixStream,
    frame: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let bytes = encode(frame)?;
    // At one stroke: whoever finds the beginning of a short frame finds all of it.
    let sent = descriptor::send(socket, &bytes, descriptors)?;
    socket.write_all(bytes.get(sent..).unwrap_or_default())
}

/// Reads one frame from a blocking socket; `None`: the other side has ended.
///
/// # Errors
/// Whatever the kernel answers, `InvalidData` for what is no frame.
pub fn read<T: DeserializeOwned>(mut socket: &UnixStream) -> io::Result<Option<Frame<T>>> {
    let mut length = [0; LENGTH_BYTES];
    let Received { bytes: count, descriptors } = descriptor::receive(socket, &mut length)?;
    if count == 0 {
        return Ok(None);
    }
    socket.read_exact(&mut length[count..])?;
    let mut text = vec![0; frame_bytes(length, FRAME_BYTES_MAX)?];
    socket.read_exact(&mut text)?;
    Ok(Some(Frame { message: serde_json::from_slice(&text)?, descriptors }))
}

/// A frame as it travels.
///
/// # Errors
/// It is too long.
pub fn encode(frame: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut bytes, frame)?;
    let text_bytes = bytes.len() - LENGTH_BYTES;
    match (u32::try_from(text_bytes), bytes.first_chunk_mut()) {
        (Ok(length), Some(place)) if text_bytes <= FRAME_BYTES_MAX => *place = length.to_be_bytes(),
        _ => return Err(too_long()),
    }
    Ok(bytes)
}

/// The bytes of the text that follow a length.
///
/// # Errors
/// More than there may be.
pub fn frame_bytes(length: [u8; LENGTH_BYTES], bytes_max: usize) -> io::Result<usize> {
    let bytes = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if bytes > bytes_max { Err(too_long()) } else { Ok(bytes) }
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long")
}

/// What a frame's text stands behind.
const LENGTH_BYTES: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_frame_arrives_whole_with_its_descriptors() {
        let (near, far) = UnixStream::pair().unwrap();
        let sent = Request::Socket { protocol: Protocol::Udp, ipv6: true, count: 3 };
        write(&near, &sent, &[near.as_fd(), far.as_fd()]).unwrap();
        write(&near, &Request::Line, &[]).unwrap();
        let Frame { message, descriptors } = read::<Request>(&far).unwrap().unwrap();
        assert_eq!(message, sent);
        assert_eq!(descriptors.len(), 2);
        assert_eq!(read::<Request>(&far).unwrap().unwrap().message, Request::Line);
        drop((near, descriptors));
        assert!(read::<Request>(&far).unwrap().is_none());
    }

    #[test]
    fn a_length_that_cannot_be_is_no_frame() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(&[0xff; 8]).unwrap();
        let error = read::<Request>(&far).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
