//! Finds the owner of a connection, and lists the ports on which programs listen. This module sends
//! netlink requests to the kernel.
//!
//! [`owner`] looks up one socket by its addresses, in about three microseconds. [`listeners`] lists
//! the listening sockets of one address family, in about ten microseconds. The kernel does not
//! report new listeners, so callers must poll.
//!
//! Results are for the network namespace in which the netlink socket was created.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::error::Error;
use super::message::{NetlinkRequest, attributes, read_u32};
use super::protocol::IpProtocol;
use super::socket::{Netlink, ReplyCount};
use crate::ip_version::IpVersion;

/// A socket, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiagSocket {
    /// The socket's own address; unspecified if it listens on all addresses.
    pub local: SocketAddr,
    /// The address that the socket is connected to; port 0 if it is not connected.
    pub peer: SocketAddr,
    /// A number that no other socket has.
    pub cookie: u64,
    /// The mark of the socket's packets; `None` if it has none, or if the calling process lacks
    /// `CAP_NET_ADMIN`.
    pub mark: Option<u32>,
    /// Whether the socket can have an address that the host does not have; always false on kernels
    /// before Linux 5.10, which do not report it.
    pub is_transparent: bool,
    /// The inode number, which `/proc/PID/fd` shows as `socket:[NUMBER]`; 0 if no program has
    /// accepted the connection yet or the program has closed it.
    pub inode: u32,
    /// Whether the socket is a connection that waits to be accepted. This is always false for
    /// connections of a transparent listener, and on kernels before Linux 5.10, which do not report
    /// it.
    pub is_queued: bool,
    /// Whether the socket waits for the answer to its SYN.
    pub is_connecting: bool,
    /// The user who created the socket, numbered as in the user namespace of the calling process.
    pub uid: u32,
    /// The number of the control group in which it was made; `None`: the kernel does not report
    /// (before Linux 5.7).
    pub cgroup: Option<u64>,
}

/// Looks up the program's socket by its own address and the address of its peer. Returns `None` if
/// there is no such socket, if it has been closed, or if it is bound to an interface.
///
/// # Errors
/// The error of the netlink socket.
pub fn owner(
    diag: &mut Netlink,
    protocol: IpProtocol,
    program: SocketAddr,
    peer: SocketAddr,
) -> Result<Option<DiagSocket>, Error> {
    owner_on(diag, NO_INTERFACE, protocol, program, peer)
}

/// Looks up the program's socket as [`owner`] does, among the sockets that are bound to the
/// interface with this index or to no interface.
///
/// # Errors
/// The error of the netlink socket.
pub fn owner_on(
    diag: &mut Netlink,
    interface: u32,
    protocol: IpProtocol,
    program: SocketAddr,
    peer: SocketAddr,
) -> Result<Option<DiagSocket>, Error> {
    if program.is_ipv4() != peer.is_ipv4() {
        return Err(Error::Invalid(
            "the local and the remote address belong to different address families",
        ));
    }
    // For UDP the kernel expects the two ends in the opposite order.
    let (source, destination) = match protocol {
        IpProtocol::Tcp => (program, peer),
        IpProtocol::Udp => (peer, program),
    };
    let question = question(protocol, interface, source, destination);
    let mut found = None;
    let requested = diag.ask(question, ReplyCount::One, |answer| {
        found = Some(socket(answer)?);
        Ok(())
    });
    match requested {
        Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
        requested => requested.map(|()| found),
    }
}

/// Lists the listening TCP sockets of one IP version, including the agent's own.
///
/// # Errors
/// The error of the netlink socket.
pub fn listeners(diag: &mut Netlink, version: IpVersion) -> Result<Vec<DiagSocket>, Error> {
    let any = SocketAddr::new(version.unspecified(), 0);
    let body = request(IpProtocol::Tcp, 1 << STATE_LISTEN, any, any);
    let question =
        NetlinkRequest::new("listing the listening sockets", SOCK_DIAG_BY_FAMILY, NLM_F_DUMP);
    let mut found = Vec::new();
    diag.ask(question.fixed(&body), ReplyCount::Many, |answer| {
        found.push(socket(answer)?);
        Ok(())
    })?;
    Ok(found)
}

/// Lists the connected sockets of one protocol and IP version that programs hold.
///
/// # Errors
/// An error of the netlink socket.
pub fn connected(
    diag: &mut Netlink,
    protocol: IpProtocol,
    version: IpVersion,
) -> Result<Vec<DiagSocket>, Error> {
    let any = SocketAddr::new(version.unspecified(), 0);
    let states = 1 << STATE_ESTABLISHED | 1 << STATE_CLOSE_WAIT;
    let body = request(protocol, states, any, any);
    let question =
        NetlinkRequest::new("listing the connected sockets", SOCK_DIAG_BY_FAMILY, NLM_F_DUMP);
    let mut found = Vec::new();
    diag.ask(question.fixed(&body), ReplyCount::Many, |answer| {
        found.push(socket(answer)?);
        Ok(())
    })?;
    found.retain(|socket: &DiagSocket| socket.peer.port() != 0 && socket.inode != 0);
    Ok(found)
}

fn question(
    protocol: IpProtocol,
    interface: u32,
    source: SocketAddr,
    destination: SocketAddr,
) -> NetlinkRequest {
    let body = request_on(interface, protocol, u32::MAX, source, destination);
    NetlinkRequest::new("finding the owner of a socket", SOCK_DIAG_BY_FAMILY, 0).fixed(&body)
}

/// Builds an `inet_diag_req_v2`: family, protocol, extensions, states and the two ends of the
/// socket.
pub(super) fn request(
    protocol: IpProtocol,
    states: u32,
    source: SocketAddr,
    destination: SocketAddr,
) -> Vec<u8> {
    request_on(NO_INTERFACE, protocol, states, source, destination)
}

fn request_on(
    interface: u32,
    protocol: IpProtocol,
    states: u32,
    source: SocketAddr,
    destination: SocketAddr,
) -> Vec<u8> {
    let family = if source.is_ipv4() { INET } else { INET6 };
    let mut body = vec![family, protocol.number(), 0, 0];
    body.extend_from_slice(&states.to_ne_bytes());
    body.extend_from_slice(&source.port().to_be_bytes());
    body.extend_from_slice(&destination.port().to_be_bytes());
    for address in [source.ip(), destination.ip()] {
        let mut field = [0; 16];
        match address {
            IpAddr::V4(address) => field[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => field = address.octets(),
        }
        body.extend_from_slice(&field);
    }
    body.extend_from_slice(&interface.to_ne_bytes());
    // No cookie, because the cookie is not known.
    body.extend_from_slice(&[0xff; 8]);
    body
}

/// Parses an `inet_diag_msg`: four bytes, the two ends of the socket (48 bytes), five numbers,
/// attributes.
fn socket(answer: &[u8]) -> Result<DiagSocket, Error> {
    let short = Error::Malformed("the description of a socket is truncated");
    let (Some(uid), Some(inode)) = (read_u32(answer, 64), read_u32(answer, 68)) else {
        return Err(short);
    };
    let (Some(local), Some(peer)) = (end(answer, [4, 8]), end(answer, [6, 24])) else {
        return Err(short);
    };
    let state = u32::from(answer[1]);
    let is_connecting = state == STATE_SYN_SENT;
    // A socket that a program has closed is in another state.
    let is_open = [STATE_ESTABLISHED, STATE_CLOSE_WAIT].contains(&state);
    let is_transparent = is_transparent(answer);
    let is_queued = inode == 0 && is_open && is_transparent == Some(false);
    let is_transparent = is_transparent == Some(true);
    let cgroup = attribute(answer, INET_DIAG_CGROUP_ID);
    let cgroup = cgroup.and_then(|id| Some(u64::from_ne_bytes(*id.first_chunk()?)));
    let cookie = answer.get(44..).and_then(|rest| rest.first_chunk()).ok_or(short)?;
    let cookie = u64::from_ne_bytes(*cookie);
    let mark = attribute(answer, INET_DIAG_MARK);
    let mark = mark.and_then(|mark| Some(u32::from_ne_bytes(*mark.first_chunk()?)));
    Ok(DiagSocket {
        local,
        peer,
        cookie,
        mark,
        is_transparent,
        inode,
        is_queued,
        is_connecting,
        uid,
        cgroup,
    })
}

/// One end of a socket, whose port and address are at these offsets.
fn end(answer: &[u8], [port, address]: [usize; 2]) -> Option<SocketAddr> {
    let port = answer.get(port..)?.first_chunk::<2>()?;
    let bytes = answer.get(address..)?.first_chunk::<16>()?;
    let address = match answer[0] {
        INET => {
            let [a, b, c, d, ..] = *bytes;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        _ => IpAddr::V6(Ipv6Addr::from(*bytes)),
    };
    Some(SocketAddr::new(address, u16::from_be_bytes(*port)))
}

/// Whether the socket is transparent, as the agent's sockets are; `None`: the kernel does not
/// report it.
fn is_transparent(answer: &[u8]) -> Option<bool> {
    let options = attribute(answer, INET_DIAG_SOCKOPT)?;
    Some(options.first()? & SOCKOPT_TRANSPARENT != 0)
}

pub(super) fn attribute(answer: &[u8], kind: u16) -> Option<&[u8]> {
    let mut all = attributes(answer.get(MESSAGE_BYTES..)?);
    all.find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Sockets that are not bound to an interface; in a list, all sockets.
const NO_INTERFACE: u32 = 0;
pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_DUMP: u16 = 0x300;
/// The size of an `inet_diag_msg`.
const MESSAGE_BYTES: usize = 72;
const INET_DIAG_MARK: u16 = 15;
const INET_DIAG_CGROUP_ID: u16 = 21;
const INET_DIAG_SOCKOPT: u16 = 22;
/// The sixth of the eight bit fields in the first byte of `inet_diag_sockopt`.
const SOCKOPT_TRANSPARENT: u8 = if cfg!(target_endian = "big") { 0x04 } else { 0x20 };
const STATE_ESTABLISHED: u32 = 1;
const STATE_SYN_SENT: u32 = 2;
const STATE_CLOSE_WAIT: u32 = 8;
const STATE_LISTEN: u32 = 10;
const INET: u8 = 2;
const INET6: u8 = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::testing::{bytes, sealed};
    use crate::netlink::{Netlink, Subsystem};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    fn open() -> Netlink {
        Netlink::open(Subsystem::SocketDiagnosis).unwrap()
    }

    fn inode(socket: impl AsFd) -> u32 {
        u32::try_from(rustix::fs::fstat(socket).unwrap().st_ino).unwrap()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_question_byte_by_byte() {
        let [program, peer] =
            ["10.0.2.15:40000", "10.9.8.7:8080"].map(|text| text.parse().unwrap());
        let wanted = "4800 0000 1400 0100 00000000 00000000 02 06 00 00 ffffffff 9c40 1f90 \
             0a00020f 00000000 00000000 00000000 0a090807 00000000 00000000 00000000 \
             07000000 ffffffff ffffffff";
        assert_eq!(sealed(&question(IpProtocol::Tcp, 7, program, peer)), bytes(wanted));
    }

    #[test]
    fn the_owner_of_a_connection_is_found_by_its_two_ends() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let program = client.local_addr().unwrap();
            let peer = client.peer_addr().unwrap();
            let found = owner(&mut open(), IpProtocol::Tcp, program, peer).unwrap().unwrap();
            assert_eq!((found.local, found.inode), (program, inode(&client)));
            assert_eq!(found.uid, rustix::process::geteuid().as_raw());
        }
    }

    #[test]
    fn the_owner_of_a_datagram_is_found_connected_or_not() {
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let program = client.local_addr().unwrap();
        let to = peer.local_addr().unwrap();
        let mut diag = open();
        let found = owner(&mut diag, IpProtocol::Udp, program, to).unwrap().unwrap();
        assert_eq!(found.inode, inode(&client));
        client.connect(to).unwrap();
        let found = owner(&mut diag, IpProtocol::Udp, program, to).unwrap().unwrap();
        assert_eq!(found.inode, inode(&client));
    }

    #[test]
    fn a_socket_that_does_not_exist_has_no_owner() {
        let [program, peer] = ["127.0.0.1:1", "127.0.0.1:2"].map(|text| text.parse().unwrap());
        assert_eq!(owner(&mut open(), IpProtocol::Tcp, program, peer).unwrap(), None);
        let six = "[::1]:1".parse().unwrap();
        assert!(matches!(
            owner(&mut open(), IpProtocol::Tcp, program, six),
            Err(Error::Invalid(_))
        ));
    }

    #[test]
    fn a_connection_is_queued_until_it_is_accepted_or_if_the_client_ends_it_before() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(any).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let [near, far] = [client.local_addr().unwrap(), client.peer_addr().unwrap()];
            let look =
                |one, other| owner(&mut open(), IpProtocol::Tcp, one, other).unwrap().unwrap();
            assert!(look(far, near).is_queued && !look(near, far).is_queued);
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(look(far, near).is_queued && !look(near, far).is_queued);
            let accepted = listener.accept().unwrap().0;
            let found = look(far, near);
            assert_eq!((found.is_queued, found.inode), (false, inode(&accepted)));
        }
    }

    /// The agent's listeners inside a run are transparent. A connection that waits there does not
    /// belong to a program.
    #[test]
    fn a_connection_to_a_transparent_listener_is_not_queued() {
        let listener = match crate::transparent::listener(IpVersion::V4, None) {
            Ok(listener) => TcpListener::from(listener),
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                eprintln!("SKIPPED: only root can make a transparent listener");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let [near, far] = [client.local_addr().unwrap(), client.peer_addr().unwrap()];
        let found = owner(&mut open(), IpProtocol::Tcp, far, near).unwrap().unwrap();
        assert_eq!((found.is_queued, found.inode), (false, 0));
    }

    #[test]
    fn connected_sockets_are_listed_with_both_ends_until_they_are_closed() {
        for (any, version) in [("127.0.0.1:0", IpVersion::V4), ("[::1]:0", IpVersion::V6)] {
            let listener = TcpListener::bind(any).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let local = client.local_addr().unwrap();
            let tcp = || connected(&mut open(), IpProtocol::Tcp, version).unwrap();
            let found = tcp().into_iter().find(|socket| socket.local == local).unwrap();
            assert_eq!((found.peer, found.inode), (client.peer_addr().unwrap(), inode(&client)));
            drop(client);
            assert!(tcp().iter().all(|socket| socket.cookie != found.cookie));
            let datagrams = UdpSocket::bind(any).unwrap();
            let udp = || connected(&mut open(), IpProtocol::Udp, version).unwrap();
            let is_own = |socket: &DiagSocket| socket.inode == inode(&datagrams);
            assert!(!udp().iter().any(is_own));
            datagrams.connect(listener.local_addr().unwrap()).unwrap();
            assert!(udp().iter().any(is_own));
        }
    }

    #[test]
    fn listeners_are_listed_with_their_ports() {
        for (any, version) in [("127.0.0.1:0", IpVersion::V4), ("[::1]:0", IpVersion::V6)] {
            let listener = TcpListener::bind(any).unwrap();
            let local = listener.local_addr().unwrap();
            let all = listeners(&mut open(), version).unwrap();
            let found = all.iter().find(|socket| socket.local == local).unwrap();
            assert_eq!(found.inode, inode(&listener));
        }
    }
}
