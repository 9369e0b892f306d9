//! Defines the report about the UNIX sockets of a run. The helper of the run sends this report to
//! the agent.
//!
//! Limits: [`UNIX_SOCKETS_MAX`] sockets and [`PROCESSES_MAX`] processes in a report.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tacit_sys::netlink::unix_diag::{UnixDiagSocket, UnixSocketKind, UnixSocketState};

/// The maximum number of sockets in a report.
pub const UNIX_SOCKETS_MAX: usize = 4096;
/// The maximum number of processes in a report. With the longest paths, a report of this size fits
/// into [`REPLY_BYTES_MAX`](super::protocol::REPLY_BYTES_MAX).
pub const PROCESSES_MAX: usize = 512;

/// The UNIX sockets that programs of a run hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunUnixSockets {
    /// The sockets of the run's network namespace.
    pub inside: Vec<HeldUnixSocket>,
    /// Other sockets of the run's network namespace that are connected to those in `inside`.
    /// Programs outside the run hold them.
    pub peers: Vec<UnixSocketFacts>,
    /// The sockets of any protocol that programs hold and that are not in `inside`, such as a
    /// standard input that comes from outside the run.
    pub others: Vec<HeldInode>,
    /// The programs, at most [`PROCESSES_MAX`].
    pub processes: Vec<SocketProcess>,
    /// Whether a limit was reached, so that sockets are missing.
    pub is_truncated: bool,
}

/// A UNIX socket and the processes that hold it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HeldUnixSocket {
    /// The socket.
    pub socket: UnixSocketFacts,
    /// The processes.
    pub pids: Vec<u32>,
}

/// A socket of which only the inode number is known, and the processes that hold it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HeldInode {
    /// The inode number.
    pub inode: u32,
    /// The processes.
    pub pids: Vec<u32>,
}

/// A process and its program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SocketProcess {
    /// The process.
    pub pid: u32,
    /// Its executable, if it can be read.
    pub program: Option<PathBuf>,
}

/// What the kernel reports about a UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct UnixSocketFacts {
    /// The inode number.
    pub inode: u32,
    /// The inode number of the socket that it is connected to; `None` also while the connection
    /// waits to be accepted.
    pub peer: Option<u32>,
    /// `stream`, `datagram` or `seqpacket`.
    pub kind: String,
    /// `unconnected`, `connected` or `listening`.
    pub state: String,
    /// Its path; or `@` and its abstract name.
    pub name: Option<String>,
    /// Bytes that the program has not read; of a listening socket, connections that were not
    /// accepted.
    pub receive_queue: Option<u32>,
    /// Bytes of memory with data that the peer has not read; of a listening socket, how many
    /// connections can wait.
    pub send_queue: Option<u32>,
}

impl From<UnixDiagSocket> for UnixSocketFacts {
    fn from(socket: UnixDiagSocket) -> Self {
        let UnixDiagSocket { inode, peer, kind, state, name, receive_queue, send_queue } = socket;
        let kind = match kind {
            UnixSocketKind::Stream => "stream",
            UnixSocketKind::Datagram => "datagram",
            UnixSocketKind::SequencedPacket => "seqpacket",
        };
        let state = match state {
            UnixSocketState::Unconnected => "unconnected",
            UnixSocketState::Connected => "connected",
            UnixSocketState::Listening => "listening",
        };
        let name = name.as_deref().map(shown_name);
        Self {
            inode,
            peer,
            kind: kind.to_owned(),
            state: state.to_owned(),
            name,
            receive_queue,
            send_queue,
        }
    }
}

/// The name as `ss` prints it: `@` in place of each zero byte of an abstract name.
fn shown_name(name: &[u8]) -> String {
    let path = match name {
        [0, ..] => name,
        path => path.strip_suffix(&[0]).unwrap_or(path),
    };
    String::from_utf8_lossy(path).replace('\0', "@")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_as_ss_does() {
        assert_eq!(shown_name(b"/run/a.sock\0"), "/run/a.sock");
        assert_eq!(shown_name(b"/run/a.sock"), "/run/a.sock");
        assert_eq!(shown_name(b"\0abstract"), "@abstract");
        assert_eq!(shown_name(b"\0\xff"), "@\u{fffd}");
    }
}
