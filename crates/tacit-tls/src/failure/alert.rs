//! What the peer's alerts mean to an operator.

use rustls::AlertDescription as Alert;

use super::handshake_failure::{HandshakeFailure, Party, Role, failure};

/// Says what an alert means, given as its number on the wire: one that arrives after the handshake
/// is not seen by the TLS library.
#[must_use]
pub fn describe_alert_number(role: Role, alert: u8) -> HandshakeFailure {
    describe_alert(role, Alert::from(alert))
}

pub(super) fn describe_alert(role: Role, alert: Alert) -> HandshakeFailure {
    let (kind, party, said, step) = meaning(alert);
    let peer = role.peer();
    let step = step.replace("{peer}", peer);
    failure(kind, party, format!("the {peer} {said} (alert {alert:?}): {step}"))
}

/// Kind, who has to act, what the peer said, and the next step.
fn meaning(alert: Alert) -> (&'static str, Party, &'static str, &'static str) {
    match alert {
        Alert::UnknownCA => (
            "peer-refused-certificate",
            Party::Peer,
            "does not trust the CA of our certificate",
            "give the {peer} that CA's certificate, and see that the identity's file holds the \
             certificates in between",
        ),
        Alert::CertificateExpired | Alert::CertificateRevoked => (
            "peer-refused-certificate",
            Party::Us,
            "says that our certificate is no longer valid",
            "renew the identity, or set the {peer}'s clock",
        ),
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::AccessDenied => (
            "peer-refused-certificate",
            Party::Us,
            "refused our certificate",
            "see that its names and usages suit the {peer}, and look at the {peer}'s log",
        ),
        Alert::CertificateRequired | Alert::NoCertificate => (
            "peer-requires-certificate",
            Party::Policy,
            "requires a certificate",
            "set identity in the rule",
        ),
        Alert::ProtocolVersion => (
            "no-common-version",
            Party::Peer,
            "speaks no TLS version that the rule allows",
            "update the {peer} to TLS 1.2 or 1.3, and look at the rule's min-version; older \
             versions are never spoken",
        ),
        Alert::HandshakeFailure | Alert::InsufficientSecurity => (
            "peer-sent-alert",
            Party::Peer,
            "found no common suite, group or signature, or missed a certificate",
            "allow the {peer} AES-GCM or ChaCha20-Poly1305 with ECDHE, and look at its log",
        ),
        Alert::NoApplicationProtocol => (
            "no-common-alpn",
            Party::Policy,
            "knows none of the rule's application protocols",
            "put one that the {peer} knows into alpn, or leave alpn out",
        ),
        Alert::UnrecognisedName => (
            "peer-sent-alert",
            Party::Policy,
            "has no such name",
            "set server-name in the rule to a name of the {peer}",
        ),
        Alert::CloseNotify | Alert::UserCanceled => {
            ("peer-closed", Party::Peer, "gave up", "look at the {peer}'s log")
        }
        _ => ("peer-sent-alert", Party::Peer, "gave up", "look at the {peer}'s log"),
    }
}
