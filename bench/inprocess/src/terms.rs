//! What the TLS of a comparison is to be, alike for all who take part in it.

/// The name in the server's certificate, which the client checks.
pub(crate) const SERVER_NAME: &str = "server.test";

/// The terms of one comparison.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) version: Version,
    /// The one suite, by its name of IANA.
    pub(crate) suite: String,
    pub(crate) sessions: Sessions,
}

/// The one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tls12,
    Tls13,
}

/// Whether a second connection takes up the session of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sessions {
    Full,
    Resumed,
}

impl Terms {
    /// Reads them as the benchmark writes them.
    pub(crate) fn parse(version: &str, suite: &str, sessions: &str) -> Result<Self, String> {
        let version = match version {
            "1.2" => Version::Tls12,
            "1.3" => Version::Tls13,
            _ => return Err(format!("no TLS version `{version}` here")),
        };
        let sessions = match sessions {
            "full" => Sessions::Full,
            "resumed" => Sessions::Resumed,
            _ => return Err(format!("write full or resumed, not `{sessions}`")),
        };
        Ok(Self { version, suite: suite.to_owned(), sessions })
    }
}
