//! What the TLS of a comparison is to be, alike for all who take part in it.

/// The terms of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Terms {
    /// TLS 1.3, AES-128-GCM, X25519, each handshake in full: what everybody has.
    Usual,
    /// The same, but sessions are resumed.
    Resumed,
    /// AES-256-GCM instead.
    Aes256,
    /// ChaCha20-Poly1305 instead.
    ChaCha20,
    /// TLS 1.2 with the usual suite.
    Tls12,
}

/// A handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    Full,
    Resumed,
}

impl Terms {
    /// All of them, the usual ones first.
    pub(crate) const ALL: [Self; 5] =
        [Self::Usual, Self::Resumed, Self::Aes256, Self::ChaCha20, Self::Tls12];

    /// Names them in files and on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Resumed => "resumed",
            Self::Aes256 => "aes256",
            Self::ChaCha20 => "chacha20",
            Self::Tls12 => "tls12",
        }
    }

    /// The one version.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            _ => "1.3",
        }
    }

    /// The one suite, by its name of IANA.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::Usual | Self::Resumed => "TLS_AES_128_GCM_SHA256",
            Self::Aes256 => "TLS_AES_256_GCM_SHA384",
            Self::ChaCha20 => "TLS_CHACHA20_POLY1305_SHA256",
            Self::Tls12 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        }
    }

    /// Whether a second connection takes up the session of the first.
    pub(crate) fn resumes(self) -> bool {
        self == Self::Resumed
    }

    /// What the second of two connections has to do.
    pub(crate) fn second_handshake(self) -> Handshake {
        if self.resumes() { Handshake::Resumed } else { Handshake::Full }
    }
}
