//! Finds the socket that `tacit link give` passes to another program. The user selects the socket
//! by a process ID and a descriptor number, or by the id of an agent's connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;

use tacit_core::flow::Address;
use tacit_sys::handed::Caller;
use tacit_sys::socket;

use crate::control::Request;
use crate::control::client::{self, ClientError};
use crate::control::display::connections::{ConnectionDisplay, ConnectionsDisplay, HANDED};

/// A descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) struct DescriptorOf {
    pub(super) pid: u32,
    pub(super) number: i32,
}

/// Finds the socket that a command line names: `PID/FD`, or the id of a connection that
/// `tacit show connections` prints.
///
/// # Errors
/// There is no such socket.
pub(in crate::link) fn find(text: &str, control: &Path) -> io::Result<DescriptorOf> {
    if let Some((pid, number)) = text.split_once('/') {
        return match (pid.parse(), number.parse()) {
            (Ok(pid), Ok(number)) => Ok(DescriptorOf { pid, number }),
            _ => Err(invalid("write PID/FD, or the id of a connection".to_owned())),
        };
    }
    let id =
        text.parse().map_err(|_| invalid(format!("`{text}` is not the id of a connection")))?;
    let failed = |error: ClientError| io::Error::other(error.to_string());
    let mut shown: ConnectionsDisplay =
        client::ask_typed(control, &Request::ShowConnection { id }).map_err(failed)?;
    let connection =
        shown.connections.pop().ok_or_else(|| invalid(format!("no connection has the id {id}")))?;
    of_program(&connection)
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// The program's socket of a connection.
fn of_program(connection: &ConnectionDisplay) -> io::Result<DescriptorOf> {
    let run = connection.run.as_ref();
    let unknown = || invalid("tacit does not know which program has the connection".to_owned());
    let run = run.ok_or_else(unknown)?;
    let pid = run.program.as_ref().ok_or_else(unknown)?.pid;
    let local = match run.direction.as_str() {
        "inbound" => connection.connect.as_ref(),
        _ => Some(&connection.local),
    };
    let (Some(Address::Inet(local)), Address::Inet(remote)) = (local, &connection.remote) else {
        return Err(unknown());
    };
    // A socket of the agent is in the network of the agent, where this command is, and is connected
    // to the true address.
    let (network, remote) = match (connection.path.as_str(), run.alias) {
        (HANDED, _) => ("self".to_owned(), *remote),
        (_, Some(alias)) => (pid.to_string(), SocketAddr::new(alias, remote.port())),
        (_, None) => (pid.to_string(), *remote),
    };
    let inode = ["tcp", "tcp6"].into_iter().find_map(|table| {
        let text = std::fs::read_to_string(format!("/proc/{network}/net/{table}")).ok()?;
        let mut sockets = text.lines().filter_map(socket_in);
        sockets.find(|one| one.is_between(*local, remote)).map(|one| one.inode)
    });
    let number = match inode {
        Some(inode) => descriptor_of(pid, inode)?,
        // The socket of a link is in the network of the link's server.
        None if connection.path == HANDED => descriptor_between(pid, *local, remote)?,
        None => None,
    };
    let gone = || invalid(format!("process {pid} no longer has the socket"));
    Ok(DescriptorOf { pid, number: number.ok_or_else(gone)? })
}

/// The number of the descriptor of a connection in its process, whichever network it is in.
fn descriptor_between(pid: u32, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<i32>> {
    let caller = Caller::open(pid)?;
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let is_socket = target.to_string_lossy().starts_with("socket:");
        let Some(number) = number.filter(|_| is_socket) else { continue };
        // The program may have closed it meanwhile.
        let Ok(file) = caller.descriptor(number) else { continue };
        let inet = |address: socket::SocketAddress| SocketAddr::try_from(address).ok();
        let own = socket::local_address(file.as_fd()).ok().and_then(inet);
        let peer = socket::peer_address(file.as_fd()).ok().flatten().and_then(inet);
        if own.map(canonical) == Some(canonical(local))
            && peer.map(canonical) == Some(canonical(remote))
        {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// A line of `/proc/PID/net/tcp`.
#[derive(Debug, PartialEq, Eq)]
struct ListedSocket {
    local: SocketAddr,
    remote: SocketAddr,
    inode: u64,
}

impl ListedSocket {
    fn is_between(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        canonical(self.local) == canonical(local) && canonical(self.remote) == canonical(remote)
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn socket_in(line: &str) -> Option<ListedSocket> {
    let mut fields = line.split_whitespace().skip(1);
    let local = address(fields.next()?)?;
    let remote = address(fields.next()?)?;
    Some(ListedSocket { local, remote, inode: fields.nth(6)?.parse().ok()? })
}

/// Parses an address: words of 32 bits in the order of the host, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let word = u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.as_flattened().try_into().ok()?;
            IpAddr::from(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The number of a socket in its process.
fn descriptor_of(pid: u32, inode: u64) -> io::Result<Option<i32>> {
    let wanted = format!("socket:[{inode}]");
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        // The program may have closed it meanwhile.
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        if target.as_os_str() == wanted.as_str() {
            return Ok(entry.file_name().to_str().and_then(|name| name.parse().ok()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_read_from_the_tables_of_the_kernel() {
        let line = "   1: 0100007F:1F90 0200007F:9C40 01 00000000:00000000 00:00000000 00000000 \
                    1000        0 12345 1 0000000000000000 20 4 30 10 -1";
        let found = socket_in(line).unwrap();
        let local = "127.0.0.1:8080".parse().unwrap();
        let remote = "127.0.0.2:40000".parse().unwrap();
        assert_eq!(found, ListedSocket { local, remote, inode: 12345 });
        let mapped = "0000000000000000FFFF00000100007F:1F90";
        assert_eq!(canonical(address(mapped).unwrap()), local);
        for wrong in ["", "0100007F", "0100007F:", "0100007F:1F901", "01:1", "ZZ00007F:1F90"] {
            assert_eq!(address(wrong), None, "{wrong}");
        }
        assert_eq!(socket_in("  sl  local_address rem_address   st tx_queue"), None);
    }

    #[test]
    fn a_descriptor_of_this_process_is_found() {
        use std::os::fd::AsRawFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let link = std::fs::read_link(format!("/proc/self/fd/{}", listener.as_raw_fd())).unwrap();
        let inode = link.to_str().unwrap().trim_matches(|c: char| !c.is_ascii_digit()).to_owned();
        let found = descriptor_of(std::process::id(), inode.parse().unwrap()).unwrap();
        assert_eq!(found, Some(listener.as_raw_fd()));
        assert_eq!(descriptor_of(std::process::id(), 0).unwrap(), None);
    }
}
