//! Defines the TLS settings that all compared programs and proxies use.

/// The name in the server's certificate, which the client verifies.
pub(crate) const SERVER_NAME: &str = "server.test";

/// The TLS settings of one comparison.
#[derive(Clone, Debug)]
pub(crate) struct TlsSettings {
    pub(crate) version: Version,
    /// The only cipher suite, by its IANA name.
    pub(crate) suite: String,
    pub(crate) sessions: Sessions,
}

/// The only TLS version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tls12,
    Tls13,
}

/// Whether a second connection resumes the session of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sessions {
    Full,
    Resumed,
}

impl TlsSettings {
    /// Parses the settings as the benchmark writes them.
    pub(crate) fn parse(version: &str, suite: &str, sessions: &str) -> Result<Self, String> {
        let version = match version {
            "1.2" => Version::Tls12,
            "1.3" => Version::Tls13,
            _ => return Err(format!("unknown TLS version `{version}`")),
        };
        let sessions = match sessions {
            "full" => Sessions::Full,
            "resumed" => Sessions::Resumed,
            _ => {
                return Err(format!(
                    "the argument for handshakes must be `full` or `resumed`, not `{sessions}`"
                ));
            }
        };
        Ok(Self { version, suite: suite.to_owned(), sessions })
    }
}
