//! What the peer's alerts mean to an operator.

use rustls::AlertDescription as Alert;

use super::handshake_failure::{HandshakeFailure, HandshakeRole, Party, failure};

/// Says what an alert means, given as its number on the wire: one that arrives after the handshake
/// is not seen by the TLS library.
#[must_use]
pub fn describe_alert_number(role: HandshakeRole, alert: u8) -> HandshakeFailure {
    describe_alert(role, Alert::from(alert))
}

pub(super) fn describe_alert(role: HandshakeRole, alert: Alert) -> HandshakeFailure {
    let Meaning { kind, party, said, step } = meaning(alert);
    let peer = role.peer();
    let step = step.replace("{peer}", peer);
    failure(kind, party, format!("the {peer} {said} (alert {alert:?}): {step}"))
}

/// What an alert says to us.
struct Meaning {
    /// The kind of the failure.
    kind: &'static str,
    /// Who has to act.
    party: Party,
    /// What the peer said.
    said: &'static str,
    /// What to do next; `{peer}` stands for the peer.
    step: &'static str,
}

fn meaning(alert: Alert) -> Meaning {
    match alert {
        Alert::UnknownCA => Meaning {
            kind: "peer-refused-certificate",
            party: Party::Peer,
            said: "does not trust the CA of our certificate",
            step: "give the {peer} that CA's certificate, and see that the identity's file holds \
                   the certificates in between",
        },
        Alert::CertificateExpired | Alert::CertificateRevoked => Meaning {
            kind: "peer-refused-certificate",
            party: Party::Us,
            said: "says that our certificate is no longer valid",
            step: "renew the identity, or set the {peer}'s clock",
        },
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::AccessDenied => Meaning {
            kind: "peer-refused-certificate",
            party: Party::Us,
            said: "refused our certificate",
            step: "see that its names and usages suit the {peer}, and look at the {peer}'s log",
        },
        Alert::CertificateRequired | Alert::NoCertificate => Meaning {
            kind: "peer-requires-certificate",
            party: Party::Policy,
            said: "requires a certificate",
            step: "set identity in the rule",
        },
        Alert::ProtocolVersion => Meaning {
            kind: "no-common-version",
            party: Party::Peer,
            said: "speaks no TLS version that the rule allows",
            step: "update the {peer} to TLS 1.2 or 1.3, and look at the rule's min-version; older \
                   versions are never spoken",
        },
        Alert::HandshakeFailure | Alert::InsufficientSecurity => Meaning {
            kind: "peer-sent-alert",
            party: Party::Peer,
            said: "found no common suite, group or signature, or missed a certificate",
            step: "allow the {peer} AES-GCM or ChaCha20-Poly1305 with ECDHE, and look at its log",
        },
        Alert::NoApplicationProtocol => Meaning {
            kind: "no-common-alpn",
            party: Party::Policy,
            said: "knows none of the rule's application protocols",
            step: "put one that the {peer} knows into alpn, or leave alpn out",
        },
        Alert::UnrecognisedName => Meaning {
            kind: "peer-sent-alert",
            party: Party::Policy,
            said: "has no such name",
            step: "set server-name in the rule to a name of the {peer}",
        },
        Alert::CloseNotify | Alert::UserCanceled => Meaning {
            kind: "peer-closed",
            party: Party::Peer,
            said: "gave up",
            step: "look at the {peer}'s log",
        },
        _ => Meaning {
            kind: "peer-sent-alert",
            party: Party::Peer,
            said: "gave up",
            step: "look at the {peer}'s log",
        },
    }
}
