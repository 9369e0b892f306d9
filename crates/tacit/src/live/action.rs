//! Defines the action of an installed rule: permit, deny, or TLS. The action TLS contains the TLS
//! configuration.

use std::sync::Arc;

use tacit_core::policy::{ClearClients, ClientCert, ConnectAfter, Deny, OwnTls, Tls, TlsCommon};
use tacit_tls::{ClientSettings, ServerSettings, SettingsError};

/// The action of a rule for its connections.
#[derive(Debug)]
pub enum LiveAction {
    /// Relays bytes without TLS.
    Permit,
    /// Refuses connections.
    Deny(Deny),
    /// Does TLS on the network-side socket.
    Tls(Arc<LiveTls>),
}

impl LiveAction {
    /// The TLS of the action, if it has any.
    #[must_use]
    pub fn tls(&self) -> Option<&Arc<LiveTls>> {
        match self {
            Self::Tls(tls) => Some(tls),
            Self::Permit | Self::Deny(_) => None,
        }
    }
}

/// The TLS of an installed rule.
#[derive(Debug)]
pub struct LiveTls {
    /// The settings of the rule as parsed.
    parsed: Tls,
    /// The role of tacit in the handshake, with the settings of the TLS library.
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

    /// The settings that both roles have.
    #[must_use]
    pub fn common(&self) -> &TlsCommon {
        self.parsed.common()
    }

    /// The event that `connect` of a run's program waits for.
    #[must_use]
    pub fn connect_after(&self) -> ConnectAfter {
        match &self.parsed {
            Tls::Server(_) => ConnectAfter::Answered,
            Tls::Client(tls) => tls.connect,
        }
    }

    /// The role of tacit in the handshake, with the settings of the TLS library.
    #[must_use]
    pub fn role(&self) -> &TlsRole {
        &self.role
    }

    /// Settings for one control connection and its data connections: no other connection of the
    /// rule can resume their sessions.
    ///
    /// # Errors
    /// The TLS library has no random numbers.
    pub fn for_control_connection(&self) -> Result<Self, SettingsError> {
        let role = match &self.role {
            TlsRole::Server(settings) => TlsRole::Server(Arc::new(settings.for_family()?)),
            TlsRole::Client(settings) => TlsRole::Client(Arc::new(settings.for_family())),
        };
        Ok(Self { parsed: self.parsed.clone(), role })
    }

    /// Settings without session tickets after the handshake, for clients that do not read them.
    #[must_use]
    pub fn without_tickets(&self) -> Self {
        let role = match &self.role {
            TlsRole::Server(settings) => TlsRole::Server(Arc::new(settings.without_tickets())),
            TlsRole::Client(settings) => TlsRole::Client(Arc::clone(settings)),
        };
        Self { parsed: self.parsed.clone(), role }
    }

    /// How a connection is handled whose program uses TLS itself; `None` if that is not detected.
    #[must_use]
    pub fn own_tls(&self) -> Option<OwnTls> {
        match &self.parsed {
            Tls::Client(tls) => tls.own_tls,
            Tls::Server(_) => None,
        }
    }

    /// The clients that are accepted without TLS; `None` if every client needs TLS.
    #[must_use]
    pub fn clear_clients(&self) -> Option<&ClearClients> {
        match &self.parsed {
            Tls::Server(tls) => tls.clear_clients.as_ref(),
            Tls::Client(_) => None,
        }
    }

    /// `client-cert` of the rule; `None` in the client role.
    #[must_use]
    pub fn client_cert(&self) -> Option<&ClientCert> {
        match &self.parsed {
            Tls::Server(tls) => Some(&tls.client_cert),
            Tls::Client(_) => None,
        }
    }
}

/// The role of tacit in a handshake, with the settings of the TLS library.
#[derive(Clone, Debug)]
pub enum TlsRole {
    /// tacit is the server.
    Server(Arc<ServerSettings>),
    /// tacit is the client.
    Client(Arc<ClientSettings>),
}

impl TlsRole {
    /// The word in the policy.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Server(_) => "server",
            Self::Client(_) => "client",
        }
    }
}
