//! Returns the names of encryption algorithms as they are written in the policy, for displays
//! (`tacit show`) and the log.

use tacit_core::policy::{IkeGroup, IkeSuite, Sha2, TunnelCipher};
use tacit_ipsec::Cipher;
use tacit_ipsec::ike::IkeProposal;

use super::config::{cipher, group, prf};

/// The words for the algorithms of an IKE SA. They are always those of a proposal of the policy.
#[must_use]
pub(crate) fn proposal_words(proposal: IkeProposal) -> String {
    let found = IkeGroup::ALL.into_iter().find(|one| group(*one) == proposal.group);
    let hash = Sha2::ALL.into_iter().find(|one| prf(*one) == proposal.prf);
    let suite = tunnel_cipher(proposal.cipher).zip(hash).zip(found);
    let suite = suite.map(|((cipher, prf), group)| IkeSuite { cipher, prf, group });
    suite.map_or_else(|| format!("{proposal:?}"), |suite| suite.to_string())
}

fn tunnel_cipher(of_sa: Cipher) -> Option<TunnelCipher> {
    let cbc = |make: fn(Sha2) -> TunnelCipher| Sha2::ALL.into_iter().map(make);
    let aead =
        [TunnelCipher::Aes128Gcm16, TunnelCipher::Aes256Gcm16, TunnelCipher::ChaCha20Poly1305];
    let all = cbc(TunnelCipher::Aes128Cbc).chain(cbc(TunnelCipher::Aes256Cbc)).chain(aead);
    all.into_iter().find(|one| cipher(*one) == of_sa)
}

#[cfg(test)]
mod tests {
    use tacit_core::policy::parse;

    use super::*;
    use crate::ike::config::ike_proposal;

    #[test]
    fn the_words_are_those_of_the_policy() {
        let wanted = [
            "aes128gcm16-prfsha256-ecp256",
            "aes256gcm16-prfsha512-x25519",
            "chacha20poly1305-prfsha384-ecp384",
            "aes128-sha256-prfsha512-ecp256",
            "aes256-sha512-prfsha256-x25519",
        ];
        let policy = format!(
            "version = 1\n[ike.a]\npeer = \"192.0.2.1\"\npsk-file = \"a\"\nlocal-id = \
             \"c.example\"\ninner = \"gateway\"\nproposals = {wanted:?}\n"
        );
        let policy = parse(&policy).policy.unwrap();
        let words: Vec<_> = policy.ikes["a"]
            .proposals
            .iter()
            .map(|suite| proposal_words(ike_proposal(suite)))
            .collect();
        assert_eq!(words, wanted);
    }
}
