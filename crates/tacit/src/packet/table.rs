//! Defines [`TunnelTable`], which stores tunnels for one direction. One table is for inbound
//! packets, and another table is for outbound packets. Both tables find a tunnel by its inbound
//! SPI, because no two tunnels have the same inbound SPI.

use std::collections::HashMap;

use tacit_ipsec::EspSpi;

use super::tunnel::TunId;

/// The position of a tunnel in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TunnelSlot(usize);

/// The tunnels of one direction.
#[derive(Debug)]
pub(super) struct TunnelTable<T> {
    slots: Vec<Option<TunnelEntry<T>>>,
    by_spi: HashMap<EspSpi, TunnelSlot>,
    /// The tunnel of the last look-up: most packets belong to the same one.
    last: Option<(EspSpi, TunnelSlot)>,
}

/// A tunnel, and what it is found by.
#[derive(Debug)]
struct TunnelEntry<T> {
    spi: EspSpi,
    tun: TunId,
    tunnel: T,
}

impl<T> TunnelTable<T> {
    /// Adds a tunnel. No other has its inbound SPI.
    pub(super) fn add(&mut self, spi: EspSpi, tun: TunId, tunnel: T) {
        let entry = Some(TunnelEntry { spi, tun, tunnel });
        let free = self.slots.iter().position(Option::is_none);
        let slot = TunnelSlot(free.unwrap_or(self.slots.len()));
        match self.slots.get_mut(slot.0) {
            Some(free) => *free = entry,
            None => self.slots.push(entry),
        }
        self.last = None;
        self.by_spi.insert(spi, slot);
    }

    /// Removes the tunnel with this inbound SPI. Returns its device.
    pub(super) fn remove(&mut self, spi: EspSpi) -> Option<(TunnelSlot, TunId)> {
        self.last = None;
        let slot = self.by_spi.remove(&spi)?;
        let entry = self.slots.get_mut(slot.0)?.take()?;
        Some((slot, entry.tun))
    }

    /// Removes the tunnels of a device.
    pub(super) fn remove_tun(&mut self, tun: TunId) {
        let of_tun = self.slots.iter().flatten().filter(|entry| entry.tun == tun);
        let spis: Vec<_> = of_tun.map(|entry| entry.spi).collect();
        for spi in spis {
            self.remove(spi);
        }
    }

    /// Returns the position of the tunnel with this inbound SPI.
    pub(super) fn slot_of(&mut self, spi: EspSpi) -> Option<TunnelSlot> {
        if let Some((last, slot)) = self.last
            && last == spi
        {
            return Some(slot);
        }
        let slot = *self.by_spi.get(&spi)?;
        self.last = Some((spi, slot));
        Some(slot)
    }

    /// Returns the tunnel with this inbound SPI.
    pub(super) fn with_spi(&mut self, spi: EspSpi) -> Option<&mut T> {
        let slot = self.slot_of(spi)?;
        self.at(slot)
    }

    /// Returns the tunnel at a position.
    pub(super) fn at(&mut self, slot: TunnelSlot) -> Option<&mut T> {
        self.slots.get_mut(slot.0)?.as_mut().map(|entry| &mut entry.tunnel)
    }

    /// Returns the device of the tunnel at a position.
    pub(super) fn tun_at(&self, slot: TunnelSlot) -> Option<TunId> {
        self.slots.get(slot.0)?.as_ref().map(|entry| entry.tun)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (EspSpi, &mut T)> {
        self.slots.iter_mut().flatten().map(|entry| (entry.spi, &mut entry.tunnel))
    }
}

impl<T> Default for TunnelTable<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), by_spi: HashMap::new(), last: None }
    }
}
