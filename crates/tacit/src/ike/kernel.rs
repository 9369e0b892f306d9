//! Gets random bytes and the address of this host from the kernel.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use tacit_ipsec::ike::{RandomFailed, RandomSource};

/// Random bytes of the kernel.
#[derive(Debug)]
pub(super) struct KernelRandom;

impl RandomSource for KernelRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomFailed> {
        let mut filled = 0;
        while filled < bytes.len() {
            let flags = rustix::rand::GetRandomFlags::empty();
            match rustix::rand::getrandom(&mut bytes[filled..], flags) {
                Ok(count) => filled += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(RandomFailed),
            }
        }
        Ok(())
    }
}

/// The address from which packets to a peer are sent, as far as this host knows it.
pub(super) fn local(locals: &[SocketAddr], remote: SocketAddr) -> SocketAddr {
    let of_family = locals.iter().find(|local| local.is_ipv4() == remote.is_ipv4());
    let port = of_family.map_or(0, SocketAddr::port);
    let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    // Connecting a datagram socket only looks up the route and sends nothing.
    let found = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(remote)?;
        socket.local_addr()
    });
    SocketAddr::new(found.map_or(any, |local| local.ip()), port)
}
