//! Why a certificate was not believed, in one line: which, why, and what to do.
//!
//! The verifier's error decides the connection; the facts of the chain only explain it. Where the
//! facts show a cause that a verifier hides behind a general word (X.509 v1, a small RSA key, a CA
//! certificate sent as a leaf), the cause is named.

use rustls::{CertificateError, Error};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::credentials::{CrlFacts, PathFault};
use super::facts::{CertificateFacts, DAY_SECONDS, RSA_BITS_MIN, utc};

/// Most names listed in one message.
const NAMES_SHOWN_MAX: usize = 8;

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerRole {
    Server,
    Client,
}

impl PeerRole {
    fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Server => "serverAuth",
            Self::Client => "clientAuth",
        }
    }
}

/// What was checked.
pub(super) struct FailedChain<'a> {
    pub(super) peer: PeerRole,
    pub(super) trust: &'a str,
    /// The trust's lists of revoked certificates.
    pub(super) crls: &'a [CrlFacts],
    /// The name a server had to have.
    pub(super) name: Option<&'a ServerName<'a>>,
    pub(super) leaf: &'a CertificateDer<'a>,
    pub(super) rest: &'a [CertificateDer<'a>],
    pub(super) now: UnixTime,
}

/// Explains a chain that was not believed.
pub(super) fn diagnose_chain(error: &Error, failed: &FailedChain<'_>) -> String {
    let who = failed.peer.word();
    let Ok(leaf) = CertificateFacts::from_der(failed.leaf) else { return unreadable(failed.peer) };
    if PathFault::within(error) == Some(&PathFault::NotPinned) {
        return not_pinned(failed, &leaf);
    }
    let above = failed.rest.iter().filter_map(|der| CertificateFacts::from_der(der).ok());
    let chain: Vec<_> = std::iter::once(leaf.clone()).chain(above).collect();
    if let Some(cause) = old_or_small(failed.peer, &chain) {
        return cause;
    }
    if let Some(cause) = PathFault::within(error).and_then(|it| faulty(it, failed.peer, &chain)) {
        return cause;
    }
    let Error::InvalidCertificate(error) = error else {
        return format!("the {who}'s certificate of {} was refused: {error}", leaf.title());
    };
    match error {
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => out_of_time(error, failed, &chain),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            wrong_name(failed.name, &leaf)
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            format!(
                "the {who}'s certificate of {} is for {}, not for {usage}: \
                 reissue it with extendedKeyUsage = {usage}",
                leaf.title(),
                listed(&leaf.usages),
                usage = failed.peer.usage(),
            )
        }
        CertificateError::Revoked => revoked(failed, &leaf),
        CertificateError::UnknownRevocationStatus
        | CertificateError::ExpiredRevocationList
        | CertificateError::ExpiredRevocationListContext { .. } => no_current_crl(failed, &chain),
        _ if leaf.is_self_signed || leaf.is_ca => self_signed(failed, &leaf),
        _ => wrong_issuer(error, failed, &chain),
    }
}

/// Explains a handshake signature that was not believed.
pub(super) fn diagnose_proof(error: &Error, peer: PeerRole, leaf: &CertificateDer<'_>) -> String {
    let Ok(facts) = CertificateFacts::from_der(leaf) else { return unreadable(peer) };
    old_or_small(peer, std::slice::from_ref(&facts)).unwrap_or_else(|| {
        format!(
            "the {who} did not prove that it holds the key of its certificate of {} ({error}): \
             give the {who} the key that belongs to the certificate",
            facts.title(),
            who = peer.word(),
        )
    })
}

/// Explains a leaf whose holder no handshake can prove to hold its key; `error`: why it cannot even
/// be read, if so.
pub(super) fn diagnose_unprovable(
    error: Option<&Error>,
    peer: PeerRole,
    leaf: &CertificateDer<'_>,
) -> String {
    let Ok(facts) = CertificateFacts::from_der(leaf) else { return unreadable(peer) };
    if let Some(cause) = old_or_small(peer, std::slice::from_ref(&facts)) {
        return cause;
    }
    if let Some(cause) = error
        .and_then(PathFault::within)
        .and_then(|fault| faulty(fault, peer, std::slice::from_ref(&facts)))
    {
        return cause;
    }
    if error.is_some() {
        return unreadable(peer);
    }
    format!(
        "the {who}'s certificate of {} has a key of kind {}, whose signatures cannot be checked: \
         reissue it with ECDSA P-256 or RSA {RSA_BITS_MIN}",
        facts.title(),
        facts.key,
        who = peer.word(),
    )
}

/// Explains what the library's errors have no word for; `None`: the facts of the chain say more.
fn faulty(fault: &PathFault, peer: PeerRole, chain: &[CertificateFacts]) -> Option<String> {
    use webpki::Error as Why;
    let who = peer.word();
    let title = chain.first().map_or("", CertificateFacts::title);
    let of = format!("the {who}'s certificate of {title}");
    Some(match fault {
        PathFault::NotPinned => format!("{of} is not one of those pinned"),
        PathFault::AnchorExpired { subject, not_after } => format!(
            "{of} leads to the CA {subject}, which expired at {}: get its next certificate into \
             the trust, or say expired-anchors = \"accept\" there",
            utc(*not_after)
        ),
        PathFault::CaMayNotSign { subject } => format!(
            "{of} leads over the CA {subject}, whose keyUsage does not allow it to sign \
             certificates: reissue the CA's certificate with keyCertSign"
        ),
        PathFault::CaMayNotSignCrls { subject } => format!(
            "{of} leads to the CA {subject}, whose keyUsage does not allow it to sign lists of \
             revoked certificates: reissue the CA's certificate with cRLSign"
        ),
        PathFault::LeafMayNotSign => format!(
            "{of} has a keyUsage that does not allow it to sign, as each handshake asks: reissue \
             it with digitalSignature"
        ),
        PathFault::Library(error) => match error {
            Why::PathLenConstraintViolated => format!(
                "{of} has more CAs above it than one of them allows (pathLenConstraint): have it \
                 issued by a CA higher up"
            ),
            Why::NameConstraintViolation
            | Why::MalformedNameConstraint
            | Why::UnsupportedNameType => format!(
                "{of} has a name that a CA above it does not allow (nameConstraints), or one of a \
                 kind whose limits cannot be checked, such as an e-mail address: reissue it with \
                 names that the CA allows, or the CA without such limits"
            ),
            Why::UnsupportedCriticalExtension => format!(
                "{of}, or a CA above it, has a critical extension that is not known here: reissue \
                 it without, or with the extension not critical"
            ),
            Why::IssuerNotCrlSigner
            | Why::InvalidCrlSignatureForPublicKey
            | Why::UnsupportedCrlSignatureAlgorithmContext(_)
            | Why::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_) => format!(
                "{of} cannot be looked up: the list of revoked certificates of a CA above it is \
                 not signed by that CA as it must be: get the list again from the CA"
            ),
            Why::UnsupportedSignatureAlgorithmContext(_)
            | Why::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => format!(
                "{of}, or a CA above it, is signed with an algorithm that is not trusted (SHA-1, \
                 MD5 or a rare one): reissue it signed with SHA-256"
            ),
            Why::MaximumPathDepthExceeded
            | Why::MaximumPathBuildCallsExceeded
            | Why::MaximumSignatureChecksExceeded
            | Why::MaximumNameConstraintComparisonsExceeded => format!(
                "{of} comes with so many CAs or names that checking them was given up: have the \
                 {who} send the leaf and the CAs between it and the trust, and no others"
            ),
            _ => return None,
        },
    })
}

fn not_pinned(failed: &FailedChain<'_>, leaf: &CertificateFacts) -> String {
    format!(
        "the {who}'s certificate of {title} is not one of those pinned in trust '{trust}': if the \
         {who} renewed it, add its new certificate to `pinned` there (SHA-256 {sha256}; compare it \
         with what its operator says)",
        who = failed.peer.word(),
        title = leaf.title(),
        trust = failed.trust,
        sha256 = leaf.sha256,
    )
}

fn unreadable(peer: PeerRole) -> String {
    let who = peer.word();
    format!("the {who} sent a certificate that is not valid X.509: reissue the {who}'s certificate")
}

fn old_or_small(peer: PeerRole, chain: &[CertificateFacts]) -> Option<String> {
    let who = peer.word();
    if let Some(facts) = chain.iter().find(|facts| facts.version < 3) {
        return Some(format!(
            "the {who}'s certificate of {} is X.509 v{}, which can name neither hosts nor usages: \
             reissue it as v3 with a subjectAltName",
            facts.title(),
            facts.version
        ));
    }
    let facts = chain.iter().find(|facts| facts.has_weak_key())?;
    Some(format!(
        "the {who}'s certificate of {} has an {} key, which is too small to be believed: \
         reissue it with ECDSA P-256 or RSA {RSA_BITS_MIN}",
        facts.title(),
        facts.key
    ))
}

fn out_of_time(
    error: &CertificateError,
    failed: &FailedChain<'_>,
    chain: &[CertificateFacts],
) -> String {
    let who = failed.peer.word();
    let now = i64::try_from(failed.now.as_secs()).unwrap_or(i64::MAX);
    if let Some(facts) = chain.iter().find(|facts| now > facts.not_after) {
        return format!(
            "the {who}'s certificate of {} expired at {}, {} days ago: renew it",
            facts.title(),
            utc(facts.not_after),
            (now - facts.not_after) / DAY_SECONDS
        );
    }
    if let Some(facts) = chain.iter().find(|facts| now < facts.not_before) {
        return format!(
            "the {who}'s certificate of {} is not valid before {} and this host's clock says {}: \
             set the clock that is wrong, or wait",
            facts.title(),
            utc(facts.not_before),
            utc(now)
        );
    }
    format!("the {who}'s chain is not valid now ({error}): renew it")
}

fn wrong_name(name: Option<&ServerName<'_>>, leaf: &CertificateFacts) -> String {
    let wanted = name.map_or_else(|| "the name wanted".into(), ServerName::to_str);
    if leaf.sans.is_empty() {
        return format!(
            "the server's certificate of {} has no subjectAltName, and a common name does not \
             count: reissue it with a subjectAltName for {wanted}",
            leaf.title()
        );
    }
    format!(
        "the server's certificate is for {}, not for {wanted}: set server-name to a name it has, \
         or reissue it with {wanted} in its subjectAltName",
        listed(&leaf.sans)
    )
}

fn revoked(failed: &FailedChain<'_>, leaf: &CertificateFacts) -> String {
    let who = failed.peer.word();
    let title = leaf.title();
    let above = if failed.rest.is_empty() { "" } else { ", or one of the CAs above it," };
    format!("the {who}'s certificate of {title}{above} was revoked: issue the {who} a new one")
}

/// Which CA has no current list.
fn no_current_crl(failed: &FailedChain<'_>, chain: &[CertificateFacts]) -> String {
    let who = failed.peer.word();
    let trust = failed.trust;
    let now = i64::try_from(failed.now.as_secs()).unwrap_or(i64::MAX);
    let title = chain.first().map_or("", CertificateFacts::title);
    let unknown = format!("whether the {who}'s certificate of {title} was revoked is not known");
    let crl_of = |ca: &str| failed.crls.iter().find(move |crl| crl.issuer == ca);
    let issuers = || chain.iter().map(|facts| facts.issuer.as_str());
    if let Some(ca) = issuers().find(|ca| crl_of(ca).is_none()) {
        return format!("{unknown}: trust '{trust}' has no list of the CA {ca}: add it to crl");
    }
    match issuers().filter_map(crl_of).find(|crl| crl.is_out_of_date(now)) {
        Some(crl) => format!(
            "{unknown}: the list of the CA {} in trust '{trust}' is out of date since {}: get \
             the current one",
            crl.issuer,
            utc(crl.next_update)
        ),
        None => format!(
            "{unknown}: the lists in trust '{trust}' are not for certificates of its kind: add \
             those that its CA distributes for it"
        ),
    }
}

fn self_signed(failed: &FailedChain<'_>, leaf: &CertificateFacts) -> String {
    let who = failed.peer.word();
    let trust = failed.trust;
    let title = leaf.title();
    let kind = if !leaf.is_self_signed {
        "is a CA certificate, not a leaf"
    } else if leaf.is_ca {
        "is a self-signed CA certificate, not a leaf"
    } else {
        "is self-signed"
    };
    format!(
        "the {who}'s certificate of {title} {kind}, so trust '{trust}' cannot vouch for it: \
         issue the {who} a leaf from a CA of that trust"
    )
}

fn wrong_issuer(
    error: &CertificateError,
    failed: &FailedChain<'_>,
    chain: &[CertificateFacts],
) -> String {
    let who = failed.peer.word();
    let trust = failed.trust;
    let title = chain.first().map_or("", CertificateFacts::title);
    let named = chain.last().map(|facts| facts.issuer.as_str()).filter(|name| !name.is_empty());
    let issuer = named.unwrap_or("without a name");
    match error {
        CertificateError::UnknownIssuer => format!(
            "the {who}'s certificate of {title} leads to the issuer {issuer}, which trust \
             '{trust}' does not hold: add that CA to the trust, or have the {who} send the \
             certificates in between"
        ),
        CertificateError::BadSignature => format!(
            "the {who}'s certificate of {title} names the issuer {issuer} but is not signed by \
             the key that trust '{trust}' has for it: name the CA's current certificate there"
        ),
        // The library's own text is for its developers.
        CertificateError::Other(_) => format!(
            "the {who}'s certificate of {title}, issued by {issuer}, breaks the rules for \
             certificates (RFC 5280): have its CA reissue it"
        ),
        other => format!(
            "the {who}'s certificate of {title}, issued by {issuer}, is not believed ({other}): \
             have its CA reissue it"
        ),
    }
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_SHOWN_MAX).map(String::as_str).collect::<Vec<_>>();
    match names.len().saturating_sub(NAMES_SHOWN_MAX) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
