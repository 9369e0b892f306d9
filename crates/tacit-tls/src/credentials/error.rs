//! The errors of key, certificate and trust files. Each message is one line and contains the fix.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::facts::{RSA_BITS_MIN, utc};
use crate::files::FILE_BYTES_MAX;

/// The reason why an identity or a trust cannot be used. The text is one line and contains the fix.
#[derive(Debug)]
pub struct CredentialError {
    /// The table of the policy that names the file, such as `identity 'web'` or `trust 'corp'`.
    pub owner: String,
    /// The file with the fault.
    pub path: PathBuf,
    /// The fault.
    pub fault: CredentialFault,
}

/// A fault of a file.
#[derive(Debug)]
#[allow(missing_docs)] // Display describes them.
pub enum CredentialFault {
    Unreadable(std::io::Error),
    NotRegular,
    TooLarge,
    BadPem(String),
    Der { convert: &'static str },
    Pkcs12 { convert: &'static str },
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
    /// Returns the fault with the command that fixes it, if there is one.
    pub(crate) fn with_next(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Self::KeyExposed { .. } => format!("{self}; run: chmod 600 {path}"),
            Self::KeyEncrypted => {
                format!("{self}; decrypt it: (umask 077; openssl pkey -in {path} -out NEW)")
            }
            _ => self.to_string(),
        }
    }
}

impl CredentialError {
    /// Returns the message and the fix separately. In the text, `; ` separates them.
    #[must_use]
    pub fn message_and_fix(&self) -> (String, Option<String>) {
        let text = self.to_string();
        match text.split_once("; ") {
            Some((message, fix)) => (message.to_owned(), Some(fix.to_owned())),
            None => (text, None),
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
            Self::Unreadable(error) => write!(
                f,
                "cannot be read by the agent's user: {error}; name a file that this user can read"
            ),
            Self::NotRegular => f.write_str("is not a regular file; give the path of a PEM file"),
            Self::TooLarge => {
                write!(f, "is larger than {FILE_BYTES_MAX} bytes; give the path of a PEM file")
            }
            Self::BadPem(detail) => write!(f, "is not valid PEM ({detail}); copy the file again"),
            Self::Der { convert } => write!(f, "is DER, not PEM; convert it with: {convert}"),
            Self::Pkcs12 { convert } => {
                write!(f, "is PKCS #12, not PEM; convert it with: {convert}")
            }
            Self::NoCertificate => {
                f.write_str("contains no certificate (no BEGIN CERTIFICATE line)")
            }
            Self::BadCertificate { number } => {
                write!(
                    f,
                    "certificate {number} in the file is not valid X.509; get it again from its \
                     issuer"
                )
            }
            Self::NoKey => f.write_str("contains no private key (no BEGIN … PRIVATE KEY line)"),
            Self::SeveralKeys(count) => {
                write!(f, "contains {count} private keys; keep only the key of the certificate")
            }
            Self::KeyExposed { mode } => {
                write!(
                    f,
                    "contains a private key that group or others can access (mode {mode:04o})"
                )
            }
            Self::KeyEncrypted => f.write_str(
                "the private key is encrypted, and the agent cannot ask for a passphrase",
            ),
            Self::KeyUnusable => write!(
                f,
                "the type of the private key is not supported; create an ECDSA P-256 or RSA \
                 {RSA_BITS_MIN} key"
            ),
            Self::KeyMismatch { subject, is_ca: false } => write!(
                f,
                "the key does not match the first certificate in the file, of {subject}; set `key` \
                 to the key of this certificate"
            ),
            Self::KeyMismatch { subject, is_ca: true } => write!(
                f,
                "the key does not match the first certificate in the file, of the CA {subject}; \
                 put the leaf certificate first"
            ),
            Self::TooManyPinned { max } => write!(
                f,
                "with this file the trust pins more than {max} certificates, which is the limit; \
                 use several trusts, or a CA that issues these certificates"
            ),
            Self::AtSigner(text) => f.write_str(text),
            Self::NoCrl => f.write_str("contains no CRL (no BEGIN X509 CRL line)"),
            Self::BadCrl { number } => write!(
                f,
                "CRL {number} in the file is not a usable CRL (X.509 v2 with a nextUpdate); get it \
                 again from its CA"
            ),
            Self::NoSystemBundle => f.write_str(
                "the system has no bundle of CA certificates here or in the other usual places; \
                 install the package ca-certificates, or set `ca` in [trust.NAME] to a file",
            ),
            _ => self.fmt_certificate(f),
        }
    }
}

impl CredentialFault {
    /// Writes the faults of a certificate that can be parsed.
    fn fmt_certificate(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OldVersion { subject, version } => write!(
                f,
                "the certificate of {subject} is X.509 v{version}, which peers reject; \
                 reissue it as v3 with a subjectAltName"
            ),
            Self::WeakKey { subject, key } => write!(
                f,
                "the certificate of {subject} has an {key} key, which peers reject; \
                 reissue it with ECDSA P-256 or RSA {RSA_BITS_MIN}"
            ),
            Self::Expired { subject, not_after } => {
                write!(f, "the certificate of {subject} expired at {}; renew it", utc(*not_after))
            }
            Self::NotYetValid { subject, not_before } => write!(
                f,
                "the certificate of {subject} is not valid before {}; wait, or correct this \
                 host's clock",
                utc(*not_before)
            ),
            Self::NoCa { subject, issuer } => write!(
                f,
                "contains no CA certificate: {subject} is a leaf certificate, with which no peer \
                 can be verified; set `ca` to the certificate of its issuer, {issuer}"
            ),
            Self::BadPin { subject } => write!(
                f,
                "the certificate of {subject} can never be accepted: it is not X.509 v3, or has a \
                 critical extension that tacit does not support; reissue it"
            ),
            _ => Ok(()),
        }
    }
}
