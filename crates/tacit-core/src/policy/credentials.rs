//! Defines the settings of identities and trusts. An identity is a certificate with its private
//! key. A trust is the set of CA certificates that tacit uses to verify peers.

use std::path::{Path, PathBuf};

use super::diagnostic::SourcePosition;

/// A certificate with its key. Paths are absolute or relative to the policy file's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PEM file: the certificate, then the intermediates.
    pub cert: PathBuf,
    /// PEM file: PKCS#8, PKCS#1 or SEC1 key.
    pub key: PathBuf,
    /// The position of the table in the policy text.
    pub position: SourcePosition,
    /// The positions of the files.
    pub file_positions: FilePositions,
}

/// The positions at which a table names its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePositions(Vec<(PathBuf, SourcePosition)>);

impl FilePositions {
    /// Files as the table names them, with their positions.
    pub(super) fn new(files: Vec<(PathBuf, SourcePosition)>) -> Self {
        Self(files)
    }

    /// Returns the position at which the table names a file, which is given as its path below
    /// `base`.
    #[must_use]
    pub fn of(&self, file: &Path, base: &Path) -> Option<SourcePosition> {
        self.0.iter().find(|(named, _)| base.join(named) == file).map(|(_, position)| *position)
    }
}

/// Which certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The source of the anchors.
    pub source: TrustSource,
    /// PEM files of pinned certificates. The peer's own certificate must be one of them. Empty: any
    /// certificate with a chain to an anchor is accepted.
    pub pinned: Vec<PathBuf>,
    /// PEM or DER files of certificate revocation lists.
    pub crls: Vec<PathBuf>,
    /// Whether revocation is checked.
    pub revocation: Revocation,
    /// What happens to chains that end at an expired anchor.
    pub expired_anchors: ExpiredAnchors,
    /// The position of the table in the policy text; for `system`, the position at which a rule
    /// first names it.
    pub position: SourcePosition,
    /// The positions of the files.
    pub file_positions: FilePositions,
}

impl Trust {
    /// Returns every file that the trust names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let anchors = match &self.source {
            TrustSource::Files(files) => files.as_slice(),
            TrustSource::System | TrustSource::Pinned => &[],
        };
        anchors.iter().chain(&self.pinned).chain(&self.crls).map(PathBuf::as_path)
    }
}

/// The name of the trust that every policy has: the CA certificates of the distribution.
pub const SYSTEM_TRUST: &str = "system";

/// The source of trust anchors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource {
    /// PEM files of CA certificates.
    Files(Vec<PathBuf>),
    /// The distribution's own bundle.
    System,
    /// No anchors. No chain is built: only the pinned certificates themselves are trusted.
    Pinned,
}

/// What happens to chains that end at an expired anchor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpiredAnchors {
    /// They are rejected.
    #[default]
    Reject,
    /// They are accepted.
    Accept,
}

/// How revocation is checked. Without CRLs, only `off` is possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revocation {
    /// Revocation is not checked.
    #[default]
    Off,
    /// Certificates that a CRL lists are rejected. A certificate for which there is no current CRL
    /// is accepted and logged.
    Soft,
    /// Like `soft`. In addition, a certificate for which there is no current CRL is rejected.
    Hard,
}

impl Revocation {
    /// Returns the word in the policy.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }
}
