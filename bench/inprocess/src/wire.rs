//! Defines the trait for the TLS connections of the load client and the load server. There is one
//! implementation for each TLS library.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A peer that sends and receives nothing for this long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// A connection. Dropping it closes it with close_notify.
pub(crate) trait Wire: Read + Write + Send {}

/// Opens a connection as a client.
pub(crate) type Dial = dyn Fn(SocketAddr) -> io::Result<Box<dyn Wire>> + Send + Sync;

/// Does the handshake on an accepted socket.
pub(crate) type Answer = dyn Fn(TcpStream) -> io::Result<Box<dyn Wire>> + Send + Sync;

/// Opens a TCP connection with timeouts.
pub(crate) fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}
