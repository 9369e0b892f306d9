//! The action of an installed rule, with the TLS configuration that it needs.

use std::sync::Arc;

use tacit_core::policy::{ClearClients, ClientCert, ConnectAfter, Deny, OwnTls, Tls, TlsCommon};
use tacit_tls::{ClientSettings, ServerSettings, SettingsError};

/// What is done with a rule's connections.
#[derive(Debug)]
pub enum LiveAction {
    /// Bytes are relayed as they are.
    Permit,
    /// Connections are refused.
    Deny(Deny),
    /// TLS on the socket away from the program.
    Tls(Arc<LiveTls>),
}

impl LiveAction {
    /// Its TLS, if it has any.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<LiveTls>> {
        match self {
            Self::Tls(tls) => Some(tls),
            Self::Permit | Self::Deny(_) => None,
        }
    }

    /// The word the policy uses for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny(_) => "deny",
            Self::Tls(_) => "tls",
        }
    }
}

/// The TLS of an installed rule.
#[derive(Debug)]
pub struct LiveTls {
    /// What the rule says, shared with the rule.
    parsed: Tls,
    /// Who tacit is in the handshake, with the settings for it.
    role: TlsRole,
}

impl LiveTls {
    /// The server role.
    pub(super) fn server(parsed: Tls, settings: ServerSettings) -> Self {
        Self { parsed, role: TlsRole::Server(Arc::new(settings)) }
    }

    /// The client role.
    pub(super) fn client(parsed: Tls, settings: ClientSettings) -> Self {
        Self { parsed, role: TlsRole::Client(Arc::new(settings)) }
    }

    /// What the rule says whatever the role.
    #[must_use]
    pub fn common(&self) -> &TlsCommon {
        self.parsed.common()
    }

    /// What the `connect` of a run's program waits for.
    #[must_use]
    pub fn connect_after(&self) -> ConnectAfter {
        match &self.parsed {
            Tls::Server(_) => ConnectAfter::Answered,
            Tls::Client(tls) => tls.connect,
        }
    }

    /// Who tacit is in the handshake, with the settings for it.
    #[must_use]
    pub fn role(&self) -> &TlsRole {
        &self.role
    }

    /// The same for one connection and the data connections that belong to it: no other connection
    /// of the rule can resume its session.
    ///
    /// # Errors
    /// The library has no randomness.
    pub fn for_control_connection(&self) -> Result<Self, SettingsError> {
        let role = match &self.role {
            TlsRole::Server(settings) => TlsRole::Server(Arc::new(settings.for_family()?)),
            TlsRole::Client(settings) => TlsRole::Client(Arc::new(settings.for_family())),
        };
        Ok(Self { parsed: self.parsed.clone(), role })
    }

    /// The same without tickets after the handshake, for clients that will not read them.
    #[must_use]
    pub fn without_tickets(&self) -> Self {
        let role = match &self.role {
            TlsRole::Server(settings) => TlsRole::Server(Arc::new(settings.without_tickets())),
            TlsRole::Client(settings) => TlsRole::Client(Arc::clone(settings)),
        };
        Self { parsed: self.parsed.clone(), role }
    }

    /// What becomes of a connection whose program speaks TLS itself; `None`: it is not looked for.
    #[must_use]
    pub fn own_tls(&self) -> Option<OwnTls> {
        match &self.parsed {
            Tls::Client(tls) => tls.own_tls,
            Tls::Server(_) => None,
        }
    }

    /// Clients that are accepted without TLS; `None`: every client needs TLS.
    #[must_use]
    pub fn clear_clients(&self) -> Option<&ClearClients> {
        match &self.parsed {
            Tls::Server(tls) => tls.clear_clients.as_ref(),
            Tls::Client(_) => None,
        }
    }

    /// What is asked of clients; `None` in the client role.
    #[must_use]
    pub fn client_cert(&self) -> Option<&ClientCert> {
        match &self.parsed {
            Tls::Server(tls) => Some(&tls.client_cert),
            Tls::Client(_) => None,
        }
    }
}

/// Who tacit is in a handshake, with the settings for it.
#[derive(Clone, Debug)]
pub enum TlsRole {
    /// tacit answers the handshake.
    Server(Arc<ServerSettings>),
    /// tacit opens the handshake.
    Client(Arc<ClientSettings>),
}

impl TlsRole {
    /// The word the policy uses for it.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Server(_) => "server",
            Self::Client(_) => "client",
        }
    }
}
