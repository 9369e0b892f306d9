//! Gets random bytes and the address of this host from the kernel.

use std::net::{IpAddr, SocketAddr};

use tacit_ipsec::ike::{RandomFailed, RandomSource};

use crate::net::route::source_towards;
use crate::random;

/// Random bytes of the kernel.
#[derive(Debug)]
pub(super) struct KernelRandom;

impl RandomSource for KernelRandom {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), RandomFailed> {
        random::fill(bytes).map_err(|_| RandomFailed)
    }
}

/// The address from which packets to a peer are sent, as far as this host knows it.
pub(super) fn local(locals: &[SocketAddr], remote: SocketAddr) -> SocketAddr {
    let of_family = locals.iter().find(|local| local.is_ipv4() == remote.is_ipv4());
    let port = of_family.map_or(0, SocketAddr::port);
    let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    SocketAddr::new(source_towards(remote.ip()).unwrap_or(any), port)
}
