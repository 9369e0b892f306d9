//! Defines the network addresses that `bench host` uses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const FAR: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The load server.
pub(super) const SERVER: SocketAddr = SocketAddr::new(FAR, 8000);
/// The far agent, which accepts TLS.
pub(super) const FAR_AGENT: SocketAddr = SocketAddr::new(FAR, 4433);
/// The server of datagrams.
pub(super) const ECHO: SocketAddr = SocketAddr::new(FAR, 8001);
/// The forwarding rule.
pub(super) const FORWARD: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7443);
