//! Connects to the server, and does the TLS handshake with the client or the server. This is stage
//! 3 of the five stages of a connection. *Downstream* is the accepted socket. *Upstream* is the
//! socket to the server.
//!
//! ```text
//!   TLS downstream       [STARTTLS] ── handshake ── connect
//!   TLS or clear         first byte ─┬─ handshake ── connect
//!                                    └─ connect
//!   TLS upstream         connect ── [STARTTLS] ── handshake
//!   FTP data connection  connect ── handshake ── check: same client as on the control connection
//!   clear                connect
//! ```
//!
//! With TLS downstream, the agent authenticates the client before it connects to the server. The
//! exceptions are STARTTLS protocols that need the server's greeting first, and FTP data
//! connections. If the handshake fails after the agent has connected, the agent resets the upstream
//! socket. So the server does not mistake a truncated transfer for a complete one.
//!
//! Limits: the `handshake-timeout` of the rule applies to the STARTTLS exchange and the handshake
//! together. The timeout of the connection to the server is `connect-timeout` if the rule is a
//! forwarding rule, otherwise `CONNECT_TIMEOUT`.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::icmp::IcmpError;
use tacit_core::meter::Component;
use tacit_core::policy::{ClientProtocol, ConnectAfter, Starttls};
use tacit_core::record::{AlertDescription, PAYLOAD_BYTES_MAX, begins_client_hello};
use tacit_core::starttls::{self as exchange, StarttlsExchange, StarttlsSide};
use tacit_sys::socket::StreamOptions;

use crate::ledger::meter;
use crate::live::{LiveRule, LiveTls, TlsRole};
use crate::net::stream_socket::{Outgoing, StreamSocket};
use crate::net::{Position, Security};
use crate::run::hold::{HeldSyn, SynAnswer};
use crate::session::tls_control::TlsControl;
use crate::session::{Connection, ConnectionSockets, Failure, Unreached};

use super::data::PendingDataConnection;
use super::dial::Upstream;
use super::lane::StreamLane;
use super::relay_kind::{
    ClearRelay, ControlledRelay, Established, OwnTlsRelay, RelayKind, SealedRelay, WaitingRelay,
    WaitingTls,
};
use super::stage::{Admitted, Downstream};
use super::starttls_driver::StarttlsDriver;
use super::{activated, dial, header};

mod deadline;
mod detect;
mod ending;
mod handshake;
mod plan;
mod proof;
mod starttls;

pub use ending::drain_after_alert;
pub use handshake::{HandshakeIo, HandshakeResult, LastFlight, count_handshake};
pub use starttls::remote_ip;

use deadline::within;
use ending::close_both;
use handshake::{first_bytes, stalled};
use plan::{Before, Dial, Plan, Protection, Target, TlsPlan, tls_position};
use starttls::{Agreed, deliver_in_clear, hold, relay_in_clear, relay_under_tls, send_refusal};

/// The time limit for dialling if the rule sets none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of bytes of a program that are sent together with the agent's Finished
/// message: one record.
const FIRST_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;

/// Makes a connection ready to relay bytes.
///
/// # Errors
/// See [`Failure`]. Both sockets are then reset, or closed after an alert.
pub async fn establish(
    lane: &StreamLane,
    admitted: Admitted,
) -> Result<Established, NotEstablished> {
    let Admitted { connection, downstream, early, pending, slot } = admitted;
    let rule = Arc::clone(&connection.record().rule);
    let (downstream, held) = match downstream {
        Downstream::Accepted(socket) => (Some(socket), None),
        Downstream::Held(held) => (None, Some(held)),
    };
    let establishing = Establishing {
        lane,
        connection: &connection,
        downstream,
        held,
        verified: None,
        upstream: None,
        early: early.map(Vec::from).unwrap_or_default(),
        driver: None,
    };
    match establishing.run(&rule, pending.as_deref()).await {
        Ok(relay) => {
            connection.mark_open();
            detect::close_if_clear_has_ended(connection.record());
            count_handshake(connection.record());
            connection.note_peer();
            Ok(Established { connection, relay, slot, program_cpu: None })
        }
        Err(failure) => Err(NotEstablished { connection, failure }),
    }
}

/// A connection that cannot relay bytes.
#[derive(Debug)]
pub struct NotEstablished {
    /// The connection.
    pub connection: Connection,
    /// The reason.
    pub failure: Failure,
}

/// A connection on the way through its plan.
struct Establishing<'a> {
    lane: &'a StreamLane,
    connection: &'a Connection,
    /// The socket towards the side that connects; `None`: it is not accepted yet.
    downstream: Option<StreamSocket>,
    /// The program's SYN, until the connection is accepted.
    held: Option<Box<HeldSyn>>,
    /// The handshake that was completed before the program is connected, with its settings.
    verified: Option<(Arc<LiveTls>, HandshakeResult)>,
    /// The socket that was dialled.
    upstream: Option<Upstream>,
    /// Bytes that came with a PROXY header.
    early: Vec<u8>,
    /// The STARTTLS exchange, if there is one.
    driver: Option<StarttlsDriver>,
}

/// Both sockets of a connection.
struct Sockets {
    downstream: StreamSocket,
    upstream: StreamSocket,
}

impl Establishing<'_> {
    async fn run(
        mut self,
        rule: &LiveRule,
        pending: Option<&PendingDataConnection>,
    ) -> Result<RelayKind, Failure> {
        let plan = match pending {
            Some(pending) => Plan::of_data(pending),
            None => Plan::of_rule(rule),
        };
        match self.held.take() {
            Some(held) => self.begin_held(&plan, held).await?,
            None => self.begin(&plan).await?,
        }
        self.finish(&plan, pending).await
    }

    /// Dials, and connects the program when the destination has answered.
    async fn begin_held(&mut self, plan: &Plan<'_>, mut held: Box<HeldSyn>) -> Result<(), Failure> {
        let begun = tokio::select! {
            biased;
            begun = self.begin_verified(plan) => begun,
            () = held.replaced() => return Err(Failure::Abandoned),
        };
        if let Err(failure) = begun {
            held.refuse(answer_to(&failure));
            return Err(failure);
        }
        let socket = held.connect().await.ok_or(Failure::Abandoned)?;
        self.downstream = Some(StreamSocket::new(socket, Security::Clear)?);
        Ok(())
    }

    /// Dials, and completes the handshake where the program's connect waits for it.
    async fn begin_verified(&mut self, plan: &Plan<'_>) -> Result<(), Failure> {
        self.begin(plan).await?;
        let Protection::Tls(tls) = &plan.protection else { return Ok(()) };
        if tls.settings.connect_after() == ConnectAfter::Verified {
            let settings = self.settings(tls, None)?;
            let handshaken = self.handshake(tls, &settings, Vec::new(), tls.deadline()).await?;
            self.verified = Some((settings, handshaken));
        }
        Ok(())
    }

    /// Does the steps that need no downstream socket, because the upstream may be dialled before
    /// the downstream connection is accepted.
    async fn begin(&mut self, plan: &Plan<'_>) -> Result<(), Failure> {
        if plan.dials_first() { self.dial(plan).await } else { Ok(()) }
    }

    /// Does the remaining steps, with both sockets.
    async fn finish(
        mut self,
        plan: &Plan<'_>,
        pending: Option<&PendingDataConnection>,
    ) -> Result<RelayKind, Failure> {
        self.show_sockets();
        match &plan.protection {
            Protection::Clear if plan.waits => self.wait_in_clear(),
            Protection::Clear => {
                let initial = std::mem::take(&mut self.early);
                let Sockets { downstream, upstream } = self.into_sockets()?;
                let relay = ClearRelay { downstream, upstream, initial };
                Ok(RelayKind::Clear(Box::new(relay)))
            }
            Protection::OnRequest(settings) => self.leave_to_program(settings),
            Protection::Tls(tls) => self.run_tls(plan, tls, pending).await,
        }
    }

    async fn run_tls(
        mut self,
        plan: &Plan<'_>,
        tls: &TlsPlan<'_>,
        pending: Option<&PendingDataConnection>,
    ) -> Result<RelayKind, Failure> {
        if let Some((settings, handshaken)) = self.verified.take() {
            return self.complete(plan, tls, settings, handshaken).await;
        }
        let mut deadline = tls.deadline();
        let mut incoming = Vec::new();
        match &tls.before {
            Before::Nothing => {
                if tls.on == Position::Downstream {
                    incoming = std::mem::take(&mut self.early);
                }
            }
            Before::Detect => {
                if self.detect(tls, deadline).await? == ClientProtocol::Clear {
                    return self.continue_in_clear(plan, Agreed::Clear).await;
                }
                incoming = std::mem::take(&mut self.early);
            }
            Before::Starttls(starttls) => {
                let driver = self.begin_exchange(plan, tls, starttls).await?;
                let agreed = self.hold_exchange(tls, driver, deadline).await?;
                // In the client role, TLS is required once the server is dialled.
                if agreed != Agreed::Tls && tls.on == Position::Downstream {
                    return self.continue_in_clear(plan, agreed).await;
                }
                incoming = self.take_handshake_input(tls);
            }
            Before::FirstBytes => {
                let reading =
                    async { Ok(first_bytes(&self.lane.scratch, self.socket(tls.on)?).await?) };
                incoming = within(deadline, || stalled(&tls.settings), reading).await?;
                deadline = Instant::now() + tls.timeout();
            }
        }
        let settings = self.settings(tls, pending)?;
        let handshaken = self.handshake(tls, &settings, incoming, deadline).await?;
        self.complete(plan, tls, settings, handshaken).await
    }

    /// Does the handshake on one of the sockets; `incoming` was read from it before.
    async fn handshake(
        &mut self,
        tls: &TlsPlan<'_>,
        settings: &Arc<LiveTls>,
        incoming: Vec<u8>,
        deadline: Instant,
    ) -> Result<HandshakeResult, Failure> {
        let io = self.handshake_io(tls, settings, deadline)?;
        let handshaken = io.run(&self.lane.shared.limiter, incoming).await;
        if handshaken.is_err() {
            self.close_refused(tls).await;
        }
        handshaken
    }

    /// Returns what a handshake on one of the sockets needs.
    fn handshake_io<'s>(
        &'s self,
        tls: &'s TlsPlan<'_>,
        settings: &'s LiveTls,
        deadline: Instant,
    ) -> Result<HandshakeIo<'s>, Failure> {
        // A client waits for the agent's last flight, which must not wait for the dial.
        let last_flight = match tls.dial {
            Dial::AfterHandshake => LastFlight::Sent,
            Dial::First => LastFlight::Kept,
        };
        Ok(HandshakeIo {
            record: self.connection.record(),
            peer_of: tls.parent.unwrap_or(self.connection.record()),
            socket: self.socket(tls.on)?,
            tls: settings,
            deadline,
            last_flight,
            traces: self.lane.shared.table.traces(),
            scratch: &self.lane.scratch,
            recent: &self.lane.recent_tls,
            required_alpn: self.driver.as_ref().and_then(|driver| driver.exchange.required_alpn()),
        })
    }

    /// Does the remaining steps when the handshake is complete.
    async fn complete(
        mut self,
        plan: &Plan<'_>,
        tls: &TlsPlan<'_>,
        settings: Arc<LiveTls>,
        handshaken: HandshakeResult,
    ) -> Result<RelayKind, Failure> {
        self.note_tls(tls);
        let record = self.connection.record();
        let HandshakeResult { mut session, incomplete, mut last_flight } = handshaken;
        if let (Some(parent), TlsRole::Server(_)) = (tls.parent, settings.role())
            && let Err(failure) = proof::check(parent, record)
        {
            let _ = session.seal_alert(AlertDescription::ACCESS_DENIED, &mut last_flight);
            Outgoing::new(last_flight).flush(self.socket(tls.on)?).await?;
            self.close_refused(tls).await;
            return Err(failure);
        }
        if plan.waits {
            let downstream = self.downstream.take().ok_or_else(not_connected)?;
            let tls = Some(WaitingTls { session, incomplete, initial: last_flight });
            let relay = WaitingRelay { downstream, tls, initial: Vec::new() };
            return Ok(RelayKind::Waiting(Box::new(relay)));
        }
        if tls.dial == Dial::AfterHandshake {
            meter::switch(Component::Accept);
            self.dial_for_proved_client(plan).await?;
        } else if self.driver.is_none() && tls.parent.is_none() {
            let mut first = std::mem::take(&mut self.early);
            first.reserve_exact(FIRST_BYTES_MAX);
            self.socket(Position::Downstream)?.read_arrived(&mut first).await?;
            if record.rule.own_tls().is_some() && begins_client_hello(&first) {
                let Sockets { downstream: program, upstream } = self.into_sockets()?;
                let waiting = last_flight;
                let relay = OwnTlsRelay { program, upstream, session, waiting, first };
                return Ok(RelayKind::OwnTls(Box::new(relay)));
            }
            self.connection.note_sent(&first);
            last_flight.append(&mut session.seal(&first).map_err(Failure::Session)?);
        }
        let driver = self.driver.take();
        let Sockets { downstream, upstream } = self.into_sockets()?;
        let (tls_socket, clear) = match tls.on {
            Position::Downstream => (downstream, upstream),
            Position::Upstream => (upstream, downstream),
        };
        let relay =
            SealedRelay { clear, tls: tls_socket, session, incomplete, initial: last_flight };
        let Some(driver) = driver else { return Ok(RelayKind::Sealed(Box::new(relay))) };
        let data_tls = driver.exchange.is_persistent().then_some(settings);
        Ok(relay_under_tls(relay, driver, data_tls))
    }

    /// Creates the exchange before TLS, with the bytes that have arrived already. If the exchange
    /// needs the greeting of the program, the program is dialled first.
    async fn begin_exchange(
        &mut self,
        plan: &Plan<'_>,
        tls: &TlsPlan<'_>,
        starttls: &Starttls,
    ) -> Result<StarttlsDriver, Failure> {
        let early = std::mem::take(&mut self.early);
        if tls.on == Position::Upstream {
            let mut exchange = StarttlsExchange::new(starttls, exchange::StarttlsRole::Client);
            exchange.handle_input(StarttlsSide::Program, &early);
            return Ok(StarttlsDriver::new(exchange));
        }
        let mut exchange = StarttlsExchange::new(starttls, exchange::StarttlsRole::Server);
        exchange.handle_input(StarttlsSide::Peer, &early);
        if exchange.needs_program() {
            // Displays do not show this socket: the relay may use another one.
            self.upstream = Some(self.connect(plan).await?);
        }
        Ok(StarttlsDriver::new(exchange))
    }

    /// Runs the exchange. When a rejection is returned, both ends have received it.
    async fn hold_exchange(
        &mut self,
        tls: &TlsPlan<'_>,
        mut driver: StarttlsDriver,
        deadline: Instant,
    ) -> Result<Agreed, Failure> {
        let peer = self.socket(tls.on)?;
        let program = self.socket(tls.on.other()).ok();
        let agreed = hold(&mut driver, peer, program, tls.timeout(), deadline).await;
        self.driver = Some(driver);
        match agreed {
            Ok(agreed) => Ok(agreed),
            Err(failure) => {
                self.close_refused(tls).await;
                Err(failure)
            }
        }
    }

    /// Takes the handshake bytes that arrived during the exchange.
    fn take_handshake_input(&mut self, tls: &TlsPlan<'_>) -> Vec<u8> {
        match (&mut self.driver, tls.on) {
            (Some(driver), Position::Downstream) => driver.exchange.take_input(),
            _ => Vec::new(),
        }
    }

    /// Continues a connection whose client does not use TLS, as the rule allows.
    async fn continue_in_clear(
        mut self,
        plan: &Plan<'_>,
        agreed: Agreed,
    ) -> Result<RelayKind, Failure> {
        meter::switch(Component::Accept);
        self.connection.continue_in_clear();
        if let Some(downstream) = &mut self.downstream {
            downstream.set_security(Security::Clear);
        }
        if plan.waits {
            return self.wait_in_clear();
        }
        if self.upstream.is_none() {
            self.dial(plan).await?;
        }
        self.show_sockets();
        let driver = self.driver.take();
        let initial = std::mem::take(&mut self.early);
        let Sockets { downstream, upstream } = self.into_sockets()?;
        Ok(match driver {
            Some(driver) if agreed == Agreed::Delivery => {
                deliver_in_clear(driver, downstream, upstream)
            }
            Some(driver) => relay_in_clear(driver, downstream, upstream),
            None => {
                let relay = ClearRelay { downstream, upstream, initial };
                RelayKind::Clear(Box::new(relay))
            }
        })
    }

    /// Returns the relay of a connection whose first message, in clear, starts the program.
    fn wait_in_clear(mut self) -> Result<RelayKind, Failure> {
        let downstream = self.downstream.take().ok_or_else(not_connected)?;
        let relay = WaitingRelay { downstream, tls: None, initial: self.early };
        Ok(RelayKind::Waiting(Box::new(relay)))
    }

    /// Returns the settings of this handshake. A connection to which other connections belong has
    /// settings of its own.
    fn settings(
        &self,
        tls: &TlsPlan<'_>,
        pending: Option<&PendingDataConnection>,
    ) -> Result<Arc<LiveTls>, Failure> {
        let uploads = pending.is_some_and(|pending| pending.uploads.now());
        if uploads && matches!(tls.settings.role(), TlsRole::Server(_)) {
            return Ok(Arc::new(tls.settings.without_tickets()));
        }
        if self.driver.as_ref().is_some_and(|driver| driver.exchange.is_persistent()) {
            let settings = tls.settings.for_control_connection().map_err(io::Error::other)?;
            return Ok(Arc::new(settings));
        }
        Ok(Arc::clone(&tls.settings))
    }

    /// Returns the relay for a connection whose program decides when TLS begins.
    fn leave_to_program(mut self, settings: &Arc<LiveTls>) -> Result<RelayKind, Failure> {
        let record = self.connection.record();
        // A connection is established once, and it has tls_control, or would have another plan.
        let requests =
            record.tls_control().and_then(TlsControl::take_requests).ok_or_else(not_connected)?;
        let tls_on = tls_position(&record.rule);
        let initial = std::mem::take(&mut self.early);
        let Sockets { downstream, upstream } = self.into_sockets()?;
        let clear = ClearRelay { downstream, upstream, initial };
        let relay = ControlledRelay { clear, tls_on, requests, tls: Arc::clone(settings) };
        Ok(RelayKind::Controlled(Box::new(relay)))
    }

    /// Returns one of the sockets.
    fn socket(&self, position: Position) -> Result<&StreamSocket, Failure> {
        let socket = match position {
            Position::Downstream => self.downstream.as_ref(),
            Position::Upstream => self.upstream.as_ref().map(|upstream| &upstream.socket),
        };
        socket.ok_or_else(not_connected)
    }

    /// Both sockets.
    fn into_sockets(self) -> Result<Sockets, Failure> {
        match (self.downstream, self.upstream) {
            (Some(downstream), Some(Upstream { socket, .. })) => {
                Ok(Sockets { downstream, upstream: socket })
            }
            _ => Err(not_connected()),
        }
    }

    /// Dials upstream.
    async fn dial(&mut self, plan: &Plan<'_>) -> Result<(), Failure> {
        let upstream = self.connect(plan).await?;
        self.upstream = Some(upstream);
        Ok(())
    }

    /// Provides the upstream socket for a client that is authenticated: the existing one, or a new
    /// one.
    async fn dial_for_proved_client(&mut self, plan: &Plan<'_>) -> Result<(), Failure> {
        if self.driver.as_ref().is_some_and(|driver| driver.exchange.needs_new_program_connection())
            && let Some(first) = self.upstream.take()
        {
            // The exchange has ended its connection to it.
            first.socket.end_in_order();
        }
        if self.upstream.is_none() {
            self.dial(plan).await?;
        }
        self.show_sockets();
        Ok(())
    }

    /// Shows both sockets to displays, once there are both.
    fn show_sockets(&self) {
        let (Some(downstream), Some(upstream)) = (&self.downstream, &self.upstream) else { return };
        let target = upstream.target.clone();
        let sockets = ConnectionSockets {
            downstream: downstream.downgrade(),
            upstream: upstream.socket.downgrade(),
            target,
        };
        let _ = self.connection.record().sockets.set(sockets);
    }

    /// Connects to the destination of the plan, and sends the PROXY header if the rule requires
    /// one.
    async fn connect(&self, plan: &Plan<'_>) -> Result<Upstream, Failure> {
        let record = self.connection.record();
        let security = plan.upstream_security();
        let options = StreamOptions {
            congestion_control: self.lane.shared.congestion_control.clone(),
            reset_on_exit: security == Security::Clear,
        };
        let request = match plan.target {
            Target::OfRule => return self.connect_by_rule(&options, security).await,
            Target::Data(request) => request,
        };
        let address = request.dial;
        let dialled = async {
            let dialled = dial::dial_data(record, request, &options, security).await;
            dialled.map_err(|error| Failure::Dial(Unreached::new(&address, &error)))
        };
        let unreached = || Failure::Dial(dial::unanswered(&address));
        let socket = within(Instant::now() + CONNECT_TIMEOUT, unreached, dialled).await?;
        Ok(Upstream { socket, target: address.into() })
    }

    async fn connect_by_rule(
        &self,
        options: &StreamOptions,
        security: Security,
    ) -> Result<Upstream, Failure> {
        let record = self.connection.record();
        if record.rule.rule.activation().is_some() {
            return activated::start(&self.lane.shared, record).await.map_err(Failure::Dial);
        }
        let forward = record.rule.rule.forward();
        let timeout = forward.map_or(CONNECT_TIMEOUT, |forward| forward.connect_timeout);
        let log = &self.lane.shared.log;
        let dialled = dial::dial(record, log, options, timeout, security).await;
        let upstream = dialled.map_err(Failure::Dial)?;
        if let Some(wanted) = forward.and_then(|forward| forward.send_proxy) {
            let header = header::header(wanted, record)
                .map_err(|error| Failure::Proxy(error.to_string()))?;
            Outgoing::new(header).flush(&upstream.socket).await?;
        }
        Ok(upstream)
    }

    /// Ends the sockets of a connection whose handshake failed: the TLS peer may read its alert,
    /// and a program that took part in STARTTLS may read why there is no TLS. Any other clear
    /// socket is reset.
    async fn close_refused(&mut self, tls: &TlsPlan<'_>) {
        let downstream = self.downstream.take();
        let upstream = self.upstream.take().map(|upstream| upstream.socket);
        let (peer, program) = match tls.on {
            Position::Downstream => (downstream, upstream),
            Position::Upstream => (upstream, downstream),
        };
        let Some(peer) = peer else { return };
        match (&mut self.driver, program) {
            (Some(driver), Some(program)) => {
                if tls.on == Position::Upstream {
                    send_refusal(driver, &peer, &program).await;
                }
                close_both(peer, program).await;
            }
            _ => drain_after_alert(peer).await,
        }
    }
}

/// Returns the result of a program's `connect` if its destination cannot be reached.
fn answer_to(failure: &Failure) -> SynAnswer {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable, PermissionDenied, TimedOut};
    let Failure::Dial(unreached) = failure else { return SynAnswer::Reset };
    match unreached.error {
        Some(NetworkUnreachable) => SynAnswer::Unreachable(IcmpError::NetUnreachable),
        Some(HostUnreachable) => SynAnswer::Unreachable(IcmpError::HostUnreachable),
        Some(PermissionDenied) => SynAnswer::Unreachable(IcmpError::Prohibited),
        Some(TimedOut) => SynAnswer::Silence,
        _ => SynAnswer::Reset,
    }
}

fn not_connected() -> Failure {
    Failure::Broken(io::ErrorKind::NotConnected.into())
}

#[cfg(test)]
pub(super) mod tests;
