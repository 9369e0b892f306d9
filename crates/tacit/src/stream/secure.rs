//! Stage 3, secure: dials the target and puts TLS on the leg that the rule says.
//!
//! What a program has said by the time that our Finished is ready leaves together with it, in one
//! send; what came together with a client's Finished goes on in the relay's first step.
//!
//! In the server role the client proves itself before anything is dialled, but for a program whose
//! greeting the dialogue before TLS needs. Handshakes need a place: of their source, of their rule
//! and of all; who finds none waits for one, and the handshake timeout counts from the arrival, so
//! nobody waits for ever. A dialogue needs none.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustls_pki_types::UnixTime;
use tacit_core::flow::Address;
use tacit_core::meter::Component;
use tacit_core::policy::TlsCommon;
use tacit_core::record::PAYLOAD_BYTES_MAX;
use tacit_core::starttls::ftp::Ends;
use tacit_core::starttls::{self, Dialogue, Refusal, Side, Step};
use tacit_sys::socket::{self, StreamOptions};

use crate::address;

use crate::ledger::{Count, meter};
use crate::live::{LiveAction, LiveRule};
use crate::tls::{
    ClientSettings, Established, Handshake, HandshakeFailure, INCOMING_BYTES_MAX, Progress, Role,
    ServerSettings, Session, SessionError,
};

use super::asked::{Controls, Wishes};
use super::connection::{Admitted, Connection, Legs, Record, TlsFacts};
use super::dial;
use super::gate::{Gates, Place};
use super::header;
use super::leg::{Leg, Outgoing, Parked};
use super::talk::{Cut, InClear, Outcome, Talk};

/// How long dialling may take where no rule says it.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes read at once during a handshake.
const READ_BYTES: usize = 16 * 1024;
/// Bytes of a program that may leave together with our Finished: one record.
const FIRST_BYTES_MAX: usize = PAYLOAD_BYTES_MAX;
/// How long a peer may take to read the alert that tells it why it was refused.
const FAREWELL_WAIT_MAX: Duration = Duration::from_secs(1);

/// A connection whose legs are ready to carry bytes.
#[derive(Debug)]
pub struct Secured<L = Leg> {
    /// The connection.
    pub connection: Connection,
    /// How its bytes are carried.
    pub path: Path<L>,
}

/// The kinds of relay; boxed, because a connection spends its life inside one.
#[derive(Debug)]
pub enum Path<L = Leg> {
    /// One leg in clear, the other TLS.
    Sealed(Box<SealedPath<L>>),
    /// The same, with a dialogue that goes on under TLS first.
    Talking(Box<TalkingPath<L>>),
    /// Both legs in clear.
    Clear(Box<ClearPath<L>>),
    /// Both legs in clear until the program says otherwise.
    Controlled(Box<ControlledPath<L>>),
}

/// Legs and session of a TLS relay, with what came early.
#[derive(Debug)]
pub struct SealedPath<L = Leg> {
    /// The leg in clear.
    pub clear: L,
    /// The TLS leg.
    pub tls: L,
    /// Its session.
    pub session: Session,
    /// Records that came with the handshake and were not opened.
    pub incomplete: Vec<u8>,
    /// Records that must go to the TLS peer before all others.
    pub initial: Vec<u8>,
}

/// A relay that is not one yet.
#[derive(Debug)]
pub struct TalkingPath<L = Leg> {
    /// What will be relayed.
    pub carried: Carried<L>,
    /// What is said before.
    pub dialogue: Dialogue,
    /// How connections that belong to this one shake hands, if there can be any.
    pub family: Option<Family>,
}

/// What a dialogue is held over.
#[derive(Debug)]
pub enum Carried<L = Leg> {
    /// The peer has TLS.
    Sealed(Box<SealedPath<L>>),
    /// The peer was accepted, and is in clear too.
    Clear(Box<ClearPath<L>>),
}

/// The TLS settings of one connection and those that belong to it: nobody else resumes its session.
#[derive(Clone, Debug)]
pub enum Family {
    /// tacit answers.
    Server(Arc<ServerSettings>),
    /// tacit asks.
    Client(Arc<ClientSettings>),
}

impl Family {
    /// That of a connection under its rule.
    fn of(record: &Record) -> Result<Option<Self>, Failure> {
        Ok(match &record.rule.action {
            LiveAction::TlsServer(settings) => {
                Some(Self::Server(Arc::new(settings.for_family().map_err(io::Error::other)?)))
            }
            LiveAction::TlsClient(settings) => Some(Self::Client(Arc::new(settings.for_family()))),
            LiveAction::Permit | LiveAction::Deny => None,
        })
    }
}

/// Legs of a relay in clear, with what came early.
#[derive(Debug)]
pub struct ClearPath<L = Leg> {
    /// The leg that was accepted.
    pub accepted: L,
    /// The leg that was dialled.
    pub dialled: L,
    /// Bytes that came with a PROXY header, for the dialled leg.
    pub initial: Vec<u8>,
}

/// Legs of a connection whose program says when TLS begins.
#[derive(Debug)]
pub struct ControlledPath<L = Leg> {
    /// As they are now: the one that was accepted, the one that was dialled.
    pub clear: ClearPath<L>,
    /// Whether the accepted one leads away from the program; else the dialled one does.
    pub arrives: bool,
    /// What the program asks for.
    pub wishes: Wishes,
}

impl Secured {
    /// Takes it from this thread, for another one.
    #[must_use]
    pub fn park(self) -> Secured<Parked> {
        let Self { connection, path } = self;
        let Ok(path) = path.with_legs(|leg| Ok::<_, Infallible>(leg.park()));
        Secured { connection, path }
    }
}

impl Secured<Parked> {
    /// Goes on with it on the calling thread.
    ///
    /// # Errors
    /// See [`Parked::watch`]; the connection is there to be told of.
    pub fn watch(self) -> Result<Secured, (Connection, io::Error)> {
        let Self { connection, path } = self;
        match path.with_legs(Parked::watch) {
            Ok(path) => Ok(Secured { connection, path }),
            Err(error) => Err((connection, error)),
        }
    }
}

impl<L> Path<L> {
    /// The same with both legs changed alike.
    fn with_legs<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<Path<M>, E> {
        Ok(match self {
            Self::Sealed(path) => Path::Sealed(Box::new(path.with_legs(change)?)),
            Self::Talking(path) => {
                let TalkingPath { carried, dialogue, family } = *path;
                let carried = match carried {
                    Carried::Sealed(path) => Carried::Sealed(Box::new(path.with_legs(change)?)),
                    Carried::Clear(path) => Carried::Clear(Box::new(path.with_legs(change)?)),
                };
                Path::Talking(Box::new(TalkingPath { carried, dialogue, family }))
            }
            Self::Controlled(path) => {
                let ControlledPath { clear, arrives, wishes } = *path;
                let clear = clear.with_legs(change)?;
                Path::Controlled(Box::new(ControlledPath { clear, arrives, wishes }))
            }
            Self::Clear(path) => Path::Clear(Box::new(path.with_legs(change)?)),
        })
    }
}

impl<L> SealedPath<L> {
    fn with_legs<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<SealedPath<M>, E> {
        let Self { clear, tls, session, incomplete, initial } = self;
        let (clear, tls) = (change(clear)?, change(tls)?);
        Ok(SealedPath { clear, tls, session, incomplete, initial })
    }
}

impl<L> ClearPath<L> {
    fn with_legs<M, E>(self, change: impl Fn(L) -> Result<M, E>) -> Result<ClearPath<M>, E> {
        let Self { accepted, dialled, initial } = self;
        let (accepted, dialled) = (change(accepted)?, change(dialled)?);
        Ok(ClearPath { accepted, dialled, initial })
    }
}

/// Why a connection never carried a byte.
#[derive(Debug)]
pub enum Failure {
    /// The peer's PROXY header is missing or wrong.
    Proxy(String),
    /// The target could not be reached.
    Dial(String),
    /// The dialogue before TLS did not lead there.
    Starttls(Refusal),
    /// It took too long.
    Silence(Duration),
    /// The handshake failed.
    Handshake(HandshakeFailure),
    /// The session refused its first bytes.
    Session(SessionError),
    /// A data connection may be somebody else's than its control connection.
    Data(&'static str),
    /// A leg broke meanwhile.
    Broken(io::Error),
    /// Too many other handshakes were in flight all the time.
    NoPlace,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proxy(what) | Self::Dial(what) => f.write_str(what),
            Self::Starttls(refusal) => write!(f, "{refusal}"),
            Self::Data(what) => f.write_str(what),
            Self::Silence(after) => write!(
                f,
                "neither end said what the other waits for before TLS within {after:?}: see that \
                 both speak the rule's `starttls` protocol, or raise handshake-timeout"
            ),
            Self::Handshake(failure) => write!(f, "{failure}"),
            Self::Session(error) => write!(f, "{error}"),
            Self::NoPlace => f.write_str(
                "no place among the handshakes in flight became free in time: see \
                 `tacit show limits`, and raise [limits] if its clients are wanted",
            ),
            Self::Broken(error) => write!(f, "the connection broke during set-up: {error}"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<Cut> for Failure {
    fn from(cut: Cut) -> Self {
        match cut {
            Cut::Broken(_, error) => Self::Broken(error),
            Cut::Truncated => Self::Broken(io::ErrorKind::UnexpectedEof.into()),
            Cut::Session(error) => Self::Session(error),
        }
    }
}

impl From<HandshakeFailure> for Failure {
    fn from(failure: HandshakeFailure) -> Self {
        Self::Handshake(failure)
    }
}

impl Failure {
    /// A word for logs and counters.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Proxy(_) => "proxy-header",
            Self::Dial(_) => "dial",
            Self::Starttls(_) => "starttls",
            Self::Silence(_) => "starttls-timeout",
            Self::Handshake(failure) => failure.kind,
            Self::Session(_) => "session",
            Self::Data(_) => "data-connection",
            Self::Broken(_) => "broken",
            Self::NoPlace => "no-place",
        }
    }
}

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
    let shaken = answer(around, record, &accepted, early, (family.as_ref(), deadline)).await;
    let Shaken { established, incomplete, .. } = match shaken {
        Ok(shaken) => shaken,
        Err(failure) => {
            part(accepted, program.map(|(leg, _)| leg)).await;
            return Err(failure);
        }
    };
    let Established { session, agreed, check, named, peer } = established;
    record.tls.set(TlsFacts { agreed, check, named, peer });
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

/// Shakes hands with who connected.
async fn answer(
    around: Surroundings<'_>,
    record: &Record,
    accepted: &Leg,
    early: Vec<u8>,
    (family, deadline): (Option<&Family>, Instant),
) -> Result<Shaken, Failure> {
    let common = tls_common(&record.rule);
    meter::switch(Component::Handshake);
    let _place = place(around.gates, record, deadline).await?;
    let (role, handshake) = handshake(record, family);
    let work = async {
        let mut shaken = shake(handshake?, accepted, early, common).await?;
        // The client waits for it, and must not wait for what is dialled.
        let last_flight = std::mem::take(&mut shaken.last_flight);
        Outgoing::new(last_flight).flush(accepted).await?;
        Ok(shaken)
    };
    within(deadline, || stalled(role, common), work).await
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
    let work = async {
        meter::switch(Component::Handshake);
        let _place = place(around.gates, record, deadline).await?;
        let (role, handshake) = handshake(record, family.as_ref());
        let work = shake(handshake?, &tls, Vec::new(), common);
        within(deadline, || stalled(role, common), work).await
    };
    let Shaken { established, incomplete, last_flight } = match work.await {
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
    let Established { mut session, agreed, check, named, peer } = established;
    record.tls.set(TlsFacts { agreed, check, named, peer });
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

/// How a dialogue before TLS ended well.
enum Ended {
    /// The handshake is next.
    Secure,
    /// There will be none, and the rule allows that.
    Clear,
}

/// Holds the dialogue before TLS.
async fn converse(
    talk: &mut Talk,
    peer: &Leg,
    program: Option<&Leg>,
    common: &TlsCommon,
    deadline: Instant,
) -> Result<Ended, Failure> {
    meter::switch(Component::Handshake);
    let mut wire = InClear { leg: peer, counted: None };
    let work = async { Ok(talk.hold(&mut wire, program).await?) };
    match within(deadline, || Failure::Silence(common.handshake_timeout), work).await? {
        Outcome::Step(Step::Secure) => Ok(Ended::Secure),
        Outcome::Step(Step::Refuse(refusal)) => Err(Failure::Starttls(refusal)),
        // It comes after the handshake, or not at all.
        Outcome::Step(Step::Listen(_)) => Err(Failure::Starttls(Refusal::InClear)),
        Outcome::Step(Step::Relay | Step::Settle | Step::Wait) | Outcome::Over => Ok(Ended::Clear),
    }
}

/// Tells the program, in its own protocol, that there will be no TLS.
async fn excuse(talk: &mut Talk, peer: &Leg, program: &Leg) {
    talk.dialogue.unsecured();
    let mut wire = InClear { leg: peer, counted: None };
    let told = talk.flush(&mut wire, Some(program));
    let _ = tokio::time::timeout(FAREWELL_WAIT_MAX, told).await;
}

/// Ends both legs in order: what they were told last explains the end.
async fn part(peer: Leg, program: Option<Leg>) {
    let program = async {
        if let Some(program) = program {
            program.end_in_order();
            farewell(program).await;
        }
    };
    tokio::join!(farewell(peer), program);
}

/// Server role, where the rule allows it: the client did not ask for TLS.
async fn go_on_in_clear(
    around: Surroundings<'_>,
    connection: &Connection,
    mut accepted: Leg,
    program: Option<(Leg, Address)>,
    mut talk: Talk,
) -> Result<Path, Failure> {
    meter::switch(Component::Accept);
    connection.go_on_in_clear();
    accepted.set_clear(true);
    let dialled = settle(around, connection.record(), &accepted, program).await?;
    let initial = talk.dialogue.take_output(Side::Program);
    if talk.dialogue.stays() {
        let mut dialogue = talk.dialogue;
        dialogue.settle();
        dialogue.set_ends(ends(&accepted, &dialled));
        let carried = Carried::Clear(Box::new(ClearPath { accepted, dialled, initial }));
        return Ok(Path::Talking(Box::new(TalkingPath { carried, dialogue, family: None })));
    }
    Ok(Path::Clear(Box::new(ClearPath { accepted, dialled, initial })))
}

/// Where both ends of a dialogue are.
fn ends(peer: &Leg, program: &Leg) -> Ends {
    Ends { peer: remote_ip(peer), program: remote_ip(program) }
}

/// The IP address across a leg.
pub(super) fn remote_ip(leg: &Leg) -> Option<IpAddr> {
    address::from_socket(&socket::peer_address(leg.fd()).ok()??).ip()
}

/// The relay of a connection under TLS, after what there is still to be said.
fn talked(path: SealedPath, talk: Option<Talk>, family: Option<Family>) -> Path {
    let Some(Talk { mut dialogue, .. }) = talk else { return Path::Sealed(Box::new(path)) };
    dialogue.set_ends(ends(&path.tls, &path.clear));
    dialogue.secured();
    let carried = Carried::Sealed(Box::new(path));
    Path::Talking(Box::new(TalkingPath { carried, dialogue, family }))
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
) -> Result<Begun, Failure> {
    let record = connection.record();
    let common = tls_common(&record.rule);
    let deadline = Instant::now() + common.handshake_timeout;
    let shaken = async {
        meter::switch(Component::Handshake);
        let _place = place(gates, record, deadline).await?;
        let (role, handshake) = handshake(record, None);
        let work = shake(handshake?, outside, incoming, common);
        within(deadline, || stalled(role, common), work).await
    };
    let Shaken { established, incomplete, last_flight: initial } = shaken.await?;
    let Established { session, agreed, check, named, peer } = established;
    record.tls.set(TlsFacts { agreed, check, named, peer });
    count_handshake(record);
    Ok(Begun { session, incomplete, initial })
}

/// A session on a leg that was in clear before.
#[derive(Debug)]
pub struct Begun {
    /// It.
    pub session: Session,
    /// Records that came with the handshake and were not opened.
    pub incomplete: Vec<u8>,
    /// Records that must go to the peer before all others.
    pub initial: Vec<u8>,
}

pub(super) fn stalled(role: Role, common: &TlsCommon) -> Failure {
    HandshakeFailure::timed_out(role, common.handshake_timeout).into()
}

fn unreached() -> Failure {
    Failure::Dial("the name in `connect` did not resolve, or nobody answered, in time".into())
}

/// Waits for a place among the handshakes in flight; the source is the client that a trusted proxy
/// names, or else who connected.
pub(super) async fn place<'a>(
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
    let timeout = record.rule.fixed().map_or(CONNECT_TIMEOUT, |fixed| fixed.connect_timeout);
    let work = async { dial::dial(record, &options, timeout, clear).await.map_err(Failure::Dial) };
    let (leg, address) = within(Instant::now() + timeout, unreached, work).await?;
    if let Some(wanted) = record.rule.fixed().and_then(|fixed| fixed.send_proxy) {
        let bytes = header::header(wanted, record);
        let bytes = bytes.map_err(|error| Failure::Proxy(error.to_string()))?;
        Outgoing::new(bytes).flush(&leg).await?;
    }
    Ok((leg, address))
}

/// A handshake that is complete.
pub(super) struct Shaken {
    /// What it gave.
    pub(super) established: Established,
    /// What came after it, unopened.
    pub(super) incomplete: Vec<u8>,
    /// What the peer must still get.
    pub(super) last_flight: Vec<u8>,
}

/// Runs a handshake over a leg.
pub(super) async fn shake(
    mut handshake: Handshake,
    leg: &Leg,
    mut incoming: Vec<u8>,
    common: &TlsCommon,
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
    let finished = handshake.finish(common.rekey, Instant::now(), wall_now());
    match finished {
        Ok(established) => Ok(Shaken { established, incomplete: incoming, last_flight }),
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
