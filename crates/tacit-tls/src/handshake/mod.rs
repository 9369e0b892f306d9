//! Runs one TLS handshake without I/O, and returns a [`Session`].
//!
//! The TLS library runs only the handshake. Then this module takes the secrets out of the library's
//! connection object, and the [`Session`] encrypts and decrypts all further records. As a TLS
//! client, tacit also keeps the part of the connection object that receives session tickets.

use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::UnbufferedServerConnection;
use rustls::{
    CipherSuite, CommonState, ExtractedSecrets, HandshakeKind, NamedGroup, ProtocolVersion,
};
use serde::Serialize;
use tacit_core::policy::{Group, Rekey, Suite, TlsVersion};
use tacit_core::record::{AlertDescription, ContentType, RecordOpener, RecordSealer};

use super::check::{CheckedPeer, PeerChain, PeerCheck};
use super::config::{ClientSettings, ServerSettings};
use super::facts::CertificateFacts;
use super::failure::{
    FIRST_BYTES_MAX, FailedHandshake, HandshakeFailure, HandshakeRole, describe_error,
    describe_lacking_alpn,
};
use super::key_log::KeyLogLine;
use super::keys::DirectionSecrets;
use super::machine::{
    HandshakeMachine as _, HandshakeProgress, StepResult, first_record_bytes, send_alert, step,
};
use super::outcome::{Observed, StepOutcome, observe, observe_with_key_log};
use super::recheck::TrustedPeer;
use super::secrets::TrafficSecrets;
use super::session::{Session, SessionKeys, Tls13State};
use super::verify::{MappedIdentity, unnamed};

/// The largest number of handshake bytes that wait for the rest of a message. A flight with long
/// chains fits.
pub const INCOMING_BYTES_MAX: usize = 128 * 1024;

/// A handshake in progress.
#[derive(Debug)]
pub struct Handshake {
    side: Side,
    /// The first bytes of the peer, which help to explain a failure.
    first_bytes: Vec<u8>,
    /// The number of bytes in complete records that the library has seen and may still refer to.
    seen: usize,
    /// The reports of all steps so far.
    outcome: StepOutcome,
    /// The address of a client, for maps with conditions on it.
    address: Option<IpAddr>,
    /// The application protocol that the handshake must negotiate.
    required_alpn: Option<&'static str>,
    /// Whether the secrets are collected for a key log.
    has_key_log: bool,
}

enum Side {
    Client {
        machine: Box<UnbufferedClientConnection>,
        settings: Arc<ClientSettings>,
        /// The names that the server's certificate must match.
        names: Vec<ServerName<'static>>,
    },
    Server {
        machine: Box<UnbufferedServerConnection>,
        settings: Arc<ServerSettings>,
    },
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Client { .. } => "Client",
            Self::Server { .. } => "Server",
        })
    }
}

/// The reason why a complete handshake gives no connection, and the alert for the peer.
struct Refusal {
    failure: HandshakeFailure,
    alert: AlertDescription,
}

/// The error of a complete handshake that gives no connection.
#[derive(Debug)]
pub struct FinishError {
    /// The reason.
    pub failure: HandshakeFailure,
    /// The record with the alert for the peer; empty if there is none.
    pub alert: Vec<u8>,
}

/// The negotiated parameters of a connection, for displays and logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NegotiatedParameters {
    /// The version.
    pub version: TlsVersion,
    /// The name of the cipher suite in IANA's registry.
    pub suite: &'static str,
    /// The name of the key exchange group in IANA's registry; absent if a TLS 1.2 session was
    /// resumed.
    pub group: Option<&'static str>,
    /// The application protocol, if one was negotiated.
    pub alpn: Option<String>,
    /// The server name that the client requested, in both roles.
    pub server_name: Option<String>,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
}

/// The result of a successful handshake.
#[derive(Debug)]
pub struct CompletedHandshake {
    /// The session, which handles all later records.
    pub session: Session,
    /// The negotiated parameters.
    pub negotiated: NegotiatedParameters,
    /// The result of the check of the peer's certificate.
    pub check: PeerCheck,
    /// The identity of the peer from its certificate.
    pub mapped: MappedIdentity,
    /// The peer's certificate, if it sent one.
    pub peer: Option<Arc<CertificateFacts>>,
    /// What is needed to check a trusted peer again.
    pub trusted: Option<TrustedPeer>,
}

impl Handshake {
    /// Begins a handshake as client. `requested` are the names that the program used. The server's
    /// certificate must match all of them, unless the rule sets a name.
    ///
    /// # Errors
    /// The library refuses its settings.
    pub fn client(
        settings: &Arc<ClientSettings>,
        requested: &[String],
    ) -> Result<Self, HandshakeFailure> {
        let names = match &settings.server_name {
            Some(name) => vec![name.clone()],
            None => to_be_covered(requested),
        };
        let first = names.first().cloned().unwrap_or_else(unnamed);
        let machine = UnbufferedClientConnection::new(Arc::clone(&settings.config), first)
            .map_err(|error| describe(HandshakeRole::Client, &error))?;
        let settings = Arc::clone(settings);
        Ok(Self::new(Side::Client { machine: Box::new(machine), settings, names }))
    }

    /// Begins a handshake as server.
    ///
    /// # Errors
    /// The library refuses its settings.
    pub fn server(settings: &Arc<ServerSettings>) -> Result<Self, HandshakeFailure> {
        let machine = UnbufferedServerConnection::new(Arc::clone(&settings.config))
            .map_err(|error| describe(HandshakeRole::Server, &error))?;
        Ok(Self::new(Side::Server { machine: Box::new(machine), settings: Arc::clone(settings) }))
    }

    fn new(side: Side) -> Self {
        Self {
            side,
            first_bytes: Vec::new(),
            seen: 0,
            outcome: StepOutcome::default(),
            address: None,
            required_alpn: None,
            has_key_log: false,
        }
    }

    /// Sets the peer's address, if it is an IP address.
    #[must_use]
    pub fn with_peer_address(self, address: Option<IpAddr>) -> Self {
        Self { address, ..self }
    }

    /// Sets the application protocol that the handshake must negotiate; `None`: any, or none.
    #[must_use]
    pub fn with_required_alpn(self, required_alpn: Option<&'static str>) -> Self {
        Self { required_alpn, ..self }
    }

    /// Collects the secrets for a key log ([`Self::take_key_log`]). With these secrets the
    /// connection can be decrypted.
    #[must_use]
    pub fn with_key_log(self) -> Self {
        Self { has_key_log: true, ..self }
    }

    /// Returns the lines of the key log since the last call; none without [`Self::with_key_log`].
    pub fn take_key_log(&mut self) -> Vec<KeyLogLine> {
        std::mem::take(&mut self.outcome.key_log)
    }

    /// Processes the received bytes in `incoming`, and removes the processed ones. When the
    /// handshake is complete, the remaining bytes belong to the session. Appends the bytes to send
    /// to `outgoing`; after an error this includes the alert for the peer.
    ///
    /// # Errors
    /// The handshake failed.
    pub fn advance(
        &mut self,
        incoming: &mut Vec<u8>,
        outgoing: &mut Vec<u8>,
    ) -> Result<HandshakeProgress, HandshakeFailure> {
        let wanted = FIRST_BYTES_MAX.saturating_sub(self.first_bytes.len()).min(incoming.len());
        self.first_bytes.extend_from_slice(&incoming[..wanted]);
        loop {
            let early = self.copy_if_early(incoming);
            let seen = &mut self.seen;
            let step = || match &mut self.side {
                Side::Client { machine, .. } => step(machine.as_mut(), incoming, seen, outgoing),
                Side::Server { machine, .. } => step(machine.as_mut(), incoming, seen, outgoing),
            };
            let Observed { result, outcome } =
                if self.has_key_log { observe_with_key_log(step) } else { observe(step) };
            self.outcome.merge(outcome);
            match result.map_err(|error| self.describe(&error))? {
                StepResult::Done => return Ok(HandshakeProgress::Done),
                StepResult::Blocked => return Ok(HandshakeProgress::Blocked),
                StepResult::Read(kept) => self.skip_early_data(early, kept, incoming),
            }
        }
    }

    /// Returns the next record if it may be early data (RFC 8446 section 4.2.10): it is protected,
    /// and no protected record of this client could be opened so far.
    fn copy_if_early(&self, incoming: &[u8]) -> Option<Vec<u8>> {
        self.outcome.secrets.client_handshake.as_ref()?;
        let next = incoming.get(self.seen..)?;
        let record = next.get(..first_record_bytes(next)?)?;
        let is_protected = record.first() == Some(&(ContentType::ApplicationData as u8));
        (is_protected && matches!(self.side, Side::Server { .. })).then(|| record.to_vec())
    }

    /// Drops a record of early data, which tacit never offers to accept. The library skips the
    /// record, but does not release its bytes. It would read them again with each later record, and
    /// count them again towards its limit of skipped bytes. `record` is a copy of the bytes, `kept`
    /// is their position.
    fn skip_early_data(
        &mut self,
        record: Option<Vec<u8>>,
        kept: Option<Range<usize>>,
        incoming: &mut Vec<u8>,
    ) {
        let Some(mut record) = record else { return };
        let mut opens = || {
            let Side::Server { machine, .. } = &self.side else { return false };
            let suite = machine.negotiated_cipher_suite().map(|suite| suite.suite());
            let secret = self.outcome.secrets.client_handshake.as_ref();
            secret.zip(suite).is_some_and(|(secret, suite)| secret.opens_first(suite, &mut record))
        };
        match kept {
            Some(range) if !opens() => {
                self.seen -= range.len();
                incoming.drain(range);
            }
            // This is the first protected record of the handshake. No early data can follow it.
            _ => self.outcome.secrets.client_handshake = None,
        }
    }

    /// Returns the failure for a peer that ends the connection before the handshake is complete.
    #[must_use]
    pub fn cut_off(&self) -> HandshakeFailure {
        HandshakeFailure::closed(self.role())
    }

    /// Returns the failure for a peer that sends more than [`INCOMING_BYTES_MAX`] without a
    /// complete message. Appends the alert to `outgoing`; `incoming` is lost.
    #[must_use]
    pub fn too_long(&mut self, incoming: &mut Vec<u8>, outgoing: &mut Vec<u8>) -> HandshakeFailure {
        incoming.truncate(self.seen);
        match &mut self.side {
            Side::Client { machine, .. } => send_alert(machine.as_mut(), incoming, None, outgoing),
            Side::Server { machine, .. } => send_alert(machine.as_mut(), incoming, None, outgoing),
        }
        incoming.clear();
        self.describe(&rustls::Error::PeerSentOversizedRecord)
    }

    fn describe(&self, error: &rustls::Error) -> HandshakeFailure {
        let check = self.outcome.checked.as_ref().map(|checked| &checked.check);
        let failed = FailedHandshake {
            role: self.role(),
            first_bytes: &self.first_bytes,
            lacks_ecdhe: self.outcome.lacks_ecdhe,
            check,
        };
        describe_error(&failed, error)
    }

    /// Takes the secrets out of the library, and creates the session.
    ///
    /// # Errors
    /// The certificate of a resumed session is no longer acceptable, the client has no name in the
    /// rule's map, a required application protocol was not negotiated, or the library returns no
    /// secrets. The error contains the alert for the peer.
    pub fn finish(
        self,
        rekey: Rekey,
        now: Instant,
        wall_now: UnixTime,
    ) -> Result<CompletedHandshake, FinishError> {
        let role = self.role();
        let common = match &self.side {
            Side::Client { machine, .. } => machine.common(),
            Side::Server { machine, .. } => machine.common(),
        };
        let chain = common.peer_certificates().unwrap_or_default();
        let negotiated = self.negotiated(common);
        let CheckedPeer { check, leaf, chain: kept } =
            self.check_peer(chain, &negotiated, wall_now);
        let trusted = check.is_trusted().then(|| self.trusted(chain, kept)).flatten();
        let facts = |leaf| CertificateFacts::from_der(leaf).ok().map(Arc::new);
        let peer = leaf.or_else(|| chain.first().and_then(facts));
        let allowed = match &self.side {
            Side::Client { settings, .. } => settings.check.allows(&check),
            Side::Server { settings, .. } => {
                settings.client_check.as_ref().is_none_or(|client| client.allows(&check))
            }
        };
        let lacking =
            self.required_alpn.filter(|wanted| negotiated.alpn.as_deref() != Some(*wanted));
        let mapped = if let Some(wanted) = lacking {
            let failure = describe_lacking_alpn(role, wanted);
            Err(Refusal { failure, alert: AlertDescription::NO_APPLICATION_PROTOCOL })
        } else if allowed {
            self.name_peer(chain, &check)
                .map_err(|failure| Refusal { failure, alert: AlertDescription::ACCESS_DENIED })
        } else {
            let failure = self.describe_refused(&check);
            Err(Refusal { failure, alert: AlertDescription::BAD_CERTIFICATE })
        };
        let secrets = self.outcome.secrets;
        let mut session = into_session(self.side, secrets, role, rekey, now)
            .map_err(|failure| FinishError { failure, alert: Vec::new() })?;
        match mapped {
            Ok(mapped) => {
                Ok(CompletedHandshake { session, negotiated, check, mapped, peer, trusted })
            }
            Err(refusal) => {
                let mut alert = Vec::new();
                // The connection ends with or without the alert.
                let _ = session.seal_alert(refusal.alert, &mut alert);
                Err(FinishError { failure: refusal.failure, alert })
            }
        }
    }

    /// Returns what is stored about a trusted peer; `kept` is its chain, if it is stored.
    fn trusted(
        &self,
        chain: &[CertificateDer<'_>],
        kept: Option<Arc<PeerChain>>,
    ) -> Option<TrustedPeer> {
        let (leaf, rest) = chain.split_first()?;
        let chain = kept.unwrap_or_else(|| Arc::new(PeerChain::new(leaf, rest, None)));
        let names = match &self.side {
            Side::Client { names, .. } => names.as_slice().into(),
            Side::Server { .. } => Box::default(),
        };
        Some(TrustedPeer { chain, names })
    }

    /// Returns the identity of the peer. If the rule has a map, the peer must have one.
    fn name_peer(
        &self,
        chain: &[CertificateDer<'_>],
        check: &PeerCheck,
    ) -> Result<MappedIdentity, HandshakeFailure> {
        match (&self.side, chain.first()) {
            (Side::Client { .. }, _) => Ok(MappedIdentity::Certificate),
            (Side::Server { settings, .. }, Some(leaf)) if check.is_trusted() => {
                settings.identity_mapper.identify(leaf, self.address)
            }
            (Side::Server { .. }, _) => Ok(MappedIdentity::None),
        }
    }

    /// Only a resumed session gets here, because a full handshake fails in the verifier.
    fn describe_refused(&self, check: &PeerCheck) -> HandshakeFailure {
        let error = match check {
            PeerCheck::Absent => rustls::Error::NoCertificatesPresented,
            _ => rustls::CertificateError::ApplicationVerificationFailure.into(),
        };
        let failed = FailedHandshake {
            role: self.role(),
            first_bytes: &[],
            lacks_ecdhe: false,
            check: Some(check),
        };
        describe_error(&failed, &error)
    }

    fn role(&self) -> HandshakeRole {
        match self.side {
            Side::Client { .. } => HandshakeRole::Client,
            Side::Server { .. } => HandshakeRole::Server,
        }
    }

    fn negotiated(&self, common: &CommonState) -> NegotiatedParameters {
        let version = match common.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => TlsVersion::V1_2,
            _ => TlsVersion::V1_3,
        };
        let server_name = match &self.side {
            Side::Client { settings, names, .. } => match names.first() {
                Some(name @ ServerName::DnsName(_)) if settings.sends_server_name => {
                    Some(name.to_str().into_owned())
                }
                _ => None,
            },
            Side::Server { .. } => self.outcome.server_name.clone(),
        };
        NegotiatedParameters {
            version,
            suite: common.negotiated_cipher_suite().map_or("", |suite| suite_name(suite.suite())),
            group: common
                .negotiated_key_exchange_group()
                .and_then(|group| group_name(group.name())),
            alpn: common
                .alpn_protocol()
                .map(|protocol| String::from_utf8_lossy(protocol).into_owned()),
            server_name,
            resumed: common.handshake_kind() == Some(HandshakeKind::Resumed),
        }
    }

    /// A resumed session skips the library's verifier. So the chain of the original handshake is
    /// checked again: otherwise tickets would extend the life of an expired certificate.
    fn check_peer(
        &self,
        chain: &[CertificateDer<'static>],
        negotiated: &NegotiatedParameters,
        now: UnixTime,
    ) -> CheckedPeer {
        let seen = self.outcome.checked.clone().filter(|_| !negotiated.resumed);
        match &self.side {
            Side::Client { settings, names, .. } => {
                let recheck = |name: &ServerName<'_>| settings.check.recheck(chain, name, now);
                let (first, others) = match names.split_first() {
                    Some((first, others)) => (seen.unwrap_or_else(|| recheck(first)), others),
                    None => (seen.unwrap_or_else(|| recheck(&unnamed())), &[][..]),
                };
                // The library checks only one name. If an address has several names, the
                // certificate must match each of them.
                let bad = |seen: &CheckedPeer| matches!(seen.check, PeerCheck::Invalid { .. });
                others.iter().map(recheck).find(bad).filter(|_| !bad(&first)).unwrap_or(first)
            }
            Side::Server { settings, .. } => match &settings.client_check {
                None => PeerCheck::NotAsked.into(),
                Some(_) if chain.is_empty() => PeerCheck::Absent.into(),
                Some(check) => seen.unwrap_or_else(|| check.recheck(chain, now)),
            },
        }
    }
}

/// Returns the names that a certificate must match. Returns none if one of them cannot be in a
/// certificate, because then no certificate is valid.
fn to_be_covered(requested: &[String]) -> Vec<ServerName<'static>> {
    let names: Result<_, _> =
        requested.iter().map(|name| ServerName::try_from(name.clone())).collect();
    names.unwrap_or_default()
}

/// Describes an error that does not depend on the peer.
fn describe(role: HandshakeRole, error: &rustls::Error) -> HandshakeFailure {
    describe_error(
        &FailedHandshake { role, first_bytes: &[], lacks_ecdhe: false, check: None },
        error,
    )
}

fn into_session(
    side: Side,
    traffic: TrafficSecrets,
    role: HandshakeRole,
    rekey: Rekey,
    now: Instant,
) -> Result<Session, HandshakeFailure> {
    let fail = |error: rustls::Error| describe(role, &error);
    let secrets;
    let kernel_version;
    let mut tickets = None;
    match side {
        Side::Client { machine, settings, .. } => {
            let (extracted, kernel) = machine.dangerous_into_kernel_connection().map_err(fail)?;
            secrets = extracted;
            kernel_version = kernel.protocol_version();
            if settings.resumes {
                tickets = Some(Box::new(kernel));
            }
        }
        Side::Server { machine, .. } => {
            let (extracted, kernel) = machine.dangerous_into_kernel_connection().map_err(fail)?;
            secrets = extracted;
            kernel_version = kernel.protocol_version();
        }
    }
    let ExtractedSecrets { tx: (tx_sequence, tx), rx: (rx_sequence, rx) } = secrets;
    let version = match kernel_version {
        ProtocolVersion::TLSv1_3 => TlsVersion::V1_3,
        _ => TlsVersion::V1_2,
    };
    let refused = |_| {
        fail(rustls::Error::General(
            "the TLS library returned no record key for the cipher suite".into(),
        ))
    };
    let tx = DirectionSecrets::split(tx, version).map_err(refused)?;
    let sealer = RecordSealer::new(tx.protection, tx.iv, tx_sequence);
    #[cfg(feature = "testing")]
    let sealer = super::testing::with_lower_limit(sealer);
    let rx = DirectionSecrets::split(rx, version).map_err(refused)?;
    let opener = RecordOpener::new(rx.protection, rx.iv, rx_sequence);
    let keys = SessionKeys { seal_key: tx.key, sealer, open_key: rx.key, opener };
    let mut tls13 = None;
    if version == TlsVersion::V1_3 {
        let missing =
            || fail(rustls::Error::General("the TLS library reported no traffic secrets".into()));
        let secrets = traffic.into_secrets(role).ok_or_else(missing)?;
        tls13 = Some(Box::new(Tls13State { secrets, tickets }));
    }
    Ok(Session::new(keys, role, tls13, rekey, now))
}

/// Returns the name in IANA's registry. The library adds a prefix to the names of TLS 1.3 suites.
fn suite_name(suite: CipherSuite) -> &'static str {
    let name = suite.as_str().unwrap_or_default().replace("TLS13_", "TLS_");
    Suite::DEFAULT.iter().map(|known| known.name()).find(|known| *known == name).unwrap_or("")
}

fn group_name(group: NamedGroup) -> Option<&'static str> {
    let name = group.as_str()?;
    Group::DEFAULT.iter().map(|known| known.name()).find(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests;
