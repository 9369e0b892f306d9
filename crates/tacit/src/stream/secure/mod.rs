//! Stage 3, secure: dials the target and puts TLS on the leg that the rule says.
//!
//! What a program has said by the time that our Finished is ready leaves together with it, in one
//! send; what came together with a client's Finished goes on in the relay's first step.
//!
//! In the server role the client proves itself before anything is dialled, but for a program whose
//! greeting the dialogue before TLS needs. Handshakes need a place: of their source, of their rule
//! and of all; who finds none waits for one, and the handshake timeout counts from the arrival, so
//! nobody waits for ever. A dialogue needs none.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls_pki_types::UnixTime;
use tacit_core::flow::Address;
use tacit_core::meter::Component;
use tacit_core::policy::TlsCommon;
use tacit_core::record::PAYLOAD_BYTES_MAX;
use tacit_core::starttls::{self, Dialogue, Side};
use tacit_sys::socket::StreamOptions;

use crate::ledger::{Count, meter};
use crate::live::{LiveAction, LiveRule};
use tacit_tls::{
    Established, Handshake, HandshakeFailure, INCOMING_BYTES_MAX, Progress, Role, Session,
};

use super::asked::Controls;
use super::connection::{Admitted, Connection, Legs, Record, TlsFacts};
use super::dial;
use super::gate::{Gates, Place};
use super::header;
use super::leg::{Leg, Outgoing};
use super::talk::Talk;

mod dialogue;
mod failure;
mod path;

pub(super) use dialogue::remote_ip;
pub use failure::Failure;
pub use path::{
    Carried, ClearPath, ControlledPath, Family, Path, SealedPath, Secured, TalkingPath,
};

use dialogue::{Ended, converse, excuse, go_on_in_clear, part, talked};

/// How long dialling may take where no rule says it.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes read at once during a handshake.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of a program that may leave together with our Finished: one record.
const FIRST_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;
/// How long a peer may take to read the alert that tells it why it was refused.
const FAREWELL_WAIT_MAX: Duration = Duration::from_secs(1);

/// What establishing needs of its surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// Places for handshakes.
    pub gates: &'a Gates,
    /// Options of dialled sockets.
    pub congestion_control: Option<&'a str>,
}

/// Makes a connection ready to carry bytes; `early` are those that came with a PROXY header.
///
/// # Errors
/// See [`Failure`]. The legs are gone then: reset, or told by an alert.
pub async fn establish(
    around: Surroundings<'_>,
    admitted: Admitted,
) -> Result<Secured, (Connection, Failure)> {
    let Admitted { connection, leg: accepted, early } = admitted;
    let rule = Arc::clone(&connection.record().rule);
    let early = early.map(Vec::from).unwrap_or_default();
    let result = match &rule.action {
        _ if connection.record().controls().is_some() => {
            leave_to_program(around, &connection, accepted, early).await
        }
        LiveAction::TlsServer(_) | LiveAction::TlsClient(_) if rule.rule.tls_arrives() => {
            serve_tls(around, &connection, accepted, early).await
        }
        LiveAction::TlsServer(_) | LiveAction::TlsClient(_) => {
            reach_tls(around, &connection, accepted, early).await
        }
        LiveAction::Permit | LiveAction::Deny => {
            carry_clear(around, &connection, accepted, early).await
        }
    };
    match result {
        Ok(path) => {
            connection.mark_open();
            count_handshake(connection.record());
            Ok(Secured { connection, path })
        }
        Err(failure) => Err((connection, failure)),
    }
}

pub(super) fn count_handshake(record: &Record) {
    if let Some(tls) = record.tls.get() {
        let resumed = u64::from(tls.agreed.resumed);
        meter::count(record.account(), [(Count::Handshakes, 1), (Count::Resumed, resumed)]);
    }
}

/// Whom the program wants to talk to: the names it asked for, or the address itself.
fn wanted_names(record: &Record) -> Vec<String> {
    match &record.run {
        None => Vec::new(),
        Some(of_run) if of_run.names.is_empty() => {
            record.remote.ip().map(|ip| ip.to_string()).into_iter().collect()
        }
        Some(of_run) => of_run.names.clone(),
    }
}

/// TLS arrives: handshake with who connected, then dial.
async fn serve_tls(
    around: Surroundings<'_>,
    connection: &Connection,
    accepted: Leg,
    mut early: Vec<u8>,
) -> Result<Path, Failure> {
    let record = connection.record();
    let common = tls_common(&record.rule);
    let deadline = Instant::now() + common.handshake_timeout;
    let mut talk = None;
    let mut program = None;
    if let Some(starttls) = common.start.starttls() {
        let mut dialogue = Dialogue::new(starttls, starttls::Role::Server);
        dialogue.receive(Side::Peer, &std::mem::take(&mut early));
        if dialogue.needs_program() {
            program = Some(reach(around, record, true).await?);
        }
        let mut held = Talk::new(dialogue);
        let leg = program.as_ref().map(|(leg, _)| leg);
        match converse(&mut held, &accepted, leg, common, deadline).await {
            Ok(Ended::Secure) => early = held.dialogue.take_input(),
            Ok(Ended::Clear) => {
                return go_on_in_clear(around, connection, accepted, program, held).await;
            }
            Err(failure) => {
                part(accepted, program.map(|(leg, _)| leg)).await;
                return Err(failure);
            }
        }
        talk = Some(held);
    }
    let family = family(record, talk.as_ref())?;
    let hands = Hands { record, leg: &accepted, deadline };
    // The client waits for our last flight, and must not wait for what is dialled.
    let shaken =
        hands.shake(around.gates, early, LastFlight::Sent, || handshake(record, family.as_ref()));
    let Shaken { session, incomplete, .. } = match shaken.await {
        Ok(shaken) => shaken,
        Err(failure) => {
            part(accepted, program.map(|(leg, _)| leg)).await;
            return Err(failure);
        }
    };
    meter::switch(Component::Accept);
    if talk.as_ref().is_some_and(|talk| talk.dialogue.needs_fresh_program())
        && let Some((first, _)) = program.take()
    {
        // It was told good-bye.
        first.end_in_order();
    }
    let clear = settle(around, record, &accepted, program).await?;
    let initial = Vec::new();
    let path = SealedPath { clear, tls: accepted, session, incomplete, initial };
    Ok(talked(path, talk, family))
}

/// Settings of its own for a connection that others may belong to.
fn family(record: &Record, talk: Option<&Talk>) -> Result<Option<Family>, Failure> {
    match talk {
        Some(talk) if talk.dialogue.stays() => Family::of(record),
        _ => Ok(None),
    }
}

/// The handshake that the rule asks for, or its family has, at its beginning.
pub(super) fn handshake(
    record: &Record,
    family: Option<&Family>,
) -> (Role, Result<Handshake, HandshakeFailure>) {
    match (family, &record.rule.action) {
        (Some(Family::Server(settings)), _) | (None, LiveAction::TlsServer(settings)) => {
            let handshake = Handshake::server(settings);
            let address = tls_peer(record);
            (Role::Server, handshake.map(|handshake| handshake.with_peer_address(address)))
        }
        (Some(Family::Client(settings)), _) | (None, LiveAction::TlsClient(settings)) => {
            (Role::Client, Handshake::client(settings, &wanted_names(record)))
        }
        // INVARIANT: TLS is done for rules with TLS only.
        (None, LiveAction::Permit | LiveAction::Deny) => unreachable!("TLS without a TLS rule"),
    }
}

/// Where the TLS peer is: who connected, or who was dialled.
fn tls_peer(record: &Record) -> Option<IpAddr> {
    match record.rule.rule.tls_arrives() {
        true => record.client().ip(),
        false => record.legs.get().and_then(|legs| legs.target.ip()),
    }
}

/// TLS is dialled: dial, then handshake with who answered.
async fn reach_tls(
    around: Surroundings<'_>,
    connection: &Connection,
    accepted: Leg,
    mut from_header: Vec<u8>,
) -> Result<Path, Failure> {
    let record = connection.record();
    let common = tls_common(&record.rule);
    let tls = dial(around, record, &accepted, false).await?;
    let deadline = Instant::now() + common.handshake_timeout;
    let mut talk = None;
    if let Some(starttls) = common.start.starttls() {
        let mut dialogue = Dialogue::new(starttls, starttls::Role::Client);
        dialogue.receive(Side::Program, &std::mem::take(&mut from_header));
        let held = talk.insert(Talk::new(dialogue));
        let said = converse(held, &tls, Some(&accepted), common, deadline).await;
        if let Err(failure) = said {
            excuse(held, &tls, &accepted).await;
            part(tls, Some(accepted)).await;
            return Err(failure);
        }
    }
    let family = family(record, talk.as_ref())?;
    let hands = Hands { record, leg: &tls, deadline };
    let shaken = hands
        .shake(around.gates, Vec::new(), LastFlight::Kept, || handshake(record, family.as_ref()));
    let Shaken { mut session, incomplete, last_flight } = match shaken.await {
        Ok(shaken) => shaken,
        Err(failure) => {
            match &mut talk {
                None => farewell(tls).await,
                Some(held) => {
                    excuse(held, &tls, &accepted).await;
                    part(tls, Some(accepted)).await;
                }
            }
            return Err(failure);
        }
    };
    let mut initial = last_flight;
    if talk.is_none() {
        let mut first = from_header;
        first.reserve_exact(FIRST_BYTES_MAX);
        accepted.read_arrived(&mut first).await?;
        connection.count_sent(first.len());
        initial.append(&mut session.seal(&first).map_err(Failure::Session)?);
    }
    let path = SealedPath { clear: accepted, tls, session, incomplete, initial };
    Ok(talked(path, talk, family))
}

/// Permit: dial, nothing more.
async fn carry_clear(
    around: Surroundings<'_>,
    connection: &Connection,
    accepted: Leg,
    initial: Vec<u8>,
) -> Result<Path, Failure> {
    let record = connection.record();
    let dialled = dial(around, record, &accepted, true).await?;
    Ok(Path::Clear(Box::new(ClearPath { accepted, dialled, initial })))
}

/// Controlled: dial, and leave the rest to the program.
async fn leave_to_program(
    around: Surroundings<'_>,
    connection: &Connection,
    accepted: Leg,
    initial: Vec<u8>,
) -> Result<Path, Failure> {
    let record = connection.record();
    let dialled = dial(around, record, &accepted, true).await?;
    // INVARIANT: a connection is set up once, and it has controls, or would not be here.
    let wishes = record.controls().and_then(Controls::take_wishes);
    let wishes = wishes.ok_or_else(|| Failure::Broken(io::ErrorKind::NotConnected.into()))?;
    let arrives = record.rule.rule.tls_arrives();
    let clear = ClearPath { accepted, dialled, initial };
    Ok(Path::Controlled(Box::new(ControlledPath { clear, arrives, wishes })))
}

/// Puts TLS on a leg that carried clear bytes until now, because the program asked for it.
/// `incoming` are the bytes of the peer that the program has not read.
///
/// # Errors
/// See [`Failure`]; the leg must be closed then.
pub async fn begin(
    gates: &Gates,
    connection: &Connection,
    outside: &Leg,
    incoming: Vec<u8>,
) -> Result<Shaken, Failure> {
    let record = connection.record();
    let deadline = Instant::now() + handshake_timeout(record);
    let hands = Hands { record, leg: outside, deadline };
    let begin = || handshake(record, None);
    let shaken = hands.shake(gates, incoming, LastFlight::Kept, begin).await?;
    count_handshake(record);
    Ok(shaken)
}

pub(super) fn stalled(role: Role, common: &TlsCommon) -> Failure {
    HandshakeFailure::timed_out(role, common.handshake_timeout).into()
}

fn unreached() -> Failure {
    Failure::Dial("the name in `connect` did not resolve, or nobody answered, in time".into())
}

/// Waits for a place among the handshakes in flight; the source is the client that a trusted proxy
/// names, or else who connected.
async fn place<'a>(
    gates: &'a Gates,
    record: &Record,
    deadline: Instant,
) -> Result<Option<Place<'a>>, Failure> {
    let place = async { Ok(gates.enter(&record.rule, record.client()).await) };
    within(deadline, || Failure::NoPlace, place).await
}

pub(super) async fn within<T>(
    deadline: Instant,
    too_late: impl FnOnce() -> Failure,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout_at(deadline.into(), work).await {
        Ok(result) => result,
        Err(_) => Err(too_late()),
    }
}

/// How long a handshake of the connection may take, and what else the program asks for.
#[must_use]
pub fn handshake_timeout(record: &Record) -> Duration {
    tls_common(&record.rule).handshake_timeout
}

pub(super) fn tls_common(rule: &LiveRule) -> &TlsCommon {
    match &rule.rule.action {
        tacit_core::policy::Action::Tls(tls) => tls.common(),
        // INVARIANT: a live TLS action is made from a TLS rule only.
        _ => unreachable!("a live TLS action without a TLS rule"),
    }
}

/// Dials the connection's target, and sends the PROXY header if the rule says so.
async fn dial(
    around: Surroundings<'_>,
    record: &Record,
    accepted: &Leg,
    clear: bool,
) -> Result<Leg, Failure> {
    let reached = reach(around, record, clear).await?;
    Ok(show_legs(record, accepted, reached))
}

/// The program's leg of a client that has proved itself: what there is already, or a new one.
async fn settle(
    around: Surroundings<'_>,
    record: &Record,
    accepted: &Leg,
    program: Option<(Leg, Address)>,
) -> Result<Leg, Failure> {
    match program {
        Some(program) => Ok(show_legs(record, accepted, program)),
        None => dial(around, record, accepted, true).await,
    }
}

fn show_legs(record: &Record, accepted: &Leg, (leg, target): (Leg, Address)) -> Leg {
    let legs = Legs { accepted: accepted.downgrade(), dialled: leg.downgrade(), target };
    let _ = record.legs.set(legs);
    leg
}

/// As [`dial`]; displays do not see it.
async fn reach(
    around: Surroundings<'_>,
    record: &Record,
    clear: bool,
) -> Result<(Leg, Address), Failure> {
    let options = StreamOptions {
        congestion_control: around.congestion_control.map(str::to_owned),
        reset_on_exit: clear,
    };
    let timeout = record.rule.rule.forward().map_or(CONNECT_TIMEOUT, |it| it.connect_timeout);
    let work = async { dial::dial(record, &options, timeout, clear).await.map_err(Failure::Dial) };
    let (leg, address) = within(Instant::now() + timeout, unreached, work).await?;
    if let Some(wanted) = record.rule.rule.forward().and_then(|it| it.send_proxy) {
        let bytes = header::header(wanted, record);
        let bytes = bytes.map_err(|error| Failure::Proxy(error.to_string()))?;
        Outgoing::new(bytes).flush(&leg).await?;
    }
    Ok((leg, address))
}

/// A session on a leg that had none.
#[derive(Debug)]
pub struct Shaken {
    /// It.
    pub session: Session,
    /// Records that came with the handshake and were not opened.
    pub incomplete: Vec<u8>,
    /// What the peer must get before all else.
    pub last_flight: Vec<u8>,
}

/// What becomes of our last flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LastFlight {
    /// It leaves at once.
    Sent,
    /// It leaves with what comes next.
    Kept,
}

/// Where a handshake takes place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hands<'a> {
    /// The connection, which keeps what the handshake gives.
    pub(super) record: &'a Record,
    /// The leg.
    pub(super) leg: &'a Leg,
    /// When it must be complete, waiting for a place included.
    pub(super) deadline: Instant,
}

impl Hands<'_> {
    /// Shakes hands once there is a place for it; `incoming` came before.
    ///
    /// # Errors
    /// See [`Failure`]; the peer has been told.
    pub(super) async fn shake(
        self,
        gates: &Gates,
        incoming: Vec<u8>,
        last_flight: LastFlight,
        begin: impl FnOnce() -> (Role, Result<Handshake, HandshakeFailure>),
    ) -> Result<Shaken, Failure> {
        let Self { record, leg, deadline } = self;
        let common = tls_common(&record.rule);
        meter::switch(Component::Handshake);
        let _place = place(gates, record, deadline).await?;
        let (role, handshake) = begin();
        let work = async {
            let mut shaken = shake(handshake?, record, leg, incoming).await?;
            if last_flight == LastFlight::Sent {
                Outgoing::new(std::mem::take(&mut shaken.last_flight)).flush(leg).await?;
            }
            Ok(shaken)
        };
        within(deadline, || stalled(role, common), work).await
    }
}

/// Runs a handshake over a leg.
async fn shake(
    mut handshake: Handshake,
    record: &Record,
    leg: &Leg,
    mut incoming: Vec<u8>,
) -> Result<Shaken, Failure> {
    let mut last_flight = Vec::new();
    loop {
        let progress = handshake.advance(&mut incoming, &mut last_flight);
        if matches!(progress, Ok(Progress::Done)) {
            break;
        }
        let flushed = Outgoing::new(std::mem::take(&mut last_flight)).flush(leg).await;
        progress?;
        flushed?;
        incoming.reserve(READ_BYTES);
        if leg.read_onto(&mut incoming).await? == 0 {
            return Err(handshake.cut_off().into());
        }
        if incoming.len() > INCOMING_BYTES_MAX {
            return Err(handshake.too_long().into());
        }
    }
    // It lives as long as the connection, empty in nearly every one.
    incoming.shrink_to_fit();
    let rekey = tls_common(&record.rule).rekey;
    match handshake.finish(rekey, Instant::now(), wall_now()) {
        Ok(Established { session, agreed, check, named, peer }) => {
            record.tls.set(TlsFacts { agreed, check, named, peer });
            Ok(Shaken { session, incomplete: incoming, last_flight })
        }
        Err((failure, mut alert)) => {
            last_flight.append(&mut alert);
            Outgoing::new(last_flight).flush(leg).await?;
            Err(failure.into())
        }
    }
}

fn wall_now() -> UnixTime {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    UnixTime::since_unix_epoch(since.unwrap_or_default())
}

/// Lets a refused peer read its alert: closing at once would reset what is still on its way.
pub async fn farewell(leg: Leg) {
    if leg.shutdown_write().is_err() {
        return;
    }
    let drained = async {
        let mut sink = [0; 2048];
        let mut left = INCOMING_BYTES_MAX;
        while let Ok(count) = leg.read(&mut sink).await
            && count > 0
            && left > 0
        {
            left = left.saturating_sub(count);
        }
    };
    let _ = tokio::time::timeout(FAREWELL_WAIT_MAX, drained).await;
}
