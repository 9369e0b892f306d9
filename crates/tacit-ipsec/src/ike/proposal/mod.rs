//! Defines proposals (lists of algorithms), and chooses one of the proposals that a peer offers.
//!
//! A proposal in the policy has one algorithm of each kind. A proposal of a peer may have several
//! algorithms of each kind (RFC 7296 section 3.3).

mod names;
mod wire;

use super::codec::{Proposal, ProtocolId};
use super::crypto::{KeGroup, Prf};
use crate::cipher::Cipher;

pub(crate) use names::describe;

/// The algorithms of an IKE SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IkeProposal {
    /// The cipher of messages.
    pub cipher: Cipher,
    /// The function from which keys are derived.
    pub prf: Prf,
    /// The group of the key exchange.
    pub group: KeGroup,
}

/// The algorithms of a child SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EspProposal {
    /// The cipher of packets.
    pub cipher: Cipher,
    /// The group of the key exchange when the child SA is rekeyed; without one, its keys depend on
    /// those of the IKE SA. The first child SA of an IKE SA has no key exchange of its own (RFC
    /// 7296 section 1.2).
    pub pfs: Option<KeGroup>,
}

/// The choice among proposals for a child SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChosenEsp {
    pub(crate) proposal: EspProposal,
    pub(crate) has_extended_sequence: bool,
    /// The number of the proposal in the offer.
    pub(crate) number: u8,
}

/// Whether an offer for a child SA has key exchange groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildExchange {
    /// `IKE_AUTH`, which has none.
    Auth,
    /// `CREATE_CHILD_SA`, which has those of the proposals.
    Create,
}

/// Writes the offer for an IKE SA. `spi` is that of the new IKE SA of this side when it rekeys one,
/// and `None` in `IKE_SA_INIT`.
pub(crate) fn offer_ike(proposals: &[IkeProposal], spi: Option<u64>) -> Vec<Proposal> {
    let spi = spi.map(|spi| spi.to_be_bytes().to_vec()).unwrap_or_default();
    let offer = |(number, proposal): (u8, &IkeProposal)| Proposal {
        number,
        protocol: ProtocolId::Ike,
        spi: spi.clone(),
        transforms: wire::ike(proposal),
    };
    (1..).zip(proposals).map(offer).collect()
}

/// Chooses the first of this side's proposals that the other side offers, with the number that it
/// has there and the SPI of the other side.
pub(crate) fn choose_ike<'a>(
    accepted: &[IkeProposal],
    offered: &'a [Proposal],
) -> Option<(IkeProposal, &'a Proposal)> {
    accepted.iter().find_map(|proposal| {
        let wanted = wire::ike(proposal);
        let is_offered = |offer: &&Proposal| {
            offer.protocol == ProtocolId::Ike && wire::contains(&offer.transforms, &wanted)
        };
        Some((*proposal, offered.iter().find(is_offered)?))
    })
}

/// Writes the offer for a child SA.
pub(crate) fn offer_esp(
    proposals: &[EspProposal],
    exchange: ChildExchange,
    spi: u32,
) -> Vec<Proposal> {
    let offer = |(number, proposal): (u8, &EspProposal)| Proposal {
        number,
        protocol: ProtocolId::Esp,
        spi: spi.to_be_bytes().to_vec(),
        transforms: [
            wire::esp(&exchange.limit(*proposal), wire::Sequence::Extended),
            vec![wire::Sequence::Short.transform()],
        ]
        .concat(),
    };
    (1..).zip(proposals).map(offer).collect()
}

/// Chooses the first of this side's proposals that the other side offers, and extended sequence
/// numbers if they are offered.
pub(crate) fn choose_esp(
    accepted: &[EspProposal],
    offered: &[Proposal],
    exchange: ChildExchange,
) -> Option<(ChosenEsp, u32)> {
    accepted.iter().find_map(|proposal| {
        let limited = exchange.limit(*proposal);
        [wire::Sequence::Extended, wire::Sequence::Short].into_iter().find_map(|sequence| {
            let wanted = wire::esp(&limited, sequence);
            let is_offered = |offer: &&Proposal| {
                offer.protocol == ProtocolId::Esp && wire::contains(&offer.transforms, &wanted)
            };
            let offer = offered.iter().find(is_offered)?;
            let spi = u32::from_be_bytes(offer.spi.as_slice().try_into().ok()?);
            let chosen = ChosenEsp {
                proposal: limited,
                has_extended_sequence: sequence == wire::Sequence::Extended,
                number: offer.number,
            };
            Some((chosen, spi))
        })
    })
}

/// Writes the choice among proposals for an IKE SA.
pub(crate) fn answer_ike(chosen: &IkeProposal, number: u8, spi: Option<u64>) -> Vec<Proposal> {
    let mut answer = offer_ike(std::slice::from_ref(chosen), spi);
    answer.iter_mut().for_each(|proposal| proposal.number = number);
    answer
}

/// Writes the choice among proposals for a child SA.
pub(crate) fn answer_esp(chosen: &ChosenEsp, spi: u32) -> Vec<Proposal> {
    let sequence = match chosen.has_extended_sequence {
        true => wire::Sequence::Extended,
        false => wire::Sequence::Short,
    };
    vec![Proposal {
        number: chosen.number,
        protocol: ProtocolId::Esp,
        spi: spi.to_be_bytes().to_vec(),
        transforms: wire::esp(&chosen.proposal, sequence),
    }]
}

impl ChildExchange {
    /// Removes the group if the exchange has none.
    fn limit(self, proposal: EspProposal) -> EspProposal {
        match self {
            Self::Auth => EspProposal { pfs: None, ..proposal },
            Self::Create => proposal,
        }
    }
}

#[cfg(test)]
mod tests;
