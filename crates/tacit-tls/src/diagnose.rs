//! Explains in one line why a certificate is not trusted, and what to do.
//!
//! The verifier often returns only a general error. So this module examines the chain to find the
//! cause. Examples are X.509 v1, a small RSA key, and a CA certificate in place of the peer's own
//! certificate.

use rustls::{CertificateError, Error};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::credentials::{CrlFacts, PathFault, trust_title};
use super::facts::{CertificateFacts, DAY_SECONDS, RSA_BITS_MIN, utc};

/// Maximum number of names in one message.
const NAMES_SHOWN_MAX: usize = 8;

/// The owner of the certificate.
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

/// A chain that failed its check.
pub(super) struct FailedChain<'a> {
    pub(super) peer: PeerRole,
    pub(super) trust: &'a str,
    /// The CRLs of the trust.
    pub(super) crls: &'a [CrlFacts],
    /// The name that the certificate of a server has to match.
    pub(super) name: Option<&'a ServerName<'a>>,
    pub(super) leaf: &'a CertificateDer<'a>,
    pub(super) rest: &'a [CertificateDer<'a>],
    pub(super) now: UnixTime,
}

/// Explains why a chain is not trusted.
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
        return format!("the {who}'s certificate {} was rejected: {error}", leaf.title());
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
                "the extendedKeyUsage of the {who}'s certificate {title} allows {usages}, but not \
                 {needed}: reissue the certificate with extendedKeyUsage = {needed}",
                title = leaf.title(),
                usages = listed(&leaf.usages),
                needed = failed.peer.usage(),
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

/// Explains why a handshake signature is not valid.
pub(super) fn diagnose_proof(error: &Error, peer: PeerRole, leaf: &CertificateDer<'_>) -> String {
    let Ok(facts) = CertificateFacts::from_der(leaf) else { return unreadable(peer) };
    old_or_small(peer, std::slice::from_ref(&facts)).unwrap_or_else(|| {
        format!(
            "the {who} did not prove that it holds the private key of its certificate {title} \
             ({error}): on the {who}, install the private key that belongs to this certificate",
            title = facts.title(),
            who = peer.word(),
        )
    })
}

/// Explains why no handshake with this leaf can prove possession of its key. `error` is the reason
/// if the leaf cannot be read.
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
        "the {who}'s certificate {title} has a key of type {key}, and tacit cannot check \
         signatures of this type: reissue the certificate with an ECDSA P-256 or RSA \
         {RSA_BITS_MIN} key",
        title = facts.title(),
        key = facts.key,
        who = peer.word(),
    )
}

/// Explains faults that the library's errors do not name. `None` if the facts of the chain explain
/// more.
fn faulty(fault: &PathFault, peer: PeerRole, chain: &[CertificateFacts]) -> Option<String> {
    use webpki::Error as Why;
    let who = peer.word();
    let title = chain.first().map_or("", CertificateFacts::title);
    let certificate = format!("the {who}'s certificate {title}");
    Some(match fault {
        PathFault::NotPinned => format!("{certificate} is not a pinned certificate"),
        PathFault::AnchorExpired { subject, not_after } => format!(
            "the chain of {certificate} ends at the CA {subject}, whose certificate expired at \
             {time}: add the CA's renewed certificate to the [trust] table, or set \
             expired-anchors = \"accept\" in this table",
            time = utc(*not_after)
        ),
        PathFault::CaMayNotSign { subject } => format!(
            "{certificate} was issued through the CA {subject}, but the keyUsage of this CA does \
             not allow signing certificates: reissue the CA's certificate with keyCertSign"
        ),
        PathFault::CaMayNotSignCrls { subject } => format!(
            "the chain of {certificate} contains the CA {subject}, but the keyUsage of this CA \
             does not allow signing CRLs: reissue the CA's certificate with cRLSign"
        ),
        PathFault::LeafMayNotSign => format!(
            "{certificate} cannot be used in handshakes, because its keyUsage does not allow \
             signatures: reissue the certificate with digitalSignature"
        ),
        PathFault::Library(error) => match error {
            Why::PathLenConstraintViolated => format!(
                "the chain of {certificate} contains more intermediate CAs than a CA in the chain \
                 allows (pathLenConstraint): issue the certificate from a CA closer to the root"
            ),
            Why::NameConstraintViolation
            | Why::MalformedNameConstraint
            | Why::UnsupportedNameType => format!(
                "{certificate} has a name outside the nameConstraints of a CA, or a type of name \
                 that tacit cannot check, such as an e-mail address: reissue the certificate with \
                 names that the CA allows"
            ),
            Why::UnsupportedCriticalExtension => format!(
                "{certificate}, or a CA certificate in its chain, has a critical extension that \
                 tacit does not support: reissue that certificate without the extension, or mark \
                 the extension as non-critical"
            ),
            Why::IssuerNotCrlSigner
            | Why::InvalidCrlSignatureForPublicKey
            | Why::UnsupportedCrlSignatureAlgorithmContext(_)
            | Why::UnsupportedCrlSignatureAlgorithmForPublicKeyContext(_) => format!(
                "tacit cannot check whether {certificate} is revoked, because the CRL of a CA in \
                 its chain has no valid signature of this CA: get the CRL again from the CA"
            ),
            Why::UnsupportedSignatureAlgorithmContext(_)
            | Why::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => format!(
                "{certificate}, or a CA certificate in its chain, is signed with an algorithm that \
                 tacit does not accept (SHA-1, MD5 or a rare algorithm): reissue that certificate \
                 with a SHA-256 signature"
            ),
            Why::MaximumPathDepthExceeded
            | Why::MaximumPathBuildCallsExceeded
            | Why::MaximumSignatureChecksExceeded
            | Why::MaximumNameConstraintComparisonsExceeded => format!(
                "the chain of {certificate} has too many CAs or names to check: configure the \
                 {who} to send only the leaf and the intermediate certificates"
            ),
            _ => return None,
        },
    })
}

fn not_pinned(failed: &FailedChain<'_>, leaf: &CertificateFacts) -> String {
    format!(
        "the {who}'s certificate {title} is not pinned in {trust}: ask the operator of \
         the {who} whether the certificate with the SHA-256 value {sha256} is correct. If so, add \
         the certificate to `pinned` in this [trust] table",
        who = failed.peer.word(),
        title = leaf.title(),
        trust = trust_title(failed.trust),
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
            "the {who}'s certificate {title} is X.509 v{version}, which supports neither host \
             names nor usages: reissue the certificate as v3 with a subjectAltName",
            title = facts.title(),
            version = facts.version
        ));
    }
    let facts = chain.iter().find(|facts| facts.has_weak_key())?;
    Some(format!(
        "the {who}'s certificate {title} has a key that is too weak ({key}): reissue the \
         certificate with an ECDSA P-256 or RSA {RSA_BITS_MIN} key",
        title = facts.title(),
        key = facts.key
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
            "the {who}'s certificate {title} expired at {time}, {days} days ago: renew the \
             certificate",
            title = facts.title(),
            time = utc(facts.not_after),
            days = (now - facts.not_after) / DAY_SECONDS
        );
    }
    if let Some(facts) = chain.iter().find(|facts| now < facts.not_before) {
        return format!(
            "the {who}'s certificate {title} is not valid before {start}, but this host's clock \
             shows {now}: correct this clock if it is wrong, or wait until {start}",
            title = facts.title(),
            start = utc(facts.not_before),
            now = utc(now)
        );
    }
    format!("the {who}'s certificate chain is not valid now ({error}): renew the chain")
}

fn wrong_name(name: Option<&ServerName<'_>>, leaf: &CertificateFacts) -> String {
    let wanted = name.map_or_else(|| "the required name".into(), ServerName::to_str);
    if leaf.sans.is_empty() {
        return format!(
            "the server's certificate {title} has no subjectAltName, and tacit ignores common \
             names: reissue the certificate with a subjectAltName for {wanted}",
            title = leaf.title()
        );
    }
    format!(
        "the server's certificate is for {names}, not for {wanted}: set `server-name` to a name \
         in the certificate, or reissue the certificate with {wanted} in the subjectAltName",
        names = listed(&leaf.sans)
    )
}

fn revoked(failed: &FailedChain<'_>, leaf: &CertificateFacts) -> String {
    let who = failed.peer.word();
    let title = leaf.title();
    if failed.rest.is_empty() {
        format!(
            "the {who}'s certificate {title} was revoked: issue a new certificate for the {who}"
        )
    } else {
        format!(
            "the {who}'s certificate {title}, or a CA certificate in its chain, was revoked: \
             issue a new certificate for the {who}"
        )
    }
}

/// Explains which CA has no current CRL.
fn no_current_crl(failed: &FailedChain<'_>, chain: &[CertificateFacts]) -> String {
    let who = failed.peer.word();
    let trust = trust_title(failed.trust);
    let now = i64::try_from(failed.now.as_secs()).unwrap_or(i64::MAX);
    let title = chain.first().map_or("", CertificateFacts::title);
    let problem = format!("tacit cannot check whether the {who}'s certificate {title} is revoked");
    let crl_of = |ca: &str| failed.crls.iter().find(move |crl| crl.issuer == ca);
    let issuers = || chain.iter().map(|facts| facts.issuer.as_str());
    if let Some(ca) = issuers().find(|ca| crl_of(ca).is_none()) {
        return format!(
            "{problem}, because {trust} has no CRL of the CA {ca}: add the CRL to `crl`"
        );
    }
    match issuers().filter_map(crl_of).find(|crl| crl.is_out_of_date(now)) {
        Some(crl) => format!(
            "{problem}, because the CRL of the CA {issuer} in {trust} expired at {time}: \
             get the current CRL",
            issuer = crl.issuer,
            time = utc(crl.next_update)
        ),
        None => format!(
            "{problem}, because the CRLs in {trust} do not cover this type of certificate: \
             add the CRLs that the CA publishes for this type"
        ),
    }
}

fn self_signed(failed: &FailedChain<'_>, leaf: &CertificateFacts) -> String {
    let who = failed.peer.word();
    let trust = trust_title(failed.trust);
    let title = leaf.title();
    let kind = if !leaf.is_self_signed {
        "a CA certificate, not a leaf"
    } else if leaf.is_ca {
        "a self-signed CA certificate, not a leaf"
    } else {
        "self-signed"
    };
    format!(
        "the {who}'s certificate {title} is {kind}, and {trust} does not contain the \
         issuer of the certificate: issue a leaf certificate for the {who} from a CA in {trust}"
    )
}

fn wrong_issuer(
    error: &CertificateError,
    failed: &FailedChain<'_>,
    chain: &[CertificateFacts],
) -> String {
    let who = failed.peer.word();
    let trust = trust_title(failed.trust);
    let title = chain.first().map_or("", CertificateFacts::title);
    let named = chain.last().map(|facts| facts.issuer.as_str()).filter(|name| !name.is_empty());
    let issuer = named.unwrap_or("(no name)");
    match error {
        CertificateError::UnknownIssuer => format!(
            "the chain of the {who}'s certificate {title} ends at the issuer {issuer}, but \
             {trust} does not contain this CA: add this CA to {trust}, or \
             configure the {who} to send the intermediate certificates"
        ),
        CertificateError::BadSignature => format!(
            "the {who}'s certificate {title} was not signed by the CA {issuer} in {trust}: \
             this CA has the name of the issuer, but another key. Add the current certificate of \
             the CA to {trust}"
        ),
        CertificateError::Other(_) => format!(
            "the {who}'s certificate {title}, issued by {issuer}, violates the profile for \
             certificates (RFC 5280): have the CA reissue the certificate"
        ),
        other => format!(
            "the {who}'s certificate {title}, issued by {issuer}, is not trusted ({other}): \
             have the CA reissue the certificate"
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
