//! Defines the errors of `tacit ca`.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tacit_core::message_id::MessageId;

/// An error of `tacit ca`; its text says what to do.
#[derive(Debug)]
pub enum CaError {
    /// A file to create exists already.
    Exists(PathBuf),
    /// The directory has no CA.
    NoCa(PathBuf),
    /// The certificate to renew does not exist.
    NothingToRenew(PathBuf),
    /// Other users can read the private key.
    KeyOpenToOthers(PathBuf, u32),
    /// A file does not contain a valid certificate or key.
    Unusable(PathBuf, String),
    /// The private key does not match the certificate.
    Mismatch {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// The certificate would expire after its CA.
    Outlives {
        /// The date on which the CA expires.
        ca_not_after: String,
        /// The days until the CA expires.
        ca_days_left: i64,
    },
    /// A file operation failed.
    File {
        /// The failed operation, such as "cannot create".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The result could not be printed.
    Output(io::Error),
    /// The certificate library failed.
    Library(rcgen::Error),
}

impl CaError {
    /// The identifier of the message.
    #[must_use]
    pub fn id(&self) -> MessageId {
        match self {
            Self::Exists(_) => MessageId("file-exists"),
            Self::NoCa(_) => MessageId("no-ca"),
            Self::NothingToRenew(_) => MessageId("nothing-to-renew"),
            Self::KeyOpenToOthers(..) => MessageId("key-exposed"),
            Self::Unusable(..) => MessageId("unusable-ca-file"),
            Self::Mismatch { .. } => MessageId("key-mismatch"),
            Self::Outlives { .. } => MessageId("outlives-ca"),
            Self::File { .. } => MessageId("file-failed"),
            Self::Output(_) => MessageId("output-failed"),
            Self::Library(_) => MessageId("certificate-not-made"),
        }
    }
}

impl fmt::Display for CaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(path) => write!(
                out,
                "{path} already exists, and tacit does not overwrite it\n    \
                 fix: use another --dir or NAME, renew the certificate with --renew, or move the \
                 file away",
                path = path.display()
            ),
            Self::NoCa(path) => write!(
                out,
                "{path} does not exist\n    fix: create a CA first: tacit ca init --dir {dir}",
                path = path.display(),
                dir = path.parent().unwrap_or_else(|| Path::new(".")).display()
            ),
            Self::NothingToRenew(path) => {
                let path = path.display();
                write!(out, "cannot renew {path}: the file does not exist\n    fix: omit --renew")
            }
            Self::KeyOpenToOthers(path, mode) => write!(
                out,
                "other users can read or change the private key {0} (mode {mode:04o})\n    fix: \
                 run `chmod 600 {0}`. If another user may have read the key, replace the key",
                path.display(),
            ),
            Self::Unusable(path, why) => write!(out, "cannot use {}: {why}", path.display()),
            Self::Mismatch { cert, key } => write!(
                out,
                "the private key {} does not match the certificate {}\n    \
                 fix: restore both files from the same backup",
                key.display(),
                cert.display()
            ),
            Self::Outlives { ca_not_after, ca_days_left } => write!(
                out,
                "the CA expires on {ca_not_after}, but the requested certificate would expire \
                 later\n    fix: use --days {ca_days_left} or less, or create a new CA"
            ),
            Self::File { what, path, source } => {
                write!(out, "{what} {}: {source}", path.display())
            }
            Self::Output(source) => write!(out, "cannot print the result: {source}"),
            Self::Library(source) => write!(out, "cannot create the certificate: {source}"),
        }
    }
}

impl std::error::Error for CaError {}

impl From<rcgen::Error> for CaError {
    fn from(source: rcgen::Error) -> Self {
        Self::Library(source)
    }
}
