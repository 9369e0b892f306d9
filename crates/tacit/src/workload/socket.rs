//! Opens the TCP and UNIX stream sockets of the workload client and server, with timeouts.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::path::Path;

use tacit_core::flow::Address;
use tacit_sys::socket::{self, StreamOptions};

use super::error::WorkloadError;
use super::limits::SILENCE_MAX;
use crate::address;

/// A connection. Reads and writes time out after [`SILENCE_MAX`].
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Raises the limit of open files so that it suffices for `connections`.
pub(super) fn allow_descriptors(connections: usize) -> Result<(), WorkloadError> {
    /// Descriptors for everything else.
    const SPARE: u64 = 64;
    let limit = tacit_sys::process::raise_descriptor_limit().map_err(WorkloadError::Descriptors)?;
    if connections as u64 + SPARE > limit {
        return Err(WorkloadError::TooFewDescriptors { wanted: connections, limit });
    }
    Ok(())
}

/// Resolves `--connect` once. Under `tacit run`, the agent learns the name by this query.
pub(super) fn resolve(connect: &str) -> Result<Vec<Address>, WorkloadError> {
    let wrong = |error| WorkloadError::Resolve(connect.to_owned(), error);
    if connect.starts_with("unix:") {
        let address = connect.parse::<Address>();
        return address.map(|address| vec![address]).map_err(|text| wrong(io::Error::other(text)));
    }
    let resolved = connect.to_socket_addrs().map_err(wrong)?;
    match resolved.map(Address::from).collect::<Vec<_>>() {
        addresses if addresses.is_empty() => Err(wrong(io::ErrorKind::NotFound.into())),
        addresses => Ok(addresses),
    }
}

/// Connects to the first address that accepts, with `TCP_NODELAY`.
pub(super) fn dial(addresses: &[Address]) -> Result<Stream, WorkloadError> {
    let mut refused = WorkloadError::Nothing;
    for address in addresses {
        match Stream::connect(address) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = WorkloadError::Connect(address.clone(), error),
        }
    }
    Err(refused)
}

/// Opens a listening socket with `TCP_NODELAY` and a long queue. A socket file that no process
/// listens at is replaced.
pub(super) fn listen(address: &Address) -> io::Result<OwnedFd> {
    let wanted = address::to_socket(address)?;
    let listen = || socket::listen(&wanted, &StreamOptions::default());
    match (listen(), address) {
        (Err(error), Address::Path(path))
            if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) =>
        {
            std::fs::remove_file(path)?;
            listen()
        }
        (listening, _) => listening,
    }
}

/// Whether the path is a socket file that no process listens at.
fn is_stale(path: &Path) -> bool {
    let is_socket = |file: std::fs::Metadata| file.file_type().is_socket();
    let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    // A file of another type refuses connections as well.
    std::fs::symlink_metadata(path).is_ok_and(is_socket)
        && UnixStream::connect(path).is_err_and(is_refused)
}

impl Stream {
    fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Inet(address) => {
                let stream = TcpStream::connect_timeout(address, SILENCE_MAX)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SILENCE_MAX))?;
                stream.set_write_timeout(Some(SILENCE_MAX))?;
                Ok(Self::Tcp(stream))
            }
            Address::Path(path) => UnixAddr::from_pathname(path).and_then(|to| unix(&to)),
            Address::Abstract(name) => UnixAddr::from_abstract_name(name).and_then(|to| unix(&to)),
            Address::Unnamed => Err(io::ErrorKind::AddrNotAvailable.into()),
        }
    }

    pub(super) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => stream.try_clone().map(Self::Tcp),
            Self::Unix(stream) => stream.try_clone().map(Self::Unix),
        }
    }
}

fn unix(address: &UnixAddr) -> io::Result<Stream> {
    let stream = UnixStream::connect_addr(address)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(Stream::Unix(stream))
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(buffer),
            Self::Unix(stream) => stream.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_file_is_replaced_only_without_a_listener() {
        let name = format!("tacit-workload-{}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let address = Address::Path(path.clone());
        let first = listen(&address).unwrap();
        assert_eq!(listen(&address).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(matches!(dial(std::slice::from_ref(&address)), Ok(Stream::Unix(_))));
        drop(first);
        listen(&address).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "kept").unwrap();
        listen(&address).unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn abstract_names_are_addresses() {
        let address = resolve(&format!("unix:@workload-{}", std::process::id())).unwrap();
        let _listening = listen(&address[0]).unwrap();
        assert!(matches!(dial(&address), Ok(Stream::Unix(_))));
    }
}
