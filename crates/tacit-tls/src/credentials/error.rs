//! What can be wrong with a key, certificate or trust file, in one line with the next step.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::facts::{RSA_BITS_MIN, utc};
use crate::files::FILE_BYTES_MAX;

/// Why an identity or a trust cannot be used. Displays as one line with the next step.
#[derive(Debug)]
pub struct CredentialError {
    /// Whose file: `identity 'web'`, `trust 'corp'`.
    pub owner: String,
    /// The file at fault.
    pub path: PathBuf,
    /// What is wrong with it.
    pub fault: CredentialFault,
}

/// What is wrong with a file.
#[derive(Debug)]
#[allow(missing_docs)] // Display says it.
pub enum CredentialFault {
    Unreadable(std::io::Error),
    NotRegular,
    TooLarge,
    BadPem(String),
    Der { convert: &'static str },
    NoCertificate,
    BadCertificate { number: usize },
    NoKey,
    SeveralKeys(usize),
    KeyExposed { mode: u32 },
    KeyEncrypted,
    KeyUnusable,
    KeyMismatch { subject: String, is_ca: bool },
    OldVersion { subject: String, version: u32 },
    WeakKey { subject: String, key: String },
    Expired { subject: String, not_after: i64 },
    NotYetValid { subject: String, not_before: i64 },
    NoCa { subject: String, issuer: String },
    NoSystemBundle,
    TooManyPinned { max: usize },
    BadPin { subject: String },
    NoCrl,
    BadCrl { number: usize },
    AtSigner(String),
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "{}: {path}: {}", self.owner, self.fault.with_next(&self.path))
    }
}

impl CredentialFault {
    /// The fault of the file there, with the command that mends it where there is one.
    pub(crate) fn with_next(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::KeyExposed { .. } => format!("{self}; run: chmod 600 {path}"),
            Self::KeyEncrypted => {
                format!(
                    "{self}; write it without: openssl pkey -in {path} -out NEW, under umask 077"
                )
            }
            _ => self.to_string(),
        }
    }
}

impl std::error::Error for CredentialError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            CredentialFault::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for CredentialFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => write!(f, "cannot be read by the agent's user: {error}"),
            Self::NotRegular => f.write_str("not a regular file; name a PEM file"),
            Self::TooLarge => write!(f, "larger than {FILE_BYTES_MAX} bytes; name a PEM file"),
            Self::BadPem(detail) => write!(f, "broken PEM ({detail}); copy the file again"),
            Self::Der { convert } => write!(f, "is DER, not PEM; convert it with: {convert}"),
            Self::NoCertificate => f.write_str("holds no certificate (no BEGIN CERTIFICATE line)"),
            Self::BadCertificate { number } => {
                write!(f, "certificate {number} in it is not valid X.509; get it again")
            }
            Self::NoKey => f.write_str("holds no private key (no BEGIN … PRIVATE KEY line)"),
            Self::SeveralKeys(count) => {
                write!(f, "holds {count} private keys; leave the certificate's own")
            }
            Self::KeyExposed { mode } => {
                write!(
                    f,
                    "holds a private key, yet group or others may access it (mode {mode:04o})"
                )
            }
            Self::KeyEncrypted => {
                f.write_str("the private key is encrypted, and an agent has nobody to ask")
            }
            Self::KeyUnusable => write!(
                f,
                "the private key is of no kind that is used; make an ECDSA P-256 or RSA \
                 {RSA_BITS_MIN} one"
            ),
            Self::KeyMismatch { subject, is_ca: false } => write!(
                f,
                "the key does not belong to the first certificate, of {subject}; \
                 name the key it was issued for"
            ),
            Self::KeyMismatch { subject, is_ca: true } => write!(
                f,
                "the key does not belong to the first certificate, of the CA {subject}; \
                 put the leaf first"
            ),
            Self::TooManyPinned { max } => write!(
                f,
                "with it more than {max} certificates are pinned; pin those of several \
                 rules in trusts of their own, or let a CA issue them"
            ),
            Self::AtSigner(text) => f.write_str(text),
            Self::NoCrl => {
                f.write_str("holds no list of revoked certificates (no BEGIN X509 CRL line)")
            }
            Self::BadCrl { number } => write!(
                f,
                "list {number} in it is no list of revoked certificates that can be used (X.509 v2 \
                 with a next update); get it again from its CA"
            ),
            Self::NoSystemBundle => f.write_str(
                "the system has no bundle of CA certificates here or in the other usual places; \
                 install the package ca-certificates, or name a file with [trust.NAME] ca = …",
            ),
            _ => self.fmt_certificate(f),
        }
    }
}

impl CredentialFault {
    /// Faults of a certificate that can be read.
    fn fmt_certificate(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldVersion { subject, version } => write!(
                f,
                "the certificate of {subject} is X.509 v{version}, which peers refuse; \
                 reissue it as v3 with a subjectAltName"
            ),
            Self::WeakKey { subject, key } => write!(
                f,
                "the certificate of {subject} has an {key} key, which peers refuse; \
                 reissue it with ECDSA P-256 or RSA {RSA_BITS_MIN}"
            ),
            Self::Expired { subject, not_after } => {
                write!(f, "the certificate of {subject} expired at {}; renew it", utc(*not_after))
            }
            Self::NotYetValid { subject, not_before } => write!(
                f,
                "the certificate of {subject} is not valid before {}; wait, or set this host's \
                 clock",
                utc(*not_before)
            ),
            Self::NoCa { subject, issuer } => write!(
                f,
                "holds no CA certificate: {subject} is a leaf certificate, for which no peer is \
                 trusted; name the certificate of the CA that issued it, {issuer}"
            ),
            Self::BadPin { subject } => write!(
                f,
                "the certificate of {subject} can never be accepted: it is no X.509 v3, or has a \
                 critical extension that is not known here; reissue it"
            ),
            _ => Ok(()),
        }
    }
}
