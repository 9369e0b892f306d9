//! Who we are and whom we trust: certificates with keys, and trust anchors.

use std::path::{Path, PathBuf};

use super::diagnostic::SourcePosition;

/// A certificate with its key. Paths are absolute or relative to the policy file's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// PEM file: the certificate, then the intermediates.
    pub cert: PathBuf,
    /// PEM file: PKCS#8, PKCS#1 or SEC1 key.
    pub key: PathBuf,
    /// Where the table stands in the policy text.
    pub position: SourcePosition,
}

/// Which certificates are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// The source of the anchors.
    pub source: TrustSource,
    /// PEM files of certificates; the peer's own must be one of them. Empty: it may be any that
    /// leads to an anchor.
    pub pinned: Vec<PathBuf>,
    /// PEM or DER files of certificate revocation lists.
    pub crls: Vec<PathBuf>,
    /// Whether they are looked at.
    pub revocation: Revocation,
    /// What becomes of chains that end at an anchor which has expired.
    pub expired_anchors: ExpiredAnchors,
    /// Where the table stands in the policy text; for `system`, where it was first named.
    pub position: SourcePosition,
}

impl Trust {
    /// Every file of it that the policy names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let anchors = match &self.source {
            TrustSource::Files(files) => files.as_slice(),
            TrustSource::System | TrustSource::Pinned => &[],
        };
        anchors.iter().chain(&self.pinned).chain(&self.crls).map(PathBuf::as_path)
    }
}

/// The file or files that hold trust anchors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrustSource {
    /// PEM files of CA certificates.
    Files(Vec<PathBuf>),
    /// The distribution's own bundle.
    System,
    /// There are no anchors and no chain is built: the pinned certificates are trusted themselves.
    Pinned,
}

/// What becomes of chains that end at an anchor which has expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpiredAnchors {
    /// They are rejected.
    #[default]
    Reject,
    /// They are accepted.
    Accept,
}

/// What is asked about revocation; anything but off only where there are lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revocation {
    /// Nothing.
    #[default]
    Off,
    /// What a list names is refused; what no current list tells of is believed, and that is logged.
    Soft,
    /// What no current list tells of is refused too.
    Hard,
}

impl Revocation {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Soft => "soft",
            Self::Hard => "hard",
        }
    }
}
