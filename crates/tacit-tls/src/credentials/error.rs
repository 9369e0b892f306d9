//! Defines the errors about key, certificate and trust files. Each message is one line and contains
//! the fix.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::facts::{RSA_BITS_MIN, utc};
use crate::fault::FaultText;
use crate::files::FILE_BYTES_MAX;

/// The reason why an identity or a trust cannot be used. The text is one line and contains the fix.
#[derive(Debug)]
pub struct CredentialError {
    /// The table of the policy that names the file, such as `[identity.web]` or `[trust.corp]`.
    pub owner: String,
    /// The file with the fault.
    pub path: PathBuf,
    /// The fault.
    pub fault: CredentialFault,
}

/// A fault of a file.
#[derive(Debug)]
#[allow(missing_docs)] // `CredentialFault::text` describes them.
pub enum CredentialFault {
    Unreadable(io::Error),
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
    AtSigner(FaultText),
}

impl fmt::Display for CredentialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text())
    }
}

impl CredentialError {
    /// What is wrong with which file, and what to do.
    #[must_use]
    pub fn text(&self) -> FaultText {
        let path = self.path.display();
        self.fault.text(&self.path).prefixed(format_args!("{}: {path}", self.owner))
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

/// Why a file cannot be read.
fn unreadable(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the file does not exist".to_owned(),
        _ => format!("the file cannot be read by the agent's user: {error}"),
    }
}

impl CredentialFault {
    /// What is wrong with the file at this path, and what to do.
    pub(crate) fn text(&self, path: &Path) -> FaultText {
        FaultText { message: self.message(), fix: self.fix(path) }
    }

    fn message(&self) -> String {
        match self {
            Self::Unreadable(error) => unreadable(error),
            Self::NotRegular => "the file is not a regular file".to_owned(),
            Self::TooLarge => format!("the file is larger than {FILE_BYTES_MAX} bytes"),
            Self::BadPem(detail) => format!("the file is not valid PEM ({detail})"),
            Self::Der { .. } => "the file is DER, not PEM".to_owned(),
            Self::Pkcs12 { .. } => "the file is PKCS #12, not PEM".to_owned(),
            Self::NoCertificate => {
                "the file contains no certificate (no BEGIN CERTIFICATE line)".to_owned()
            }
            Self::BadCertificate { number } => {
                format!("certificate {number} in the file is not valid X.509")
            }
            Self::NoKey => {
                "the file contains no private key (no BEGIN … PRIVATE KEY line)".to_owned()
            }
            Self::SeveralKeys(count) => format!("the file contains {count} private keys"),
            Self::KeyExposed { mode } => {
                format!(
                    "the file contains a private key, and the group or other users can access \
                     the file (mode {mode:04o})"
                )
            }
            Self::KeyEncrypted => {
                "the private key is encrypted, and the agent cannot ask for a passphrase".to_owned()
            }
            Self::KeyUnusable => "the type of the private key is not supported".to_owned(),
            Self::KeyMismatch { subject, is_ca } => format!(
                "the private key does not match the {kind} of {subject} (the first certificate \
                 in the file that `cert` names)",
                kind = if *is_ca { "CA certificate" } else { "certificate" }
            ),
            Self::OldVersion { subject, version } => {
                format!("the certificate of {subject} is X.509 v{version}, which peers reject")
            }
            Self::WeakKey { subject, key } => {
                format!("the certificate of {subject} has a weak key ({key}), which peers reject")
            }
            Self::Expired { subject, not_after } => {
                format!("the certificate of {subject} expired at {}", utc(*not_after))
            }
            Self::NotYetValid { subject, not_before } => {
                format!("the certificate of {subject} is not valid before {}", utc(*not_before))
            }
            Self::NoCa { subject, .. } => format!(
                "the file contains no CA certificate: {subject} is a leaf certificate, which \
                 cannot verify peers"
            ),
            Self::NoSystemBundle => "the system has no bundle of CA certificates at this path or \
                                     at the other usual paths"
                .to_owned(),
            Self::TooManyPinned { max } => {
                format!(
                    "with this file, the [trust] table has too many pinned certificates: the limit \
                     for each table is {max}"
                )
            }
            Self::BadPin { subject } => format!(
                "the certificate of {subject} can never be accepted: it is not X.509 v3, or has a \
                 critical extension that tacit does not support"
            ),
            Self::NoCrl => "the file contains no CRL (no BEGIN X509 CRL line)".to_owned(),
            Self::BadCrl { number } => format!(
                "tacit cannot use CRL {number} in the file: a CRL must be X.509 v2 with a \
                 nextUpdate"
            ),
            Self::AtSigner(text) => text.message.clone(),
        }
    }

    fn fix(&self, path: &Path) -> Option<String> {
        let path = path.display();
        Some(match self {
            Self::NoCertificate | Self::NoKey | Self::NoCrl => return None,
            Self::AtSigner(text) => return text.fix.clone(),
            Self::Unreadable(error) if error.kind() == io::ErrorKind::NotFound => {
                "correct the path, or create the file, for example with `tacit ca`".to_owned()
            }
            Self::Unreadable(_) => {
                "set the path of a file that the agent's user can read".to_owned()
            }
            Self::NotRegular | Self::TooLarge => "give the path of a PEM file".to_owned(),
            Self::BadPem(_) => "copy the file again".to_owned(),
            Self::Der { convert } | Self::Pkcs12 { convert } => {
                format!("convert the file with: {convert}")
            }
            Self::BadCertificate { .. } => "get the certificate again from the issuer".to_owned(),
            Self::SeveralKeys(_) => {
                "keep only the private key that belongs to the certificate".to_owned()
            }
            Self::KeyExposed { .. } => format!("run: chmod 600 {path}"),
            Self::KeyEncrypted => {
                format!("decrypt the key: (umask 077; openssl pkey -in {path} -out NEW)")
            }
            Self::KeyUnusable => format!("create an ECDSA P-256 or RSA {RSA_BITS_MIN} key"),
            Self::KeyMismatch { is_ca: false, .. } => {
                "set `key` to the file with the private key of this certificate".to_owned()
            }
            Self::KeyMismatch { is_ca: true, .. } => "put the leaf certificate first".to_owned(),
            Self::OldVersion { .. } => {
                "reissue the certificate as v3 with a subjectAltName".to_owned()
            }
            Self::WeakKey { .. } => {
                format!("reissue the certificate with an ECDSA P-256 or RSA {RSA_BITS_MIN} key")
            }
            Self::Expired { .. } => "renew the certificate".to_owned(),
            Self::NotYetValid { .. } => "wait, or correct this host's clock".to_owned(),
            Self::NoCa { issuer, .. } => {
                format!("set `ca` to the certificate of the issuer, {issuer}")
            }
            Self::NoSystemBundle => "install the package ca-certificates, or set `ca` in \
                                     [trust.NAME] to a file with CA certificates"
                .to_owned(),
            Self::TooManyPinned { .. } => {
                "divide the certificates among several [trust.NAME] tables, or set `ca` to the \
                 certificate of the CA that issued these certificates"
                    .to_owned()
            }
            Self::BadPin { .. } => "reissue the certificate".to_owned(),
            Self::BadCrl { .. } => "get the CRL again from the CA".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_part_of_the_message_whatever_it_contains() {
        let fault = CredentialFault::Expired { subject: "CN=a; renew: b".to_owned(), not_after: 0 };
        let path = PathBuf::from("web.pem");
        let text = CredentialError { owner: "[identity.web]".to_owned(), path, fault }.text();
        assert!(
            text.message.starts_with("[identity.web]: web.pem: the certificate of CN=a; renew")
        );
        assert_eq!(text.fix.as_deref(), Some("renew the certificate"));
    }
}
