//! Loads the files of the `[trust]` tables of a policy: CA certificates, CRLs and pinned
//! certificates. CA certificates come from PEM files, or from the CA bundle of the system.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::RootCertStore;
use rustls::server::VerifierBuilderError;
use rustls_pki_types::CertificateDer;
use tacit_core::policy::{ExpiredAnchors, Revocation, SYSTEM_TRUST, Trust, TrustSource};

use super::crls::{self, Crl, LoadedCrls};
use super::error::{CredentialError, CredentialFault};
use super::expiry::{expiry_warning, now_seconds};
use super::path::{AnchorFacts, PathCheck, UnknownRevocation};
use super::pem::{certificates, facts_of, read};
use super::pinned::{self, Chain, LoadedPins, Pinned, UnusablePins};
use super::verifiers::Verifiers;
use crate::facts::CertificateFacts;
use crate::failure::HandshakeRole;
use crate::files::FileStamp;

/// The bundles of trust anchors in distributions: Debian, Red Hat, SUSE, Alpine.
const SYSTEM_BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The generation of a loaded trust. A chain that was verified in one generation is verified again
/// in the next generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustGeneration(u64);

impl TrustGeneration {
    /// Returns a generation that was not used before.
    #[must_use]
    pub fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number of the generation.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A trust that is ready for handshakes.
#[derive(Clone, Debug)]
pub struct LoadedTrust {
    /// Its name in the policy.
    pub name: String,
    /// A new generation each time the trust is loaded.
    pub generation: TrustGeneration,
    /// The anchors.
    pub roots: Arc<RootCertStore>,
    /// The number of anchors; 0 only if the trust has pinned certificates and no anchors.
    pub anchors: usize,
    /// The facts of the anchors; empty for the system's bundle, which has more than a hundred.
    pub facts: Vec<CertificateFacts>,
    /// The facts of the anchors that checks need, in the order of the anchors; empty if nothing is
    /// known.
    pub anchor_facts: Arc<[AnchorFacts]>,
    /// Whether anchors that have expired are trusted.
    pub expired_anchors: ExpiredAnchors,
    /// The CRLs; empty if the trust does not use CRLs.
    pub crls: Vec<Crl>,
    /// How the trust uses CRLs.
    pub revocation: Revocation,
    /// The pinned certificates. The certificate of a peer must be one of them; `None`: it only
    /// needs a chain to an anchor.
    pub pinned: Option<Pinned>,
    /// The files from which it was read.
    pub sources: Vec<FileStamp>,
    /// Problems that will probably prevent its use, in one line each.
    pub warnings: Vec<String>,
    /// The verifiers for chains, shared by all rules.
    pub verifiers: Verifiers,
}

impl LoadedTrust {
    /// Creates a trust from anchors that are in no file, without CRLs.
    #[must_use]
    pub fn of_roots(name: &str, roots: Arc<RootCertStore>) -> Self {
        Self {
            name: name.to_owned(),
            generation: TrustGeneration::next(),
            anchors: roots.len(),
            roots,
            facts: Vec::new(),
            anchor_facts: Arc::default(),
            expired_anchors: ExpiredAnchors::Reject,
            crls: Vec::new(),
            revocation: Revocation::Off,
            pinned: None,
            sources: Vec::new(),
            warnings: Vec::new(),
            verifiers: Verifiers::default(),
        }
    }

    /// Whether both have the same anchors, CRLs and pinned certificates.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let crls = self.crls.iter().map(|crl| &crl.der);
        self.roots.roots == other.roots.roots
            && self.revocation == other.revocation
            && self.expired_anchors == other.expired_anchors
            && self.anchor_facts == other.anchor_facts
            && match (&self.pinned, &other.pinned) {
                (Some(one), Some(other)) => one.same(other),
                (one, other) => one.is_none() && other.is_none(),
            }
            && crls.eq(other.crls.iter().map(|crl| &crl.der))
    }

    /// Returns why no peer of tacit in this role can ever be accepted, because no pinned
    /// certificate is usable; `None` if one is usable or none is pinned.
    #[must_use]
    pub fn unusable_pins(&self, role: HandshakeRole) -> Option<UnusablePins> {
        self.pinned.as_ref()?.unusable(&self.name, role)
    }

    /// Returns the check for chains.
    pub(crate) fn path_check(
        &self,
        unknown_revocation: UnknownRevocation,
    ) -> Result<Arc<PathCheck>, VerifierBuilderError> {
        self.verifiers.get(unknown_revocation, || {
            let Self { roots, anchor_facts, expired_anchors, crls, pinned, .. } = self;
            let pinned = pinned.clone();
            PathCheck::new(roots, anchor_facts, *expired_anchors, crls, unknown_revocation, pinned)
        })
    }
}

/// How messages name a set of CA certificates: the table of the policy, or the set of the
/// distribution.
pub(crate) fn trust_title(name: &str) -> String {
    match name {
        SYSTEM_TRUST => format!("trust = {name:?}"),
        _ => format!("[trust.{name}]"),
    }
}

/// Loads the anchors of `[trust.NAME]`, or those of the system. Relative paths begin at `base`.
///
/// # Errors
/// A file cannot be read, or contains something other than certificates that can be anchors.
pub fn load_trust(name: &str, trust: &Trust, base: &Path) -> Result<LoadedTrust, CredentialError> {
    let files = |paths: &[PathBuf]| paths.iter().map(|path| base.join(path)).collect();
    let chain = match trust.source {
        TrustSource::Pinned => Chain::NotBuilt,
        TrustSource::Files(_) | TrustSource::System => Chain::Checked,
    };
    let pins = match trust.pinned.as_slice() {
        [] if chain == Chain::Checked => None,
        paths => Some(pinned::load(&trust_title(name), files(paths), chain)?),
    };
    let loaded = match &trust.source {
        TrustSource::Files(paths) => {
            let crls = match trust.revocation {
                Revocation::Off => Vec::new(),
                Revocation::Soft | Revocation::Hard => files(&trust.crls),
            };
            let is_pinned =
                |der: &CertificateDer<'_>| pins.as_ref().is_some_and(|pins| pins.pinned.holds(der));
            let loaded = load_files(name, files(paths), crls, trust, is_pinned)?;
            LoadedTrust { expired_anchors: trust.expired_anchors, ..loaded }
        }
        TrustSource::System => load_system(name, &SYSTEM_BUNDLES.map(Path::new))?,
        TrustSource::Pinned => LoadedTrust::of_roots(name, Arc::new(RootCertStore::empty())),
    };
    Ok(with_pins(loaded, pins))
}

fn with_pins(mut trust: LoadedTrust, pins: Option<LoadedPins>) -> LoadedTrust {
    if let Some(LoadedPins { pinned, sources }) = pins {
        let owner = trust_title(&trust.name);
        trust.sources.extend(sources);
        trust.warnings.extend(pinned::warnings(&owner, &pinned, now_seconds()));
        trust.pinned = Some(pinned);
    }
    trust
}

fn load_files(
    name: &str,
    paths: Vec<PathBuf>,
    crl_paths: Vec<PathBuf>,
    trust: &Trust,
    is_pinned: impl Fn(&CertificateDer<'_>) -> bool,
) -> Result<LoadedTrust, CredentialError> {
    let owner = trust_title(name);
    let now = now_seconds();
    let mut roots = RootCertStore::empty();
    let revocation = trust.revocation;
    let mut facts = Vec::new();
    let mut anchor_facts = Vec::new();
    let mut sources = Vec::new();
    let mut warnings = Vec::new();
    for path in paths {
        let fail = |fault| CredentialError { owner: owner.clone(), path: path.clone(), fault };
        let content = read(&path).map_err(fail)?;
        let chain = certificates(&content.bytes).map_err(fail)?;
        for (index, der) in chain.iter().enumerate() {
            let anchor = facts_of(&chain, index).map_err(fail)?;
            roots
                .add(der.clone())
                .map_err(|_| fail(CredentialFault::BadCertificate { number: index + 1 }))?;
            anchor_facts.extend(AnchorFacts::of(der));
            // A pinned leaf may be in the file of its CAs, and causes the warning for pinned
            // certificates instead.
            if !is_pinned(der) || anchor.is_ca {
                let expired_anchors = trust.expired_anchors;
                warnings.extend(anchor_warnings(&owner, &path, &anchor, expired_anchors, now));
            }
            facts.push(anchor);
        }
        sources.push(content.stamp);
    }
    if let (Some(fault), Some(first)) = (without_ca(&facts), sources.first()) {
        return Err(CredentialError { owner, path: first.path.clone(), fault });
    }
    let roots = Arc::new(roots);
    let mut crls = Vec::new();
    for path in crl_paths {
        let fail = |fault| CredentialError { owner: owner.clone(), path: path.clone(), fault };
        let LoadedCrls { crls: more, stamp } = crls::load(&path, &roots).map_err(fail)?;
        crls.extend(more);
        sources.push(stamp);
    }
    // If there are several CRLs of one CA, the verifier uses only the first one, so it must be the
    // newest.
    crls.sort_by_key(|crl| std::cmp::Reverse(crl.facts.this_update));
    warnings.extend(crls::warnings(&owner, revocation, &crls, &facts, now));
    let anchors = LoadedTrust::of_roots(name, roots);
    let anchor_facts = anchor_facts.into();
    Ok(LoadedTrust { facts, anchor_facts, crls, revocation, sources, warnings, ..anchors })
}

/// Returns the fault of a trust that has only leaf certificates, because they make no peer trusted.
/// A self-signed certificate is its own CA. A certificate that does not state whether it is a CA
/// may be one.
fn without_ca(facts: &[CertificateFacts]) -> Option<CredentialFault> {
    let first = facts.first()?;
    let can_be_anchor = |one: &CertificateFacts| one.is_self_signed || !one.denies_ca;
    if facts.iter().any(can_be_anchor) {
        return None;
    }
    let subject = first.title().to_owned();
    Some(CredentialFault::NoCa { subject, issuer: first.issuer.clone() })
}

/// Loads the first bundle that exists. A certificate in it that cannot be parsed causes a warning.
fn load_system(name: &str, candidates: &[&Path]) -> Result<LoadedTrust, CredentialError> {
    let owner = trust_title(name);
    let Some(path) = candidates.iter().find(|path| path.exists()) else {
        let path = candidates.first().map_or_else(PathBuf::new, |path| path.to_path_buf());
        return Err(CredentialError { owner, path, fault: CredentialFault::NoSystemBundle });
    };
    let fail = |fault| CredentialError { owner: owner.clone(), path: path.to_path_buf(), fault };
    let content = read(path).map_err(fail)?;
    let mut roots = RootCertStore::empty();
    let mut anchor_facts = Vec::new();
    let mut ignored = 0;
    for der in certificates(&content.bytes).map_err(fail)? {
        match AnchorFacts::of(&der).filter(|_| roots.add(der).is_ok()) {
            Some(facts) => anchor_facts.push(facts),
            None => ignored += 1,
        }
    }
    if roots.is_empty() {
        return Err(fail(CredentialFault::NoCertificate));
    }
    let warnings = (ignored > 0).then(|| {
        format!(
            "{owner}: {path}: tacit ignored {ignored} certificates, because it cannot parse them",
            path = path.display()
        )
    });
    Ok(LoadedTrust {
        anchor_facts: anchor_facts.into(),
        sources: vec![content.stamp],
        warnings: warnings.into_iter().collect(),
        ..LoadedTrust::of_roots(name, Arc::new(roots))
    })
}

fn anchor_warnings(
    owner: &str,
    path: &Path,
    facts: &CertificateFacts,
    expired_anchors: ExpiredAnchors,
    now: i64,
) -> Vec<String> {
    let certificate = format!("{owner}: {}: {}", path.display(), facts.title());
    let mut warnings = Vec::new();
    if facts.version >= 3 && !facts.is_ca {
        warnings.push(if facts.is_self_signed {
            format!(
                "{certificate} is not a CA certificate, so tacit trusts only peers with exactly \
                 this certificate. With a CA and a leaf certificate instead, you can renew the \
                 leaf certificate without changing the policy"
            )
        } else if facts.denies_ca {
            let issuer = &facts.issuer;
            format!(
                "{certificate} is not a CA certificate, so tacit cannot verify peers with it: set \
                 `ca` to the certificate of its issuer, {issuer}"
            )
        } else {
            format!(
                "{certificate} has no basicConstraints, but tacit uses it as a CA certificate: \
                 reissue the certificate with basicConstraints"
            )
        });
    }
    if facts.has_weak_key() {
        let key = &facts.key;
        warnings.push(format!(
            "{certificate} has a key that is too weak ({key}): tacit does not accept signatures \
             of this key"
        ));
    }
    if let Some(warning) = expiry_warning(facts, now) {
        let is_rejected = facts.not_after < now && expired_anchors == ExpiredAnchors::Reject;
        let consequence =
            if is_rejected { ": tacit rejects chains that end at this certificate" } else { "" };
        warnings.push(format!("{certificate} {warning}{consequence}"));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_certificates::{Ca, Directory, LeafKind, self_signed};

    fn load(directory: &Directory, files: &[&str]) -> Result<LoadedTrust, CredentialError> {
        let trust = Trust {
            source: TrustSource::Files(files.iter().map(PathBuf::from).collect()),
            pinned: Vec::new(),
            crls: Vec::new(),
            revocation: Revocation::Off,
            expired_anchors: ExpiredAnchors::Reject,
            position: tacit_core::policy::SourcePosition::default(),
            file_positions: tacit_core::policy::FilePositions::default(),
        };
        load_trust("corp", &trust, directory.path())
    }

    #[test]
    fn anchors_of_several_files_are_one_trust() {
        let directory = Directory::new();
        let [one, two, three] = ["one", "two", "three"].map(Ca::new);
        directory.write("a.pem", one.pem() + &two.pem(), 0o644);
        directory.write("b.pem", three.pem(), 0o644);
        let trust = load(&directory, &["a.pem", "b.pem"]).unwrap();
        assert_eq!((trust.anchors, trust.facts.len(), trust.sources.len()), (3, 3, 2));
        assert!(trust.warnings.is_empty(), "{:?}", trust.warnings);
        directory.write("b.pem", one.pem(), 0o644);
        let changed: Vec<_> = trust.sources.iter().map(FileStamp::changed).collect();
        assert_eq!(changed, [false, true]);
    }

    #[test]
    fn a_leaf_alone_is_refused_as_anchor_and_beside_a_ca_warned_about() {
        let directory = Directory::new();
        let ca = Ca::new("issuer");
        let leaf = ca.leaf(LeafKind::Valid);
        directory.write("leaf.pem", &leaf.cert_pem, 0o644);
        let line = load(&directory, &["leaf.pem"]).unwrap_err().to_string();
        assert!(line.contains("CN=leaf is a leaf certificate"), "{line}");
        assert!(line.contains("the certificate of the issuer, CN=issuer"), "{line}");
        directory.write("leaf.pem", leaf.cert_pem + &ca.pem(), 0o644);
        let warnings = load(&directory, &["leaf.pem"]).unwrap().warnings;
        assert!(warnings[0].contains("its issuer, CN=issuer"), "{warnings:?}");
        directory.write("leaf.pem", self_signed().cert_pem, 0o644);
        let warnings = load(&directory, &["leaf.pem"]).unwrap().warnings;
        assert!(warnings[0].contains("CN=leaf is not a CA certificate"), "{warnings:?}");
    }

    #[test]
    fn a_certificate_that_does_not_say_whether_it_is_a_ca_may_be_an_anchor() {
        let directory = Directory::new();
        let ca = Ca::new("issuer").without_constraints();
        directory.write("ca.pem", &ca.cert_pem, 0o644);
        let warnings = load(&directory, &["ca.pem"]).unwrap().warnings;
        assert!(warnings[0].contains("has no basicConstraints"), "{warnings:?}");
    }

    #[test]
    fn an_empty_trust_is_refused() {
        let directory = Directory::new();
        directory.write("ca.pem", "# nothing yet\n", 0o644);
        let line = load(&directory, &["ca.pem"]).unwrap_err().to_string();
        assert!(line.starts_with("[trust.corp]: ") && line.contains("contains no certificate"));
        assert!(load(&directory, &["gone.pem"]).is_err());
    }

    #[test]
    fn the_first_system_bundle_there_is_counts() {
        let directory = Directory::new();
        let at = |name: &str| directory.path().join(name);
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        directory.write("second", Ca::new("one").pem() + broken, 0o644);
        let trust = load_system("system", &[&at("first"), &at("second"), &at("third")]).unwrap();
        assert_eq!((trust.anchors, trust.warnings.len()), (1, 1));
        assert_eq!(trust.sources[0].path, at("second"));

        let error = load_system("system", &[&at("first")]).unwrap_err();
        assert!(error.to_string().contains("install the package ca-certificates"), "{error}");
        directory.write("first", broken, 0o644);
        assert!(load_system("system", &[&at("first")]).is_err(), "no usable anchor");
    }
}
