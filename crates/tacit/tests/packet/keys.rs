//! Creates child SAs for the tests, in place of IKE.

use std::net::IpAddr;

use tacit_ipsec::{
    ChildSa, Cipher, EspSpi, KeyOrigin, SaKeys, SaMode, SaProtocol, SecretBytes, TrafficSelector,
};

/// The ends of the tests: the inner networks of both families.
pub(crate) const NEAR: [(&str, &str); 2] = [("10.1.0.0", "10.1.0.255"), ("fd01::", "fd01::ffff")];
pub(crate) const FAR: [(&str, &str); 2] = [("10.2.0.0", "10.2.0.255"), ("fd02::", "fd02::ffff")];

/// The tunnel as the near end sees it. `number` distinguishes SPIs and keys.
pub(crate) fn near(cipher: Cipher, number: u8) -> ChildSa {
    ChildSa {
        protocol: SaProtocol::EspInUdp(cipher),
        origin: KeyOrigin::Ike,
        mode: SaMode::Tunnel,
        has_extended_sequence: true,
        inbound: keys(cipher, number, 1),
        outbound: keys(cipher, number, 2),
        local: NEAR.map(selector).to_vec(),
        remote: FAR.map(selector).to_vec(),
    }
}

/// The same tunnel as the far end sees it.
pub(crate) fn far(cipher: Cipher, number: u8) -> ChildSa {
    reversed(near(cipher, number))
}

/// A tunnel as the other end sees it.
pub(crate) fn reversed(child: ChildSa) -> ChildSa {
    ChildSa {
        inbound: child.outbound,
        outbound: child.inbound,
        local: child.remote,
        remote: child.local,
        ..child
    }
}

pub(crate) fn selector((first, last): (&str, &str)) -> TrafficSelector {
    let [first, last] = [first, last].map(|text| text.parse::<IpAddr>().unwrap());
    TrafficSelector::of_addresses(first, last).unwrap()
}

fn keys(cipher: Cipher, number: u8, direction: u8) -> SaKeys {
    let byte = number * 2 + direction;
    let key_bytes = cipher.key_bytes() + cipher.salt_bytes();
    SaKeys {
        spi: EspSpi::new(0x1000 + u32::from(byte)).unwrap(),
        encryption: SecretBytes::new(vec![byte; key_bytes]),
        integrity: SecretBytes::new(vec![byte; cipher.integrity_key_bytes()]),
    }
}
