use super::*;
use crate::cipher::IntegrityHash;
use crate::ike::codec::{Transform, TransformKind};

const GCM: IkeProposal =
    IkeProposal { cipher: Cipher::Aes256Gcm, prf: Prf::HmacSha384, group: KeGroup::P384 };
const CBC: IkeProposal = IkeProposal {
    cipher: Cipher::Aes128Cbc(IntegrityHash::Sha256),
    prf: Prf::HmacSha256,
    group: KeGroup::X25519,
};
const ESP: EspProposal = EspProposal { cipher: Cipher::Aes128Gcm, pfs: Some(KeGroup::P256) };

fn transform(kind: TransformKind, id: u16, key_bits: Option<u16>) -> Transform {
    Transform { kind, id, key_bits, has_unknown_attribute: false }
}

#[test]
fn the_first_proposal_of_this_side_decides() {
    let offered = offer_ike(&[CBC, GCM], None);
    let (chosen, offer) = choose_ike(&[GCM, CBC], &offered).unwrap();
    assert_eq!((chosen, offer.number), (GCM, 2));
    assert_eq!(choose_ike(&[CBC], &offer_ike(&[GCM], None)), None);
}

#[test]
fn one_offer_may_contain_several_algorithms() {
    let mut offered = offer_ike(&[CBC], None);
    offered[0].transforms.push(transform(TransformKind::Encryption, 3, None));
    offered[0].transforms.push(transform(TransformKind::KeyExchange, 14, None));
    assert_eq!(choose_ike(&[CBC], &offered).unwrap().0, CBC);
}

#[test]
fn an_offer_with_something_unknown_is_not_chosen() {
    for unknown in [
        transform(TransformKind::Other(6), 1, None),
        // An AEAD with an integrity algorithm, and without NONE.
        transform(TransformKind::Integrity, 12, None),
    ] {
        let mut offered = offer_ike(&[GCM], None);
        offered[0].transforms.push(unknown);
        assert_eq!(choose_ike(&[GCM], &offered), None, "{unknown:?}");
    }
    let mut offered = offer_ike(&[GCM], None);
    offered[0].transforms.push(transform(TransformKind::Integrity, 0, None));
    assert!(choose_ike(&[GCM], &offered).is_some());
    let mut offered = offer_ike(&[GCM], None);
    offered[0].transforms[0].has_unknown_attribute = true;
    assert_eq!(choose_ike(&[GCM], &offered), None);
}

#[test]
fn a_key_of_another_length_is_another_algorithm() {
    let other = IkeProposal { cipher: Cipher::Aes128Gcm, ..GCM };
    assert_eq!(choose_ike(&[GCM], &offer_ike(&[other], None)), None);
}

#[test]
fn the_first_child_has_no_group_and_a_later_one_needs_it() {
    let in_auth = offer_esp(&[ESP], ChildExchange::Auth, 1000);
    let (chosen, spi) = choose_esp(&[ESP], &in_auth, ChildExchange::Auth).unwrap();
    assert_eq!((chosen.proposal.pfs, spi, chosen.has_extended_sequence), (None, 1000, true));
    assert_eq!(choose_esp(&[ESP], &in_auth, ChildExchange::Create), None);
    let later = offer_esp(&[ESP], ChildExchange::Create, 1000);
    let (chosen, _) = choose_esp(&[ESP], &later, ChildExchange::Create).unwrap();
    assert_eq!(chosen.proposal, ESP);
    // The answer is one of what was offered.
    let answer = answer_esp(&chosen, 2000);
    let again = choose_esp(&[ESP], &answer, ChildExchange::Create).unwrap();
    assert_eq!(again, (chosen, 2000));
}

#[test]
fn a_peer_without_extended_sequence_numbers_gets_short_ones() {
    let mut offered = offer_esp(&[ESP], ChildExchange::Create, 1000);
    offered[0].transforms.retain(|one| (one.kind, one.id) != (TransformKind::ExtendedSequence, 1));
    let (chosen, _) = choose_esp(&[ESP], &offered, ChildExchange::Create).unwrap();
    assert!(!chosen.has_extended_sequence);
}

#[test]
fn a_description_names_what_is_refused() {
    let mut offered = offer_ike(&[CBC], None);
    assert_eq!(describe(&offered), "AES-CBC-128-HMAC-SHA256-PRF-SHA256-X25519");
    offered[0].transforms = vec![
        transform(TransformKind::Encryption, 3, None),
        transform(TransformKind::Integrity, 2, None),
        transform(TransformKind::KeyExchange, 2, None),
    ];
    assert_eq!(describe(&offered), "3DES-HMAC-SHA1-MODP-1024; 3DES is refused: use AES-GCM");
}
