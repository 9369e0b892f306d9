//! Converts each error of the TLS library to a description for operators: the cause, and what to
//! do.

use rustls::{CertificateError, Error, PeerIncompatible, PeerMisbehaved};
use tacit_core::failure_kind::FailureKind;

use super::alert::describe_alert;
use super::first_bytes::{looks_like_plaintext, offered_version};
use super::handshake_failure::{HandshakeFailure, HandshakeRole, Party, failure};
use crate::check::PeerCheck;
use crate::facts::printable;
use crate::signer::NOT_SIGNED;

/// The facts about a handshake that failed.
#[derive(Clone, Copy, Debug)]
pub struct FailedHandshake<'a> {
    /// The role of tacit.
    pub role: HandshakeRole,
    /// The first bytes that the peer sent, up to [`FIRST_BYTES_MAX`](super::FIRST_BYTES_MAX); empty
    /// if they are not known.
    pub first_bytes: &'a [u8],
    /// Whether the client offered no cipher suite with ECDHE.
    pub lacks_ecdhe: bool,
    /// The result of the certificate check, if it ran.
    pub check: Option<&'a PeerCheck>,
}

/// Describes an error of the TLS library.
#[must_use]
pub fn describe_error(failed: &FailedHandshake<'_>, error: &Error) -> HandshakeFailure {
    let peer = failed.role.peer();
    match error {
        Error::AlertReceived(alert) => describe_alert(failed.role, *alert),
        Error::InvalidCertificate(error) => certificate(failed, error),
        Error::NoCertificatesPresented => failure(
            FailureKind("client-certificate-absent"),
            Party::Peer,
            "the client sent no certificate, but the rule requires a client certificate: on the \
             client, configure a certificate that the rule's `trust` accepts, or set client-cert = \
             \"preferred\" in the rule",
        ),
        Error::PeerIncompatible(why) => incompatible(failed, why),
        Error::NoApplicationProtocol => failure(
            FailureKind("no-common-alpn"),
            Party::Policy,
            "the client offers none of the rule's application protocols: add to `alpn` a protocol \
             that the client offers, or remove `alpn`",
        ),
        Error::InvalidMessage(why) => not_tls(failed, &format!("{why:?}")),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => {
            not_tls(failed, &error.to_string())
        }
        Error::DecryptError | Error::PeerSentOversizedRecord => failure(
            FailureKind("bad-record"),
            Party::Network,
            format!(
                "a record from the {peer} was damaged or modified in transit ({error}): check the \
                 middleboxes on the path, and the {peer}'s TLS library"
            ),
        ),
        Error::PeerMisbehaved(why) => misbehaved(peer, why),
        Error::General(text) if text.contains("no server certificate chain") => failure(
            FailureKind("no-certificate-for-name"),
            Party::Policy,
            "no identity of the rule matches the client's request (server name, cipher suites \
             and signature algorithms): add an identity with an ECDSA P-256 or RSA key",
        ),
        Error::General(text) if text.starts_with(NOT_SIGNED) => failure(
            FailureKind("not-signed"),
            Party::Us,
            format!(
                "{text}: read the log. If the signer (the process with the private keys) has \
                 ended, the agent starts a new signer within a second"
            ),
        ),
        Error::FailedToGetCurrentTime => failure(
            FailureKind("no-clock"),
            Party::Us,
            "tacit cannot read the clock of this host, or the clock is set to a time before 1970: \
             set the clock",
        ),
        Error::FailedToGetRandomBytes => failure(
            FailureKind("no-randomness"),
            Party::Us,
            "the kernel returned no random bytes: if a seccomp filter restricts the agent, allow \
             the system call getrandom",
        ),
        other => failure(
            FailureKind("tls-library"),
            Party::Us,
            format!(
                "the handshake failed in tacit's TLS library: {other}; report this error to the \
                 developers of tacit"
            ),
        ),
    }
}

/// Describes a peer that did not negotiate the required application protocol.
#[must_use]
pub fn describe_lacking_alpn(role: HandshakeRole, wanted: &str) -> HandshakeFailure {
    let peer = role.peer();
    let message = format!(
        "the {peer} started TLS directly, without the application protocol `{wanted}` (ALPN). The \
         connection may be meant for another server: configure the {peer} to offer `{wanted}`, or \
         to send the STARTTLS request first"
    );
    failure(FailureKind("no-common-alpn"), Party::Peer, message)
}

fn certificate(failed: &FailedHandshake<'_>, error: &CertificateError) -> HandshakeFailure {
    let kind = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            FailureKind("certificate-expired")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            FailureKind("certificate-not-yet-valid")
        }
        CertificateError::UnknownIssuer => FailureKind("certificate-unknown-ca"),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            FailureKind("certificate-wrong-name")
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            FailureKind("certificate-wrong-usage")
        }
        CertificateError::Revoked => FailureKind("certificate-revoked"),
        CertificateError::UnknownRevocationStatus
        | CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. } => {
            FailureKind("revocation-unknown")
        }
        _ => FailureKind("certificate-invalid"),
    };
    let message = match failed.check {
        Some(PeerCheck::Invalid { reason }) => reason.clone(),
        _ => {
            let peer = failed.role.peer();
            format!("tacit does not trust the {peer}'s certificate: {error}")
        }
    };
    failure(kind, Party::Peer, message)
}

fn incompatible(failed: &FailedHandshake<'_>, why: &PeerIncompatible) -> HandshakeFailure {
    use PeerIncompatible as Why;
    let peer = failed.role.peer();
    // A hello of an old version lacks extensions too, and the library may report the extensions
    // first.
    if offered_version(failed.first_bytes).is_some_and(|version| !is_supported(version)) {
        return no_common_version(failed);
    }
    match why {
        Why::Tls12NotOffered
        | Why::Tls12NotOfferedOrEnabled
        | Why::SupportedVersionsExtensionRequired
        | Why::ServerDoesNotSupportTls12Or13
        | Why::ServerTlsVersionIsDisabledByOurConfig => no_common_version(failed),
        Why::NoCipherSuitesInCommon => failure(
            FailureKind("no-common-suite"),
            Party::Peer,
            format!(
                "the {peer} offers no cipher suite that the rule allows: enable ECDHE with \
                 AES-GCM or ChaCha20-Poly1305 on the {peer} (tacit does not support CBC, RC4, 3DES \
                 or static RSA). In TLS 1.2, the suite must also match the type of tacit's private \
                 key (ECDSA or RSA)"
            ),
        ),
        // The library reports a missing group before it compares the cipher suites.
        Why::NoKxGroupsInCommon | Why::NamedGroupsExtensionRequired if failed.lacks_ecdhe => {
            failure(
                FailureKind("no-common-suite"),
                Party::Peer,
                format!(
                    "the {peer} offers only cipher suites without ECDHE, for example with RSA key \
                     exchange, but tacit supports only ECDHE suites: enable ECDHE with AES-GCM or \
                     ChaCha20-Poly1305 on the {peer}"
                ),
            )
        }
        Why::NoKxGroupsInCommon | Why::NamedGroupsExtensionRequired => failure(
            FailureKind("no-common-group"),
            Party::Peer,
            format!(
                "the {peer} offers no key exchange group that the rule allows: enable x25519, \
                 secp256r1, secp384r1 or X25519MLKEM768 on the {peer} (tacit does not support \
                 finite-field DH)"
            ),
        ),
        Why::NoSignatureSchemesInCommon
        | Why::NoCertificateRequestSignatureSchemesInCommon
        | Why::SignatureAlgorithmsExtensionRequired => failure(
            FailureKind("no-common-signature"),
            Party::Peer,
            format!(
                "the {peer} accepts none of the signature schemes of tacit's key: enable ECDSA or \
                 RSA-PSS with SHA-256 on the {peer}, or configure an identity with another type of \
                 key"
            ),
        ),
        other => failure(
            FailureKind("peer-incompatible"),
            Party::Peer,
            format!(
                "the {peer} lacks a feature that TLS 1.2 and 1.3 require ({other:?}): update the \
                 {peer}'s TLS library"
            ),
        ),
    }
}

fn no_common_version(failed: &FailedHandshake<'_>) -> HandshakeFailure {
    let peer = failed.role.peer();
    let message = match offered_version(failed.first_bytes) {
        Some(version) if is_supported(version) => format!(
            "the {peer} supports only {version} and older versions, but the rule's `min-version` \
             is newer: update the {peer}, or set min-version = \"1.2\""
        ),
        Some(version) => {
            format!(
                "the {peer} uses {version}, which tacit rejects: update the {peer} to TLS 1.2 or \
                 1.3"
            )
        }
        None => format!(
            "the {peer} supports no TLS version that the rule allows: update the {peer} to TLS 1.2 \
             or 1.3, and check the rule's `min-version`"
        ),
    };
    failure(FailureKind("no-common-version"), Party::Peer, message)
}

fn is_supported(version: &str) -> bool {
    matches!(version, "TLS 1.2" | "TLS 1.3")
}

fn not_tls(failed: &FailedHandshake<'_>, detail: &str) -> HandshakeFailure {
    let peer = failed.role.peer();
    if let Some(protocol) = looks_like_plaintext(failed.first_bytes) {
        let kind = match protocol {
            "HTTP" => FailureKind("plain-http"),
            _ => FailureKind("not-tls"),
        };
        let step = match failed.role {
            HandshakeRole::Server if protocol == "HTTP" => "use https:// on the client",
            HandshakeRole::Server => {
                "enable TLS on the client, or connect the client to another port"
            }
            HandshakeRole::Client => "connect to the port on which the server accepts TLS",
        };
        let message = format!("the {peer} sent plain {protocol}, not TLS, on this port: {step}");
        return failure(kind, Party::Peer, message);
    }
    if offered_version(failed.first_bytes).is_some_and(|version| !is_supported(version)) {
        return no_common_version(failed);
    }
    let kind = match failed.first_bytes {
        [0x14..=0x18, 3, ..] | [] => FailureKind("bad-message"),
        _ => FailureKind("not-tls"),
    };
    let message = format!(
        "the data of the {peer} is not a valid TLS handshake ({detail}): check that the {peer} \
         uses TLS on this port, and check the {peer}'s TLS library",
        detail = printable(detail)
    );
    failure(kind, Party::Peer, message)
}

fn misbehaved(peer: &str, why: &PeerMisbehaved) -> HandshakeFailure {
    let message = format!(
        "the {peer} violated the TLS protocol ({why:?}): update the {peer}'s TLS library, or check \
         middleboxes on the path"
    );
    failure(FailureKind("peer-misbehaved"), Party::Peer, message)
}
