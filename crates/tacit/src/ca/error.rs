//! Why `tacit ca` made nothing.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tacit_core::message_id::MessageId;

/// What went wrong, who is at fault and what to do next.
#[derive(Debug)]
pub enum CaError {
    /// A file that would be made is there already.
    Exists(PathBuf),
    /// The directory holds no CA.
    NoCa(PathBuf),
    /// There is no certificate of that name to renew.
    NothingToRenew(PathBuf),
    /// The key of the CA or of a leaf can be read by others.
    KeyOpenToOthers(PathBuf, u32),
    /// A certificate or key file does not hold what its name says.
    Unusable(PathBuf, String),
    /// The key does not belong to the certificate.
    Mismatch {
        /// The certificate.
        cert: PathBuf,
        /// The key that is not its own.
        key: PathBuf,
    },
    /// The leaf would still be valid when its CA is not.
    Outlives {
        /// The day the CA expires.
        ca_not_after: String,
        /// Days the CA still has.
        ca_days_left: i64,
    },
    /// The kernel refused an operation on a file.
    File {
        /// What was tried: "cannot create", "cannot read".
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
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
                "{} exists and is never overwritten; choose another --dir or NAME, \
                 `--renew` a leaf, or move the file away",
                path.display()
            ),
            Self::NoCa(path) => write!(
                out,
                "{} does not exist; create a CA first: tacit ca init --dir {}",
                path.display(),
                path.parent().unwrap_or_else(|| Path::new(".")).display()
            ),
            Self::NothingToRenew(path) => {
                write!(out, "{} does not exist and cannot be renewed; omit --renew", path.display())
            }
            Self::KeyOpenToOthers(path, mode) => write!(
                out,
                "{} has mode {mode:04o}: other users can read or change the key; if no other user \
                 did, run chmod 600 {}",
                path.display(),
                path.display()
            ),
            Self::Unusable(path, why) => write!(out, "cannot use {}: {why}", path.display()),
            Self::Mismatch { cert, key } => write!(
                out,
                "{} is not the key of {}; restore both files from the machine that made them",
                key.display(),
                cert.display()
            ),
            Self::Outlives { ca_not_after, ca_days_left } => write!(
                out,
                "the CA expires on {ca_not_after}, before the certificate would; \
                 use --days {ca_days_left} or fewer, or create a new CA"
            ),
            Self::File { what, path, source } => {
                write!(out, "{what} {}: {source}", path.display())
            }
            Self::Output(source) => write!(out, "cannot print the result: {source}"),
            Self::Library(source) => write!(out, "cannot make the certificate: {source}"),
        }
    }
}

impl std::error::Error for CaError {}

impl From<rcgen::Error> for CaError {
    fn from(source: rcgen::Error) -> Self {
        Self::Library(source)
    }
}
