//! Defines how the bytes of a socket are protected: clear (not at all) or TLS.

/// What protects the bytes that travel on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Nothing: they are in clear.
    Clear,
    /// TLS.
    Tls,
}
