//! Explains the meaning of a TLS alert from the peer, and what the operator can do.

use rustls::AlertDescription as Alert;
use tacit_core::failure_kind::FailureKind;

use super::handshake_failure::{HandshakeFailure, HandshakeRole, Party, failure};

/// Describes an alert by its number in the protocol. The TLS library does not see alerts that
/// arrive after the handshake.
#[must_use]
pub fn describe_alert_number(role: HandshakeRole, alert: u8) -> HandshakeFailure {
    describe_alert(role, Alert::from(alert))
}

pub(super) fn describe_alert(role: HandshakeRole, alert: Alert) -> HandshakeFailure {
    let Meaning { kind, party, reason, step } = meaning(alert);
    let peer = role.peer();
    let [reason, step] = [reason, step].map(|text| text.replace("{peer}", peer));
    failure(kind, party, format!("{reason} (alert {alert:?}): {step}"))
}

/// The meaning of an alert from the peer.
struct Meaning {
    /// The kind of the failure.
    kind: FailureKind,
    /// Who has to act.
    party: Party,
    /// Why the peer sent it, as a predicate whose subject is the peer.
    reason: &'static str,
    /// The next step; `{peer}` stands for the peer.
    step: &'static str,
}

fn meaning(alert: Alert) -> Meaning {
    match alert {
        Alert::UnknownCA => Meaning {
            kind: FailureKind("peer-refused-certificate"),
            party: Party::Peer,
            reason: "the {peer} does not trust the CA of tacit's certificate",
            step: "add the CA's certificate to the {peer}'s trust store, and check that the file \
                   in `cert` contains the intermediate certificates",
        },
        Alert::CertificateExpired | Alert::CertificateRevoked => Meaning {
            kind: FailureKind("peer-refused-certificate"),
            party: Party::Us,
            reason: "the {peer} reports that tacit's certificate has expired or was revoked",
            step: "renew the certificate of the identity, or correct the {peer}'s clock",
        },
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::AccessDenied => Meaning {
            kind: FailureKind("peer-refused-certificate"),
            party: Party::Us,
            reason: "the {peer} rejected tacit's certificate",
            step: "check the names and key usages of tacit's certificate; read the {peer}'s log",
        },
        Alert::CertificateRequired | Alert::NoCertificate => Meaning {
            kind: FailureKind("peer-requires-certificate"),
            party: Party::Policy,
            reason: "the {peer} requires a certificate from tacit",
            step: "set `identity` in the rule, or run `tacit run --tls` with --cert and --key",
        },
        Alert::ProtocolVersion => Meaning {
            kind: FailureKind("no-common-version"),
            party: Party::Peer,
            reason: "the {peer} supports no TLS version that the rule allows",
            step: "update the {peer} to TLS 1.2 or 1.3, and check the rule's `min-version`; tacit \
                   does not support older versions of TLS",
        },
        Alert::HandshakeFailure | Alert::InsufficientSecurity => Meaning {
            kind: FailureKind("peer-sent-alert"),
            party: Party::Peer,
            reason: "the {peer} rejected the handshake: either the {peer} requires a certificate, \
                     or both sides have no cipher suite, group or signature scheme in common",
            step: "enable ECDHE with AES-GCM or ChaCha20-Poly1305 on the {peer}, and read the \
                   {peer}'s log",
        },
        Alert::NoApplicationProtocol => Meaning {
            kind: FailureKind("no-common-alpn"),
            party: Party::Policy,
            reason: "the {peer} supports none of the rule's application protocols",
            step: "add to `alpn` a protocol that the {peer} supports, or remove `alpn`",
        },
        Alert::UnrecognisedName => Meaning {
            kind: FailureKind("peer-sent-alert"),
            party: Party::Policy,
            reason: "the {peer} has no certificate for the requested server name",
            step: "set `server-name` in the rule to a name in the {peer}'s certificate",
        },
        Alert::CloseNotify | Alert::UserCanceled => Meaning {
            kind: FailureKind("peer-closed"),
            party: Party::Peer,
            reason: "the {peer} ended the handshake without a reason",
            step: "read the {peer}'s log",
        },
        _ => Meaning {
            kind: FailureKind("peer-sent-alert"),
            party: Party::Peer,
            reason: "the {peer} ended the handshake with an alert",
            step: "read the {peer}'s log",
        },
    }
}
