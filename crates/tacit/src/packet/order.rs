//! Defines [`Order`]: a command for the thread `tacit-packet`. For example, a command installs a
//! tunnel, or changes the address of a peer.

use std::net::SocketAddr;

use tacit_ipsec::EspSpi;
use tacit_sys::tun::Tun;

use super::halves::InstalledTunnel;
use super::tunnel::{TunId, TunnelPackets};

/// A command to the thread. The inbound SPI identifies a tunnel.
#[derive(Debug)]
pub(super) enum Order {
    AddTun(TunId, Tun),
    RemoveTun(TunId),
    /// A successor reads the devices from now on.
    StopReading,
    Install(Box<InstalledTunnel>),
    Activate(EspSpi),
    Remove(EspSpi),
    MovePeer(EspSpi, SocketAddr),
    Permit(EspSpi, Box<TunnelPackets>),
}
