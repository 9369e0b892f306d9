//! Installs child SAs (the keys of tunnels), as initiator or as responder (RFC 7296 sections 1.2
//! and 2.9).
//!
//! * `initiator` sends requests to the peer, and handles simultaneous requests of both sides;
//! * `responder` answers requests of the peer.
//!
//! The exchange `IKE_AUTH` creates the first child SA. The exchange `CREATE_CHILD_SA` creates all
//! further child SAs.

mod initiator;
mod responder;

use std::time::Instant;

use super::payloads::notifications;
use super::tunnel::{Tunnel, TunnelState, rekey_delay};
use super::{IkeConnection, IkeEvent};
use crate::child::{ChildSa, EspSpi, KeyOrigin, SaKeys, SaMode, SaProtocol};
use crate::ike::codec::{IkePayload, KePayload, NotifyPayload, Proposal, TsPayload};
use crate::ike::crypto::{KeySecret, Nonces, child_keys, random_array};
use crate::ike::failure::IkeFailure;
use crate::ike::proposal::ChosenEsp;
use crate::secret::SecretBytes;
use crate::selector::TrafficSelector;
pub(super) use responder::other_group;

/// What this side has requested.
pub(super) struct ChildRequest {
    /// Its inbound SPI.
    pub(super) spi: u32,
    /// The responder's nonce is empty in `CREATE_CHILD_SA`, where the answer has it.
    pub(super) nonces: Nonces,
    pub(super) secret: Option<KeySecret>,
}

/// The payloads of a request or a response for a child SA.
pub(super) struct ChildAnswer<'a> {
    proposals: &'a [Proposal],
    initiator: &'a [TrafficSelector],
    responder: &'a [TrafficSelector],
    nonce: Option<&'a [u8]>,
    key_exchange: Option<&'a KePayload>,
}

/// Why no child SA was made, and the notification for the peer.
pub(super) struct ChildRefusal {
    pub(super) notify: NotifyPayload,
    pub(super) failure: IkeFailure,
}

/// What both sides have agreed on.
struct Agreed {
    chosen: ChosenEsp,
    inbound: u32,
    outbound: u32,
    local: Vec<TrafficSelector>,
    remote: Vec<TrafficSelector>,
    shared: Option<SecretBytes>,
    nonces: Nonces,
    by_this_side: bool,
}

impl<'a> ChildAnswer<'a> {
    /// Reads the payloads. An error notification in their place is the reason of a refusal.
    pub(super) fn read(payloads: &'a [IkePayload]) -> Result<Self, IkeFailure> {
        let mut proposals = None;
        let mut initiator = None;
        let mut responder = None;
        let mut nonce = None;
        let mut key_exchange = None;
        for payload in payloads {
            match payload {
                IkePayload::SecurityAssociation(value) => proposals = Some(value.as_slice()),
                IkePayload::TsInitiator(value) => initiator = Some(value.selectors.as_slice()),
                IkePayload::TsResponder(value) => responder = Some(value.selectors.as_slice()),
                IkePayload::Nonce(value) => nonce = Some(value.as_slice()),
                IkePayload::KeyExchange(value) => key_exchange = Some(value),
                _ => {}
            }
        }
        if let (Some(proposals), Some(initiator), Some(responder)) =
            (proposals, initiator, responder)
        {
            return Ok(Self { proposals, initiator, responder, nonce, key_exchange });
        }
        let error = notifications(payloads).find(|one| one.is_error());
        Err(error.map_or_else(
            || {
                IkeFailure::protocol(
                    "the peer's message for a child SA has no proposals or no traffic selectors",
                )
            },
            |error| IkeFailure::refused(error.kind, "the tunnel"),
        ))
    }
}

impl IkeConnection {
    /// The traffic selectors of this side, as the initiator of an exchange.
    pub(super) fn selector_payloads(&self) -> [IkePayload; 2] {
        let child = &self.config.child;
        [
            IkePayload::TsInitiator(TsPayload { selectors: child.local.clone() }),
            IkePayload::TsResponder(TsPayload { selectors: child.remote.clone() }),
        ]
    }

    /// A random inbound SPI that no other child SA has.
    pub(super) fn new_child_spi(&mut self) -> Result<u32, IkeFailure> {
        loop {
            let spi = u32::from_be_bytes(random_array(self.random.as_mut())?);
            if EspSpi::new(spi).is_some() && !self.tunnels.iter().any(|one| one.inbound == spi) {
                return Ok(spi);
            }
        }
    }

    fn install(&mut self, now: Instant, spi: u64, agreed: Agreed) -> Result<(), IkeFailure> {
        let Agreed { chosen, inbound, outbound, local, remote, shared, nonces, by_this_side } =
            agreed;
        let (Some(inbound_spi), Some(outbound_spi)) = (EspSpi::new(inbound), EspSpi::new(outbound))
        else {
            return Err(IkeFailure::protocol(
                "the peer chose an SPI below 256, which RFC 4303 reserves",
            ));
        };
        let cipher = chosen.proposal.cipher;
        let Some(sa) = self.sa(spi) else { return Ok(()) };
        let (first, second) = child_keys(&sa.keys, cipher, shared.as_ref(), &nonces)?;
        let (sent, received) = if by_this_side { (first, second) } else { (second, first) };
        let keys = |spi, (encryption, integrity)| SaKeys { spi, encryption, integrity };
        let installed = ChildSa {
            protocol: SaProtocol::EspInUdp(cipher),
            origin: KeyOrigin::Ike,
            mode: SaMode::Tunnel,
            has_extended_sequence: chosen.has_extended_sequence,
            inbound: keys(inbound_spi, received),
            outbound: keys(outbound_spi, sent),
            local,
            remote,
        };
        let lifetime = self.config.child.lifetime;
        let [byte] = random_array(self.random.as_mut()).unwrap_or([0]);
        self.tunnels.push(Tunnel {
            inbound,
            outbound,
            proposal: chosen.proposal,
            state: TunnelState::Active,
            rekey_at: now + rekey_delay(lifetime, byte),
            expires_at: now + lifetime,
        });
        self.event(IkeEvent::ChildInstalled(Box::new(installed)));
        Ok(())
    }
}
