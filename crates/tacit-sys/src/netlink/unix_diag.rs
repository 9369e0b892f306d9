//! Lists the UNIX sockets of a network namespace, with their peers and queues.
//!
//! [`sockets`] fails if the kernel module `unix_diag` is missing. If the two sockets of a
//! connection belong to different network namespaces, the list contains only one of them. A socket
//! that a server gets from `accept` belongs to the network namespace of the client.
//!
//! Limit: the list has at most as many sockets as the caller asks for.

use super::diag::SOCK_DIAG_BY_FAMILY;
use super::error::Error;
use super::message::{NetlinkRequest, attributes, read_u32};
use super::socket::{Netlink, ReplyCount};

/// A UNIX socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixDiagSocket {
    /// The inode number, which `/proc/PID/fd` shows as `socket:[NUMBER]`.
    pub inode: u32,
    /// The inode number of the socket that it is connected to; `None` also while the connection
    /// waits to be accepted.
    pub peer: Option<u32>,
    /// How it transfers data.
    pub kind: UnixSocketKind,
    /// Whether it listens or is connected.
    pub state: UnixSocketState,
    /// The address as the kernel stores it: a path, or a name that begins with a zero byte.
    pub name: Option<Vec<u8>>,
    /// Bytes that the program has not read; of a listening socket, connections that were not
    /// accepted. `None`: the kernel does not report it.
    pub receive_queue: Option<u32>,
    /// Bytes of memory with data that the peer has not read; of a listening socket, how many
    /// connections can wait.
    pub send_queue: Option<u32>,
}

/// How a UNIX socket transfers data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnixSocketKind {
    /// As a stream of bytes.
    Stream,
    /// As datagrams.
    Datagram,
    /// As packets of a connection.
    SequencedPacket,
}

/// The state of a UNIX socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnixSocketState {
    /// It is neither connected nor listening.
    Unconnected,
    /// It is connected to another socket.
    Connected,
    /// It accepts connections.
    Listening,
}

/// Lists the sockets of the network namespace in which `diag` was created, at most `count_max`.
///
/// # Errors
/// The error of the netlink socket: `ENOENT` if the kernel cannot list UNIX sockets.
pub fn sockets(diag: &mut Netlink, count_max: usize) -> Result<Vec<UnixDiagSocket>, Error> {
    let mut found = Vec::new();
    diag.ask(question(), ReplyCount::Many, |answer| {
        if found.len() < count_max {
            found.extend(socket(answer)?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Builds a `unix_diag_req`: family, protocol, padding, states, inode, wanted attributes, cookie.
fn question() -> NetlinkRequest {
    let mut body = vec![UNIX, 0, 0, 0];
    let wanted = UDIAG_SHOW_NAME | UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN;
    for number in [u32::MAX, 0, wanted, u32::MAX, u32::MAX] {
        body.extend_from_slice(&number.to_ne_bytes());
    }
    NetlinkRequest::new("listing the UNIX sockets", SOCK_DIAG_BY_FAMILY, NLM_F_DUMP).fixed(&body)
}

/// Parses a `unix_diag_msg`: family, type, state, padding, inode, cookie, attributes. Returns
/// `None` for a type or state that this program does not know.
fn socket(answer: &[u8]) -> Result<Option<UnixDiagSocket>, Error> {
    let short = || Error::Malformed("the description of a UNIX socket is truncated");
    let [_, kind, state, _] = *answer.first_chunk().ok_or_else(short)?;
    let inode = read_u32(answer, 4).ok_or_else(short)?;
    let rest = answer.get(MESSAGE_BYTES..).ok_or_else(short)?;
    let kind = match kind {
        SOCK_STREAM => UnixSocketKind::Stream,
        SOCK_DGRAM => UnixSocketKind::Datagram,
        SOCK_SEQPACKET => UnixSocketKind::SequencedPacket,
        _ => return Ok(None),
    };
    let attribute = |wanted| attributes(rest).find(|(found, _)| *found == wanted);
    let number = |wanted, at| attribute(wanted).and_then(|(_, value)| read_u32(value, at));
    let peer = number(UNIX_DIAG_PEER, 0).filter(|peer| *peer != 0);
    let state = match state {
        TCP_LISTEN => UnixSocketState::Listening,
        TCP_ESTABLISHED => UnixSocketState::Connected,
        _ => UnixSocketState::Unconnected,
    };
    let name = attribute(UNIX_DIAG_NAME).map(|(_, name)| name.to_vec());
    Ok(Some(UnixDiagSocket {
        inode,
        peer,
        kind,
        state,
        name: name.filter(|name| !name.is_empty()),
        receive_queue: number(UNIX_DIAG_RQLEN, 0),
        send_queue: number(UNIX_DIAG_RQLEN, 4),
    }))
}

const NLM_F_DUMP: u16 = 0x300;
const UNIX: u8 = 1;
/// The size of a `unix_diag_msg`.
const MESSAGE_BYTES: usize = 16;
const UDIAG_SHOW_NAME: u32 = 0x01;
const UDIAG_SHOW_PEER: u32 = 0x04;
const UDIAG_SHOW_RQLEN: u32 = 0x10;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_PEER: u16 = 2;
const UNIX_DIAG_RQLEN: u16 = 4;
const SOCK_STREAM: u8 = 1;
const SOCK_DGRAM: u8 = 2;
const SOCK_SEQPACKET: u8 = 5;
const TCP_ESTABLISHED: u8 = 1;
const TCP_LISTEN: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Subsystem;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

    fn inode(socket: impl AsFd) -> u32 {
        u32::try_from(rustix::fs::fstat(socket).unwrap().st_ino).unwrap()
    }

    fn all() -> Vec<UnixDiagSocket> {
        let mut diag = Netlink::open(Subsystem::SocketDiagnosis).unwrap();
        sockets(&mut diag, 100_000).unwrap()
    }

    fn find(all: &[UnixDiagSocket], inode: u32) -> &UnixDiagSocket {
        all.iter().find(|socket| socket.inode == inode).unwrap()
    }

    #[test]
    fn both_sockets_of_a_pair_are_listed_with_what_waits() {
        let (mut near, far) = UnixStream::pair().unwrap();
        near.write_all(b"12345").unwrap();
        let all = all();
        let [sender, receiver] = [find(&all, inode(&near)), find(&all, inode(&far))];
        assert_eq!((sender.peer, receiver.peer), (Some(receiver.inode), Some(sender.inode)));
        assert_eq!(
            (sender.kind, sender.state),
            (UnixSocketKind::Stream, UnixSocketState::Connected)
        );
        assert_eq!((receiver.receive_queue, &receiver.name), (Some(5), &None));
        assert!(sender.send_queue.unwrap() >= 5, "{sender:?}");
    }

    #[test]
    fn a_listening_socket_has_its_name_and_the_connections_that_wait() {
        let name = format!("tacit-listening-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let _waiting = UnixStream::connect_addr(&address).unwrap();
        let all = all();
        let found = find(&all, inode(&listener));
        assert_eq!(found.name, Some(format!("\0{name}").into_bytes()));
        assert_eq!((found.state, found.receive_queue), (UnixSocketState::Listening, Some(1)));
    }

    #[test]
    fn a_socket_for_datagrams_may_be_unconnected() {
        let socket = UnixDatagram::unbound().unwrap();
        let all = all();
        let found = find(&all, inode(&socket));
        assert_eq!((found.kind, found.peer), (UnixSocketKind::Datagram, None));
        assert_eq!(found.state, UnixSocketState::Unconnected);
    }

    #[test]
    fn a_truncated_description_is_an_error() {
        for length in 0..MESSAGE_BYTES {
            assert!(socket(&vec![1; length]).is_err(), "{length}");
        }
    }
}
