//! Sends and receives packets through tunnels in tests, without devices, sockets and threads. The
//! tunnels use the same code as the packet threads for selectors, flows, filters and keys.

use std::sync::Arc;

use tacit_ipsec::EspSpi;
use tacit_ipsec::esp::{DropReason, Opened};
use tacit_ipsec::packet::IpPacket;

use super::answers::SentDatagrams;
use super::halves::{InboundTunnel, InstalledTunnel, OutboundTunnel, tunnel_for};
use super::table::{TunnelSlot, TunnelTable};
use super::tunnel::{Permission, Tunnel};
use crate::ledger::Account;

/// The tunnels of one device.
#[derive(Debug, Default)]
pub(crate) struct TestTunnels {
    outbound: TunnelTable<OutboundTunnel>,
    inbound: TunnelTable<InboundTunnel>,
    /// Newest first.
    active: Vec<TunnelSlot>,
    sent: SentDatagrams,
}

/// A packet that a tunnel lets pass.
#[derive(Debug)]
pub(crate) struct Passed {
    /// The SPI of the tunnel's packets in the direction of this packet.
    pub(crate) spi: EspSpi,
    /// The account to which the packet is charged.
    pub(crate) account: Arc<Account>,
}

impl TestTunnels {
    /// Installs a tunnel, which becomes the newest one.
    pub(crate) fn install(&mut self, tunnel: Tunnel) {
        let installed = InstalledTunnel::without_path_mtu(tunnel);
        let InstalledTunnel { tun, spi, outbound, inbound } =
            installed.expect("keys of the right length");
        self.outbound.add(spi, tun, *outbound);
        self.inbound.add(spi, tun, *inbound);
        let slot = self.outbound.slot_of(spi).expect("the tunnel is in the table");
        self.active.insert(0, slot);
    }

    /// Sends a packet of a program.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<Passed, DropReason> {
        let packet = IpPacket::parse(bytes).map_err(|_| DropReason::InnerPacket)?;
        let (tunnel, decision) = tunnel_for(&mut self.outbound, &self.active, &packet, bytes)?;
        tunnel.filter(decision)?;
        if decision.permission == Permission::Granted && SentDatagrams::are_concerned(&packet) {
            self.sent.record(&packet);
        }
        let mut frame = vec![0; tunnel.sa.frame_bytes(bytes.len())];
        tunnel.sa.seal_packet(&mut frame, bytes)?;
        let account = Arc::clone(tunnel.flows.account(decision));
        Ok(Passed { spi: tunnel.sa.spi(), account })
    }

    /// Receives the ESP packet that a UDP datagram of the peer contains.
    pub(crate) fn receive(&mut self, spi: EspSpi, frame: &mut [u8]) -> Result<Passed, DropReason> {
        let tunnel = self.inbound.with_spi(spi).ok_or(DropReason::UnknownSpi)?;
        let Opened::Packet(parsed, inner) = tunnel.sa.open(frame, 0)? else {
            return Err(DropReason::InnerPacket);
        };
        let bytes = frame.get(inner).ok_or(DropReason::InnerPacket)?;
        let sent = &self.sent;
        let is_requested = || !SentDatagrams::are_concerned(&parsed) || sent.permit(&parsed);
        let decision = tunnel.admit(&parsed, bytes, is_requested)?;
        Ok(Passed { spi, account: Arc::clone(tunnel.flows.account(decision)) })
    }

    /// Forgets the datagrams that programs have sent.
    pub(crate) fn forget_sent(&mut self) {
        self.sent = SentDatagrams::default();
    }
}
