//! Implements the UDP client and the UDP server of `bench host`. Client and server exchange one
//! datagram at a time.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Datagrams of a sample, and their size.
pub(super) const DATAGRAMS: u32 = 20_000;
const DATAGRAM_BYTES: usize = 64;
/// Loss does not occur between the two namespaces: a server that does not answer has ended.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Sends back every datagram; ends with the benchmark.
pub(super) fn serve(address: SocketAddr) -> Result<(), String> {
    let echo = || -> io::Result<()> {
        let socket = UdpSocket::bind(address)?;
        let mut bytes = [0; DATAGRAM_BYTES];
        loop {
            let (length, peer) = socket.recv_from(&mut bytes)?;
            socket.send_to(bytes.get(..length).unwrap_or_default(), peer)?;
        }
    };
    echo().map_err(|error| format!("cannot receive and answer datagrams at {address}: {error}"))
}

/// Sends datagrams, and receives the answer to each.
pub(super) fn exchange(server: SocketAddr, count: u32) -> Result<(), String> {
    let exchange = || -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(SILENCE_MAX))?;
        for _ in 0..count {
            socket.send(&[7; DATAGRAM_BYTES])?;
            socket.recv(&mut [0; DATAGRAM_BYTES])?;
        }
        Ok(())
    };
    exchange().map_err(|error| format!("cannot exchange datagrams with {server}: {error}"))
}
