//! What errors of the TLS library mean.

use rustls::{CertificateError, Error, PeerIncompatible, PeerMisbehaved};

use super::alert::describe_alert;
use super::first_bytes::{looks_like_plaintext, offered_version};
use super::handshake_failure::{HandshakeFailure, HandshakeRole, Party, failure};
use crate::check::PeerCheck;
use crate::facts::printable;
use crate::signer::NOT_SIGNED;

/// What is known of a handshake that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedHandshake<'a> {
    /// What tacit was in it.
    pub role: HandshakeRole,
    /// The first bytes the peer sent, up to [`FIRST_BYTES_MAX`](super::FIRST_BYTES_MAX); empty:
    /// not known.
    pub first_bytes: &'a [u8],
    /// What the check of the certificate found, as far as it came.
    pub check: Option<&'a PeerCheck>,
}

/// Says what an error of the TLS library means.
#[must_use]
pub fn describe_error(failed: &FailedHandshake<'_>, error: &Error) -> HandshakeFailure {
    let peer = failed.role.peer();
    match error {
        Error::AlertReceived(alert) => describe_alert(failed.role, *alert),
        Error::InvalidCertificate(error) => certificate(failed, error),
        Error::NoCertificatesPresented => failure(
            "client-certificate-absent",
            Party::Peer,
            "the client sent no certificate and the rule requires one: give the client a \
             certificate that the rule's trust accepts, or set client-cert = \"preferred\"",
        ),
        Error::PeerIncompatible(why) => incompatible(failed, why),
        Error::NoApplicationProtocol => failure(
            "no-common-alpn",
            Party::Policy,
            "the client offers none of the rule's application protocols: add one that it offers \
             to alpn, or leave alpn out",
        ),
        Error::InvalidMessage(why) => not_tls(failed, &format!("{why:?}")),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            not_tls(failed, &error.to_string())
        }
        Error::DecryptError | Error::PeerSentOversizedRecord => failure(
            "bad-record",
            Party::Network,
            format!(
                "a record of the {peer} was damaged or altered on the way ({error}): look at \
                 what stands between, and at the {peer}'s TLS library"
            ),
        ),
        Error::PeerMisbehaved(why) => misbehaved(peer, why),
        Error::General(text) if text.contains("no server certificate chain") => failure(
            "no-certificate-for-name",
            Party::Policy,
            "no identity of the rule suits the client's name, suites and signature algorithms: \
             add an identity with an ECDSA P-256 or RSA key",
        ),
        Error::General(text) if text.starts_with(NOT_SIGNED) => failure(
            "not-signed",
            Party::Us,
            format!("{text}: a new signer starts within a second of the end of one; see the log"),
        ),
        Error::FailedToGetCurrentTime => failure(
            "no-clock",
            Party::Us,
            "this host's clock cannot be read or stands before 1970: set it",
        ),
        Error::FailedToGetRandomBytes => failure(
            "no-randomness",
            Party::Us,
            "the kernel gave no random bytes: see that getrandom is allowed by the sandbox",
        ),
        other => failure(
            "tls-library",
            Party::Us,
            format!("the handshake failed in this host's TLS library: {other}"),
        ),
    }
}

/// Says that the peer did not agree on an application protocol that it must have.
#[must_use]
pub fn describe_lacking_alpn(role: HandshakeRole, wanted: &str) -> HandshakeFailure {
    let peer = role.peer();
    let message = format!(
        "the {peer} began with TLS itself and without the application protocol `{wanted}`, as one \
         would that is meant for another server: have it offer `{wanted}` (ALPN), or ask for TLS \
         before it begins"
    );
    failure("no-common-alpn", Party::Peer, message)
}

fn certificate(failed: &FailedHandshake<'_>, error: &CertificateError) -> HandshakeFailure {
    let kind = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "certificate-expired"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "certificate-not-yet-valid"
        }
        CertificateError::UnknownIssuer => "certificate-unknown-ca",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "certificate-wrong-name"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "certificate-wrong-usage"
        }
        CertificateError::Revoked => "certificate-revoked",
        CertificateError::UnknownRevocationStatus
        | CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. } => "revocation-unknown",
        _ => "certificate-invalid",
    };
    let message = match failed.check {
        Some(PeerCheck::Invalid { reason }) => reason.clone(),
        _ => format!("the {}'s certificate is not believed: {error}", failed.role.peer()),
    };
    failure(kind, Party::Peer, message)
}

fn incompatible(failed: &FailedHandshake<'_>, why: &PeerIncompatible) -> HandshakeFailure {
    use PeerIncompatible as Why;
    let peer = failed.role.peer();
    // An old hello lacks extensions too, and the library may complain of those first.
    if offered_version(failed.first_bytes).is_some_and(|version| !is_spoken(version)) {
        return no_common_version(failed);
    }
    match why {
        Why::Tls12NotOffered
        | Why::Tls12NotOfferedOrEnabled
        | Why::SupportedVersionsExtensionRequired
        | Why::ServerDoesNotSupportTls12Or13
        | Why::ServerTlsVersionIsDisabledByOurConfig => no_common_version(failed),
        Why::NoCipherSuitesInCommon => failure(
            "no-common-suite",
            Party::Peer,
            format!(
                "the {peer} offers no suite that the rule allows: allow it AES-GCM or \
                 ChaCha20-Poly1305 with ECDHE (CBC, RC4, 3DES and static RSA are never spoken); \
                 on TLS 1.2 the suite must also suit the kind of our key, ECDSA or RSA"
            ),
        ),
        Why::NoKxGroupsInCommon | Why::NamedGroupsExtensionRequired => failure(
            "no-common-group",
            Party::Peer,
            format!(
                "the {peer} offers no key exchange group that the rule allows: allow it x25519, \
                 secp256r1, secp384r1 or X25519MLKEM768 (finite-field DH is never spoken)"
            ),
        ),
        Why::NoSignatureSchemesInCommon
        | Why::NoCertificateRequestSignatureSchemesInCommon
        | Why::SignatureAlgorithmsExtensionRequired => failure(
            "no-common-signature",
            Party::Peer,
            format!(
                "the {peer} accepts no signature our key can make: allow it ECDSA or RSA-PSS with \
                 SHA-256, or give the rule an identity with another kind of key"
            ),
        ),
        other => failure(
            "peer-incompatible",
            Party::Peer,
            format!("the {peer} lacks what TLS 1.2 and 1.3 need ({other:?}): update its library"),
        ),
    }
}

fn no_common_version(failed: &FailedHandshake<'_>) -> HandshakeFailure {
    let peer = failed.role.peer();
    let message = match offered_version(failed.first_bytes) {
        Some(version) if is_spoken(version) => format!(
            "the {peer} speaks {version} and the rule's min-version is newer: update the {peer}, \
             or set min-version = \"1.2\""
        ),
        Some(version) => {
            format!("the {peer} speaks {version}, which is refused: update it to TLS 1.2 or 1.3")
        }
        None => format!(
            "the {peer} speaks no TLS version that the rule allows: update it to TLS 1.2 or 1.3, \
             and look at the rule's min-version"
        ),
    };
    failure("no-common-version", Party::Peer, message)
}

fn is_spoken(version: &str) -> bool {
    matches!(version, "TLS 1.2" | "TLS 1.3")
}

fn not_tls(failed: &FailedHandshake<'_>, detail: &str) -> HandshakeFailure {
    let peer = failed.role.peer();
    if let Some(protocol) = looks_like_plaintext(failed.first_bytes) {
        let kind = if protocol == "HTTP" { "plain-http" } else { "not-tls" };
        let step = match failed.role {
            HandshakeRole::Server if protocol == "HTTP" => "use https:// there",
            HandshakeRole::Server => "switch TLS on there, or connect to another port",
            HandshakeRole::Client => "name its TLS port in connect (STARTTLS is not spoken)",
        };
        let message = format!("the {peer} speaks plain {protocol}, not TLS, on this port: {step}");
        return failure(kind, Party::Peer, message);
    }
    if offered_version(failed.first_bytes).is_some_and(|version| !is_spoken(version)) {
        return no_common_version(failed);
    }
    let kind = match failed.first_bytes {
        [0x14..=0x18, 3, ..] | [] => "bad-message",
        _ => "not-tls",
    };
    let message = format!(
        "what the {peer} sent is not a valid TLS handshake ({}): see whether it speaks TLS on \
         this port, and which library it uses",
        printable(detail)
    );
    failure(kind, Party::Peer, message)
}

fn misbehaved(peer: &str, why: &PeerMisbehaved) -> HandshakeFailure {
    let message = format!(
        "the {peer} broke the TLS protocol ({why:?}): update its TLS library, or look for what \
         stands between"
    );
    failure("peer-misbehaved", Party::Peer, message)
}
