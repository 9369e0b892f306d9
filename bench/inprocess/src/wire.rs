//! A connection as the load sees it: bytes in clear, whatever library carries them.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A peer that moves no byte for this long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Dropping it closes it in order.
pub(crate) trait Wire: Read + Write + Send {}

/// Opens a connection as a client.
pub(crate) type Dial = dyn Fn(SocketAddr) -> io::Result<Box<dyn Wire>> + Send + Sync;

/// Makes what was accepted a connection in clear.
pub(crate) type Answer = dyn Fn(TcpStream) -> io::Result<Box<dyn Wire>> + Send + Sync;

/// A TCP connection, every wait of which ends.
pub(crate) fn tcp(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(stream)
}
