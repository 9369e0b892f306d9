//! Simulates an unreliable network: drops, repeats and delays datagrams in both directions. The
//! driver (the process with tacit's IKE connection) sends and receives through this module.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// A UDP socket behind a bad network.
pub(crate) struct Network {
    socket: UdpSocket,
    remote: SocketAddr,
    /// Of 100 datagrams, so many are lost, half as many are repeated, and as many are overtaken.
    percent: u64,
    seed: u64,
    /// A datagram to send after the next one.
    overtaken: Option<Vec<u8>>,
}

impl Network {
    pub(crate) fn bind(own: SocketAddr, remote: SocketAddr, percent: u64) -> Self {
        let socket = UdpSocket::bind(own).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
        Self { socket, remote, percent, seed: 1, overtaken: None }
    }

    /// Whether an event happens that has this probability in percent.
    fn happens(&mut self, percent: u64) -> bool {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.seed >> 33) % 100 < percent
    }

    pub(crate) fn send(&mut self, bytes: Vec<u8>) {
        if self.happens(self.percent) {
            return;
        }
        if self.happens(self.percent / 2) {
            self.socket.send_to(&bytes, self.remote).unwrap();
        }
        if self.overtaken.is_none() && self.happens(self.percent) {
            self.overtaken = Some(bytes);
            return;
        }
        self.socket.send_to(&bytes, self.remote).unwrap();
        if let Some(late) = self.overtaken.take() {
            self.socket.send_to(&late, self.remote).unwrap();
        }
    }

    /// Waits at most ten milliseconds for a datagram.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (length, _) = self.socket.recv_from(buffer)?;
        if self.happens(self.percent) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(length)
    }
}
