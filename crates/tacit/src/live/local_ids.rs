//! Checks whether the certificate of this side contains the identity that tacit claims in a tunnel,
//! the key `local-id` of `[ike.NAME]`. If not, the peer refuses the certificate.

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, IkeCredentials, IkeName, IkePeer, Policy};
use tacit_ipsec::ike::IkeIdentity;
use tacit_tls::credentials::LoadedIdentity;
use tacit_tls::tunnel_auth::{TunnelPeerName, certificate_has_name, subject_of};

use super::Credentials;

/// The largest number of names of a certificate in a message.
const NAMES_SHOWN_MAX: usize = 8;

/// Warns about each `local-id` that the certificate does not contain.
pub(super) fn check(policy: &Policy, credentials: &Credentials) -> Vec<Diagnostic> {
    let warning = |(name, peer): (&String, &IkePeer)| {
        let IkeCredentials::Certificates { identity, .. } = &peer.credentials else { return None };
        warning_of(name, peer, credentials.identities.get(identity)?)
    };
    policy.ikes.iter().filter_map(warning).collect()
}

fn warning_of(name: &str, peer: &IkePeer, identity: &LoadedIdentity) -> Option<Diagnostic> {
    let leaf = identity.certified_key.cert.first()?;
    let subject = subject_of(leaf).map(IkeIdentity::DistinguishedName)?;
    let local_id = &peer.local_id;
    if is_in(leaf, &subject, local_id) {
        return None;
    }
    let part = part_of(local_id);
    let mut names: Vec<String> =
        identity.facts.sans.iter().take(NAMES_SHOWN_MAX).cloned().collect();
    names.push(format!("the subject `{subject}`"));
    let message = format!(
        "`local-id` of [ike.{name}] is `{local_id}`, but the certificate of [identity.{identity}] \
         does not contain this name, so the peer refuses the certificate. The certificate has \
         {names}",
        identity = identity.name,
        names = names.join(", ")
    );
    let fix = format!(
        "set `local-id` to a name of the certificate, or use a certificate with `{local_id}` {part}"
    );
    let warning = Diagnostic::warning(MessageId("wrong-local-id"), peer.local_id_position, message);
    Some(warning.with_fix(fix))
}

fn is_in(leaf: &[u8], subject: &IkeIdentity, local_id: &IkeName) -> bool {
    match local_id {
        IkeName::Address(address) => certificate_has_name(leaf, TunnelPeerName::Address(*address)),
        IkeName::Fqdn(name) => certificate_has_name(leaf, TunnelPeerName::Host(name)),
        IkeName::UserFqdn(name) => certificate_has_name(leaf, TunnelPeerName::Email(name)),
        IkeName::DistinguishedName(attributes) => {
            let pairs: Vec<_> =
                attributes.iter().map(|one| (one.oid.as_str(), one.value.as_str())).collect();
            IkeIdentity::of_attributes(&pairs).as_ref() == Some(subject)
        }
    }
}

/// The part of a certificate that contains such a name.
fn part_of(local_id: &IkeName) -> &'static str {
    match local_id {
        IkeName::DistinguishedName(_) => "as its subject",
        IkeName::Address(_) | IkeName::Fqdn(_) | IkeName::UserFqdn(_) => "in its subjectAltName",
    }
}
