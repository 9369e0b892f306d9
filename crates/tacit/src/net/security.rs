//! The protection of a socket's bytes: clear or TLS.

/// What protects the bytes that travel on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Nothing: they are in clear.
    Clear,
    /// TLS.
    Tls,
}
