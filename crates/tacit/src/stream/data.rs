//! Data connections: each is a connection of its own under the rule of its control connection.
//!
//! The other end is dialled first, and the handshake comes after: a server accepts, and then tells
//! its client on the control connection that it may begin. What fails after that resets the end in
//! clear, so that nothing looks complete.
//!
//! In the server role the connection must come from who holds the control connection: it resumes
//! that connection's session, or shows the same certificate. In the client role it resumes the
//! session as long as the server gives tickets, and the server is checked as ever.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use tacit_core::flow::Address;
use tacit_core::meter::Component;
use tacit_core::policy::DataResumption;
use tacit_core::record::AlertDescription;
use tacit_core::starttls::Side;
use tacit_core::starttls::ftp::DataRequest;
use tacit_sys::socket::StreamOptions;

use crate::ledger::meter;
use tacit_tls::{PeerCheck, Role};

use super::connection::{Connection, Legs, Record, Table, TlsFacts};
use super::dial;
use super::leg::{Leg, Outgoing};
use super::relay::{ARRIVAL_WAIT_MAX, Came, Job, ftp_of};
use super::secure::{
    self, CONNECT_TIMEOUT, ClearPath, Failure, Family, Hands, LastFlight, Path, SealedPath,
    Secured, Shaken, stalled, within,
};

/// Bytes read at first: a client's hello, as a rule.
const FIRST_BYTES: usize = 4 * 1024;

/// Makes a data connection out of what came to its door.
#[must_use]
pub(super) fn begin(table: &Arc<Table>, job: &Job, came: Came) -> (Connection, Leg) {
    let Came { mut leg, local, remote, place } = came;
    let is_clear = job.request.connects == Side::Program || job.family.is_none();
    leg.set_clear(is_clear);
    let is_inbound = job.request.connects == Side::Peer;
    let ends = (local, remote);
    let connection = Connection::of_data(table, &job.parent, ends, (is_inbound, is_clear), place);
    (connection, leg)
}

/// Makes a data connection ready to carry bytes.
///
/// # Errors
/// See [`Failure`].
pub(super) async fn establish(
    around: secure::Surroundings<'_>,
    job: &Job,
    connection: Connection,
    accepted: Leg,
) -> Result<Secured, (Connection, Failure)> {
    match reach(around, job, &connection, accepted).await {
        Ok(path) => {
            connection.mark_open();
            secure::count_handshake(connection.record());
            Ok(Secured { connection, path })
        }
        Err(failure) => Err((connection, failure)),
    }
}

async fn reach(
    around: secure::Surroundings<'_>,
    job: &Job,
    connection: &Connection,
    accepted: Leg,
) -> Result<Path, Failure> {
    let Job { parent, request, family, uploads, .. } = job;
    let (record, request) = (connection.record(), *request);
    let is_clear = request.connects == Side::Peer || family.is_none();
    let dialled = dial_other(around, record, request, is_clear).await?;
    let target = Address::from(request.dial);
    let legs = Legs { accepted: accepted.downgrade(), dialled: dialled.downgrade(), target };
    let _ = record.legs.set(legs);
    let Some(family) = family else {
        return Ok(Path::Clear(Box::new(ClearPath { accepted, dialled, initial: Vec::new() })));
    };
    let (tls, clear) = match request.connects {
        Side::Peer => (accepted, dialled),
        Side::Program => (dialled, accepted),
    };
    meter::switch(Component::Handshake);
    let common = secure::tls_common(&record.rule);
    let mut deadline = Instant::now() + ARRIVAL_WAIT_MAX + common.handshake_timeout;
    let mut early = Vec::new();
    let mut family = Cow::Borrowed(family);
    if let Family::Server(_) = *family {
        // A client begins when it has been told to, on the control connection, and by then has said
        // there which way the data goes.
        early = within(deadline, || stalled(Role::Server, common), first_bytes(&tls)).await?;
        deadline = Instant::now() + common.handshake_timeout;
        if uploads.now() {
            family = Cow::Owned(family.without_tickets());
        }
    }
    let hands = Hands { record, leg: &tls, deadline };
    let begin = || secure::handshake(parent, Some(&family));
    let shaken = hands.shake(around.gates, early, LastFlight::Kept, begin);
    let Shaken { mut session, incomplete, mut last_flight } = match shaken.await {
        Ok(shaken) => shaken,
        Err(failure) => {
            secure::farewell(tls).await;
            return Err(failure);
        }
    };
    if let Family::Server(_) = *family
        && let Err(failure) = prove(parent, record)
    {
        let _ = session.seal_alert(AlertDescription::ACCESS_DENIED, &mut last_flight);
        Outgoing::new(last_flight).flush(&tls).await?;
        secure::farewell(tls).await;
        return Err(failure);
    }
    let initial = last_flight;
    Ok(Path::Sealed(Box::new(SealedPath { clear, tls, session, incomplete, initial })))
}

/// What the client says first.
async fn first_bytes(leg: &Leg) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::with_capacity(FIRST_BYTES);
    // An end is for the handshake to complain of.
    leg.read_onto(&mut bytes).await?;
    Ok(bytes)
}

/// Whether who shook hands for a connection holds its control connection.
fn prove(parent: &Record, record: &Record) -> Result<(), Failure> {
    let shown = record.tls.get();
    let is_valid = |facts: &&Arc<TlsFacts>| facts.check == PeerCheck::Valid;
    let peer = shown.as_ref().filter(is_valid).and_then(|facts| facts.peer.as_deref());
    let control = parent.tls.get();
    let control_peer = control.as_ref().filter(is_valid).and_then(|facts| facts.peer.as_deref());
    let same = match (control_peer, peer) {
        (Some(control), Some(peer)) => control.sha256 == peer.sha256,
        _ => false,
    };
    let resumed = shown.as_ref().is_some_and(|facts| facts.agreed.resumed);
    // Tickets of a control connection are good for its own data connections alone.
    let off = ftp_of(parent).is_some_and(|ftp| ftp.data_resumption == DataResumption::Off)
        && control_peer.is_none();
    if same || resumed || off {
        return Ok(());
    }
    Err(Failure::Data(
        "the data connection neither resumes the session of its control connection nor shows its \
         certificate, so it may be anybody's: have the client resume, or say data-resumption = \
         \"off\" if it cannot",
    ))
}

/// Dials the end that waits for the connection.
async fn dial_other(
    around: secure::Surroundings<'_>,
    record: &Record,
    request: DataRequest,
    clear: bool,
) -> Result<Leg, Failure> {
    let options = StreamOptions {
        congestion_control: around.congestion_control.map(str::to_owned),
        reset_on_exit: clear,
    };
    let inside = record.run.as_ref().filter(|_| request.connects == Side::Peer);
    let dialled = async {
        match inside {
            Some(of_run) => {
                dial::stand_in(&of_run.run, record, request.dial, &options, clear).await
            }
            None => dial::dial_one(&request.dial.into(), &options, clear).await,
        }
        .map_err(|error| Failure::Dial(format!("cannot connect to {}: {error}", request.dial)))
    };
    let unreached = || Failure::Dial(format!("cannot connect to {}: no answer", request.dial));
    within(Instant::now() + CONNECT_TIMEOUT, unreached, dialled).await
}
