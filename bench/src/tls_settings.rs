//! Defines the TLS settings that all compared programs and proxies use.

/// The TLS settings of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TlsSettings {
    /// TLS 1.3, AES-128-GCM, X25519, full handshakes: supported by all peers.
    Usual,
    /// The same with resumed sessions.
    Resumed,
    /// The same with AES-256-GCM.
    Aes256,
    /// The same with ChaCha20-Poly1305.
    ChaCha20,
    /// TLS 1.2 with AES-128-GCM.
    Tls12,
}

/// The kind of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    Full,
    Resumed,
}

impl TlsSettings {
    /// All settings; the usual ones are the first.
    pub(crate) const ALL: [Self; 5] =
        [Self::Usual, Self::Resumed, Self::Aes256, Self::ChaCha20, Self::Tls12];

    /// The name in file names and on command lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Usual => "usual",
            Self::Resumed => "resumed",
            Self::Aes256 => "aes256",
            Self::ChaCha20 => "chacha20",
            Self::Tls12 => "tls12",
        }
    }

    /// The only TLS version.
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::Tls12 => "1.2",
            _ => "1.3",
        }
    }

    /// The only cipher suite, by its IANA name.
    pub(crate) fn suite(self) -> &'static str {
        match self {
            Self::Usual | Self::Resumed => "TLS_AES_128_GCM_SHA256",
            Self::Aes256 => "TLS_AES_256_GCM_SHA384",
            Self::ChaCha20 => "TLS_CHACHA20_POLY1305_SHA256",
            Self::Tls12 => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        }
    }

    /// Whether a second connection resumes the session of the first.
    pub(crate) fn resumes(self) -> bool {
        self == Self::Resumed
    }

    /// The expected handshake of a second connection.
    pub(crate) fn second_handshake(self) -> Handshake {
        if self.resumes() { Handshake::Resumed } else { Handshake::Full }
    }
}
