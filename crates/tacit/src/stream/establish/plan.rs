//! Decides which socket of a connection gets TLS, what the agent waits for first, and when the
//! agent connects to the server. *Downstream* is the accepted socket. *Upstream* is the socket to
//! the server.
//!
//! | connection | waits first for | socket with TLS | connects to the server |
//! |---|---|---|---|
//! | no TLS, or TLS that the program starts later | | none | immediately |
//! | TLS as a server, with STARTTLS | STARTTLS with the client | downstream | after the handshake |
//! | TLS as a server, no STARTTLS | the client's first byte | downstream | after the handshake |
//! | TLS is optional, the client uses none | the client's first byte | none | after this byte |
//! | TLS as a client, with STARTTLS | STARTTLS with the server | upstream | before the handshake |
//! | TLS as a client, no STARTTLS | | upstream | before the handshake |
//! | FTP data, TLS as a server | the client's first bytes | to the client | before the handshake |
//! | FTP data, TLS as a client | | to the server | before the handshake |
//!
//! A rule with `activate` can start the server when the client's first message arrives. Then the
//! agent connects to the server after this message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::policy::{ActivateOn, Starttls};
use tacit_core::starttls::StarttlsSide;
use tacit_core::starttls::ftp::DataRequest;

use crate::live::{LiveAction, LiveRule, LiveTls, TlsRole};
use crate::net::{Position, Security};
use crate::session::ConnectionRecord;
use crate::stream::data::{ARRIVAL_WAIT_MAX, PendingDataConnection};

/// The steps before bytes are relayed.
#[derive(Debug)]
pub(super) struct Plan<'r> {
    /// The destination of the upstream socket.
    pub(super) target: Target,
    /// The protection of one of the sockets.
    pub(super) protection: Protection<'r>,
    /// Whether there is no upstream socket before the first message has arrived.
    pub(super) waits: bool,
}

/// The destination of the upstream socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// The destination that the rule, the program or the run determines.
    OfRule,
    /// The destination that was negotiated on the control connection.
    Data(DataRequest),
}

/// The protection of one of the sockets.
#[derive(Debug)]
pub(super) enum Protection<'r> {
    /// No protection.
    Clear,
    /// TLS, when the program asks for it.
    OnRequest(Arc<LiveTls>),
    /// TLS.
    Tls(TlsPlan<'r>),
}

/// How a connection gets TLS.
#[derive(Debug)]
pub(super) struct TlsPlan<'r> {
    /// Which socket gets it.
    pub(super) on: Position,
    /// Settings and limits of the handshake.
    pub(super) settings: Arc<LiveTls>,
    /// The exchange before the handshake.
    pub(super) before: Before<'r>,
    /// When the upstream socket is dialled.
    pub(super) dial: Dial,
    /// The control connection, of a data connection.
    pub(super) parent: Option<&'r ConnectionRecord>,
}

/// The exchange before the handshake.
#[derive(Debug)]
pub(super) enum Before<'r> {
    /// Nothing.
    Nothing,
    /// The client's address, or else its first byte, decides whether there is TLS.
    Detect,
    /// The exchange that the protocol requires before TLS begins.
    Starttls(&'r Starttls),
    /// The first bytes of the client. The client sends them after a reply on its control
    /// connection. By then, the direction of the transfer is known.
    FirstBytes,
}

/// When the upstream socket is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dial {
    /// Before anything else.
    First,
    /// After the client is authenticated.
    AfterHandshake,
}

/// The socket that gets TLS under a rule.
pub(super) fn tls_position(rule: &LiveRule) -> Position {
    if rule.rule.tls_arrives() { Position::Downstream } else { Position::Upstream }
}

impl<'r> Plan<'r> {
    /// The plan of a connection under its rule.
    pub(super) fn of_rule(rule: &'r LiveRule) -> Self {
        let target = Target::OfRule;
        let activation = rule.rule.activation();
        let waits = activation.is_some_and(|activation| activation.on == ActivateOn::Message);
        let LiveAction::Tls(settings) = &rule.action else {
            return Self { target, protection: Protection::Clear, waits };
        };
        if rule.is_controlled() {
            let protection = Protection::OnRequest(Arc::clone(settings));
            return Self { target, protection, waits: false };
        }
        let before = match settings.common().start.starttls() {
            Some(starttls) => Before::Starttls(starttls),
            None if settings.clear_clients().is_some() => Before::Detect,
            None => Before::Nothing,
        };
        let on = tls_position(rule);
        let tls = TlsPlan {
            on,
            settings: Arc::clone(settings),
            before,
            dial: match on {
                Position::Downstream => Dial::AfterHandshake,
                Position::Upstream => Dial::First,
            },
            parent: None,
        };
        Self { target, protection: Protection::Tls(tls), waits }
    }

    /// The plan of a data connection, whose control connection has the rule.
    pub(super) fn of_data(pending: &'r PendingDataConnection) -> Self {
        let target = Target::Data(pending.request);
        let Some(settings) = &pending.tls else {
            return Self { target, protection: Protection::Clear, waits: false };
        };
        let before = match settings.role() {
            TlsRole::Server(_) => Before::FirstBytes,
            TlsRole::Client(_) => Before::Nothing,
        };
        let on = match pending.request.connects {
            StarttlsSide::Peer => Position::Downstream,
            StarttlsSide::Program => Position::Upstream,
        };
        let settings = Arc::clone(settings);
        let parent = Some(&*pending.parent);
        let tls = TlsPlan { on, settings, before, dial: Dial::First, parent };
        Self { target, protection: Protection::Tls(tls), waits: false }
    }

    /// Whether the upstream socket is dialled before anything else.
    pub(super) fn dials_first(&self) -> bool {
        match &self.protection {
            Protection::Clear | Protection::OnRequest(_) => !self.waits,
            Protection::Tls(tls) => tls.dial == Dial::First,
        }
    }

    /// Returns the protection of the upstream socket when it is dialled.
    pub(super) fn upstream_security(&self) -> Security {
        match &self.protection {
            Protection::Tls(tls) if tls.on == Position::Upstream => Security::Tls,
            Protection::Tls(_) | Protection::OnRequest(_) | Protection::Clear => Security::Clear,
        }
    }
}

impl TlsPlan<'_> {
    /// How long everything before the handshake, and the handshake itself, may take.
    pub(super) fn timeout(&self) -> Duration {
        self.settings.common().handshake_timeout
    }

    /// When everything before the handshake, and the handshake itself, must be complete.
    pub(super) fn deadline(&self) -> Instant {
        let wait = match self.parent {
            Some(_) => ARRIVAL_WAIT_MAX,
            None => Duration::ZERO,
        };
        Instant::now() + wait + self.timeout()
    }
}
