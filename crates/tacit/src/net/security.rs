//! What protects the bytes on a socket.

/// What protects the bytes that travel on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Nothing: they are in clear.
    Clear,
    /// TLS.
    Tls,
}
