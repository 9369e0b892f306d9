//! Loads the certificate revocation lists (CRLs) of a `[trust]` table, and checks their dates.
//!
//! A file that is not a CRL causes an error. The signature of a CRL is not checked here: the
//! verifier checks it during handshakes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, crypto::aws_lc_rs};
use rustls_pki_types::CertificateRevocationListDer;
use rustls_pki_types::pem::PemObject as _;
use tacit_core::policy::Revocation;
use x509_parser::prelude::{CertificateRevocationList, FromDer as _};

use super::error::CredentialFault;
use super::pem::{is_der, read};
use crate::facts::{CertificateFacts, printable, utc};
use crate::files::FileStamp;

/// A CRL causes a warning when less than 1/`WARNING_PART` of its lifetime is left.
const WARNING_PART: i64 = 10;

/// One CRL.
#[derive(Clone, Debug)]
pub struct Crl {
    /// The signed CRL in DER.
    pub der: CertificateRevocationListDer<'static>,
    /// Its fields.
    pub facts: CrlFacts,
}

/// The fields of a CRL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrlFacts {
    /// The CA that issued it, as certificates name their issuer.
    pub issuer: String,
    /// When it was issued, in unix seconds.
    pub this_update: i64,
    /// When the CA issues the next CRL, in unix seconds. Until then this CRL is current.
    pub next_update: i64,
    /// The number of revoked certificates.
    pub revoked: usize,
    /// The file of the CRL.
    pub file: PathBuf,
}

impl CrlFacts {
    /// Whether the time of the next update is in the past.
    #[must_use]
    pub fn is_out_of_date(&self, now: i64) -> bool {
        now > self.next_update
    }
}

/// Whether less than a tenth of the lifetime is left, or the CRL is outdated.
#[must_use]
pub fn crl_expires_soon(crl: &CrlFacts, now: i64) -> bool {
    let part = crl.next_update.saturating_sub(crl.this_update) / WARNING_PART;
    crl.next_update.saturating_sub(now) < part
}

/// The CRLs of one file.
pub(super) struct LoadedCrls {
    pub(super) crls: Vec<Crl>,
    /// The stamp of the file.
    pub(super) stamp: FileStamp,
}

/// Reads the CRLs of one file, in PEM or DER.
pub(super) fn load(path: &Path, roots: &Arc<RootCertStore>) -> Result<LoadedCrls, CredentialFault> {
    let content = read(path)?;
    let crls = parse(path, content.bytes, roots)?;
    Ok(LoadedCrls { crls, stamp: content.stamp })
}

/// Parses the CRLs in the content of a file.
pub(crate) fn parse(
    path: &Path,
    bytes: Vec<u8>,
    roots: &Arc<RootCertStore>,
) -> Result<Vec<Crl>, CredentialFault> {
    let ders = match is_der(&bytes) {
        true => vec![CertificateRevocationListDer::from(bytes)],
        false => from_pem(&bytes)?,
    };
    let numbered = ders.into_iter().enumerate();
    let crls = numbered.map(|(at, der)| {
        let usable = crl_facts(&der).filter(|_| is_usable(&der, roots));
        let facts = usable.ok_or(CredentialFault::BadCrl { number: at + 1 })?;
        Ok(Crl { der, facts: CrlFacts { file: path.to_owned(), ..facts } })
    });
    crls.collect()
}

fn from_pem(pem: &[u8]) -> Result<Vec<CertificateRevocationListDer<'static>>, CredentialFault> {
    let crls: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem).collect();
    let crls = crls.map_err(|error| CredentialFault::BadPem(error.to_string()))?;
    if crls.is_empty() { Err(CredentialFault::NoCrl) } else { Ok(crls) }
}

/// Parses the fields of a CRL. Returns `None` if it is not a CRL or has no nextUpdate.
pub(crate) fn crl_facts(der: &[u8]) -> Option<CrlFacts> {
    let (rest, crl) = CertificateRevocationList::from_der(der).ok()?;
    rest.is_empty().then_some(())?;
    Some(CrlFacts {
        issuer: printable(&crl.issuer().to_string()),
        this_update: crl.last_update().timestamp(),
        // RFC 5280 section 5.1.2.5 requires this field.
        next_update: crl.next_update()?.timestamp(),
        revoked: crl.iter_revoked_certificates().count(),
        file: PathBuf::new(),
    })
}

/// Whether the verifier accepts the CRL. Each CRL is tried alone, because the verifier does not
/// report which one it rejects.
fn is_usable(der: &CertificateRevocationListDer<'static>, roots: &Arc<RootCertStore>) -> bool {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider);
    builder.with_crls([der.clone()]).build().is_ok()
}

/// Returns warnings about CAs without a CRL, and about CRLs that are outdated or will soon be.
pub(crate) fn warnings(
    owner: &str,
    revocation: Revocation,
    crls: &[Crl],
    anchors: &[CertificateFacts],
    now: i64,
) -> Vec<String> {
    let consequence = match revocation {
        Revocation::Off => return Vec::new(),
        Revocation::Soft => {
            "tacit logs a warning, and accepts certificates of this CA without checking whether \
             they are revoked"
        }
        Revocation::Hard => "tacit rejects all certificates of this CA",
    };
    let is_listed = |ca: &&CertificateFacts| crls.iter().any(|crl| crl.facts.issuer == ca.subject);
    let mut warnings: Vec<_> = anchors
        .iter()
        .filter(|ca| ca.is_ca && !is_listed(ca))
        .map(|ca| {
            let ca = ca.title();
            format!("{owner}: there is no CRL of {ca}, so {consequence}: add the CRL to `crl`")
        })
        .collect();
    for Crl { facts, .. } in crls {
        let CrlFacts { issuer, file, .. } = facts;
        let time = utc(facts.next_update);
        let crl = format!("{owner}: {file}: the CRL of {issuer}", file = file.display());
        if facts.is_out_of_date(now) {
            warnings
                .push(format!("{crl} expired at {time}, so {consequence}: get the current CRL"));
        } else if crl_expires_soon(facts, now) {
            warnings.push(format!("{crl} expires at {time}: get the next CRL"));
        }
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_certificates::{Ca, Directory, LeafKind};

    fn loaded(directory: &Directory, file: &str, ca: &Ca) -> Result<Vec<Crl>, String> {
        let loaded = load(&directory.path().join(file), &ca.roots());
        loaded.map(|loaded| loaded.crls).map_err(|fault| fault.text(Path::new("crl")).to_string())
    }

    #[test]
    fn crls_are_read_from_pem_and_der_several_from_one_file() {
        let directory = Directory::new();
        let ca = Ca::new("one CA");
        let other = Ca::new("other CA");
        let leaf = ca.leaf(LeafKind::Valid);
        let pem = ca.crl(&[&leaf], 4_000_000_000);
        directory.write("both.pem", pem.clone() + &other.crl(&[], 3_000_000_000), 0o644);
        let der = CertificateRevocationListDer::from_pem_slice(pem.as_bytes()).unwrap();
        directory.write("one.crl", der.as_ref(), 0o644);

        let both = loaded(&directory, "both.pem", &ca).unwrap();
        let names: Vec<_> =
            both.iter().map(|it| (it.facts.issuer.as_str(), it.facts.revoked)).collect();
        assert_eq!(names, [("CN=one CA", 1), ("CN=other CA", 0)]);
        assert_eq!(both[0].facts.next_update, 4_000_000_000);
        assert_eq!(loaded(&directory, "one.crl", &ca).unwrap()[0].der, both[0].der);
    }

    #[test]
    fn a_file_without_a_crl_is_rejected_with_the_next_step() {
        let directory = Directory::new();
        let ca = Ca::new("one CA");
        directory.write("cert.pem", ca.pem(), 0o644);
        let error = loaded(&directory, "cert.pem", &ca).unwrap_err();
        assert!(error.contains("no BEGIN X509 CRL line"), "{error}");
        directory.write("cert.der", ca.der().as_ref(), 0o644);
        let error = loaded(&directory, "cert.der", &ca).unwrap_err();
        assert!(error.contains("tacit cannot use CRL 1 in the file"), "{error}");
        assert!(loaded(&directory, "gone.pem", &ca).unwrap_err().contains("does not exist"));
    }

    #[test]
    fn missing_and_outdated_crls_cause_warnings() {
        let directory = Directory::new();
        let ca = Ca::new("one CA");
        let other = Ca::new("other CA");
        directory.write("one.pem", ca.crl(&[], 2_000_000_000), 0o644);
        let crls = loaded(&directory, "one.pem", &ca).unwrap();
        let anchors = [ca.der(), other.der()].map(|der| CertificateFacts::from_der(&der).unwrap());
        let warned = |revocation, now| warnings("[trust.corp]", revocation, &crls, &anchors, now);
        let early = warned(Revocation::Hard, 1_700_000_000);
        assert_eq!(
            early,
            ["[trust.corp]: there is no CRL of CN=other CA, so tacit rejects all certificates of \
              this CA: add the CRL to `crl`"]
        );
        let soon = warned(Revocation::Soft, 1_999_999_000);
        assert!(soon[0].contains("accepts certificates of this CA without checking"), "{soon:?}");
        assert!(soon[1].contains("of CN=one CA expires at 2033-05-18"), "{soon:?}");
        let late = warned(Revocation::Hard, 2_000_000_001);
        assert!(
            late[1].contains("expired at 2033-05-18 03:33 UTC, so tacit rejects all certificates"),
            "{late:?}"
        );
        assert_eq!(warned(Revocation::Off, 2_000_000_001), [""; 0]);
    }
}
