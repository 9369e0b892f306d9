//! Defines how the bytes of a socket are protected: clear (not at all) or TLS.

/// The protection of the bytes on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// The bytes are in clear.
    Clear,
    /// TLS.
    Tls,
}
