//! Determines to which IKE SA a message belongs. Only the header of the message is needed for this.
//! So a message that belongs to no IKE SA costs almost no CPU time.

use super::header::{
    self, ExchangeType, FLAG_RESPONSE, HEADER_BYTES, IkeHeader, MAJOR_VERSION, ReadHeader,
};

/// Where a message belongs, if its header is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IkeRoute {
    /// It begins an IKE SA, or is a request of a later version of IKE.
    First,
    /// It belongs to the IKE SA that has this SPI of this side.
    Sa(u64),
}

impl IkeRoute {
    /// Reads the header of a message. Returns `None` if no peer sends such a header: the length is
    /// not that of the message, the version is not 2, or the SPI of this side is missing.
    #[must_use]
    pub fn of(message: &[u8]) -> Option<Self> {
        let &[version, _, flags, ..] = message.get(VERSION_AT..HEADER_BYTES)? else { return None };
        if version >> 4 > MAJOR_VERSION && flags & FLAG_RESPONSE == 0 {
            return Some(Self::First);
        }
        let ReadHeader { header, length, .. } = header::read(message).ok()?;
        if length != message.len() {
            return None;
        }
        let IkeHeader { initiator_spi, responder_spi, from_initiator, .. } = header;
        match if from_initiator { responder_spi } else { initiator_spi } {
            0 => (from_initiator && is_first(&header)).then_some(Self::First),
            own => Some(Self::Sa(own)),
        }
    }
}

fn is_first(header: &IkeHeader) -> bool {
    header.exchange == ExchangeType::SaInit
        && !header.is_response
        && header.message_id == 0
        && header.initiator_spi != 0
}

const VERSION_AT: usize = 17;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(spis: (u64, u64), version: u8, exchange: u8, flags: u8, id: u32) -> Vec<u8> {
        let mut bytes = [spis.0.to_be_bytes(), spis.1.to_be_bytes()].concat();
        bytes.extend([33, version, exchange, flags]);
        bytes.extend(id.to_be_bytes());
        bytes.extend(32_u32.to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn the_flag_of_the_sender_decides_which_spi_is_that_of_this_side() {
        for (spis, version, exchange, flags, id, route) in [
            ((7, 0), 0x20, 34, 8, 0, Some(IkeRoute::First)),
            ((7, 9), 0x20, 34, 0x20, 0, Some(IkeRoute::Sa(7))),
            ((7, 0), 0x20, 34, 0x20, 0, Some(IkeRoute::Sa(7))),
            ((7, 9), 0x20, 35, 8, 1, Some(IkeRoute::Sa(9))),
            ((7, 9), 0x20, 37, 0, 1, Some(IkeRoute::Sa(7))),
            ((7, 0), 0x30, 34, 8, 0, Some(IkeRoute::First)),
            ((7, 0), 0x30, 34, 0x20, 0, None),
            ((7, 0), 0x10, 34, 8, 0, None),
            ((7, 0), 0x20, 35, 8, 0, None),
            ((7, 0), 0x20, 34, 8, 1, None),
            ((7, 0), 0x20, 34, 0x28, 0, None),
            ((0, 0), 0x20, 34, 8, 0, None),
            ((0, 9), 0x20, 37, 0, 1, None),
        ] {
            let bytes = message(spis, version, exchange, flags, id);
            assert_eq!(IkeRoute::of(&bytes), route, "{spis:?} {version} {exchange} {flags} {id}");
            if version == 0x20 {
                assert_eq!(IkeRoute::of(&[&bytes[..], &[0]].concat()), None, "a wrong length");
                assert_eq!(IkeRoute::of(&bytes[..bytes.len() - 1]), None, "a wrong length");
            }
        }
        assert_eq!(IkeRoute::of(&[0; HEADER_BYTES - 1]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_routed_or_dropped(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some(IkeRoute::Sa(spi)) = IkeRoute::of(&bytes) {
                prop_assert!(spi != 0);
            }
        }
    }
}
