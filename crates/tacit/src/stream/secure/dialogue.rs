//! The dialogue before TLS in the life of a connection: held, given up, or left behind.

use std::net::IpAddr;
use std::time::Instant;

use tacit_core::flow::Address;
use tacit_core::meter::Component;
use tacit_core::policy::TlsCommon;
use tacit_core::starttls::ftp::Ends;
use tacit_core::starttls::{Refusal, Side, Step};
use tacit_sys::socket;

use crate::address;
use crate::ledger::meter;
use crate::stream::connection::Connection;
use crate::stream::leg::Leg;
use crate::stream::talk::{InClear, Outcome, Talk};

use super::path::{Carried, ClearPath, Family, Path, SealedPath, TalkingPath};
use super::{FAREWELL_WAIT_MAX, Failure, Surroundings, farewell, settle, within};

/// How a dialogue before TLS ended well.
pub(super) enum Ended {
    /// The handshake is next.
    Secure,
    /// There will be none, and the rule allows that.
    Clear,
}

/// Holds the dialogue before TLS.
pub(super) async fn converse(
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
pub(super) async fn excuse(talk: &mut Talk, peer: &Leg, program: &Leg) {
    talk.dialogue.unsecured();
    let mut wire = InClear { leg: peer, counted: None };
    let told = talk.flush(&mut wire, Some(program));
    let _ = tokio::time::timeout(FAREWELL_WAIT_MAX, told).await;
}

/// Ends both legs in order: what they were told last explains the end.
pub(super) async fn part(peer: Leg, program: Option<Leg>) {
    let program = async {
        if let Some(program) = program {
            program.end_in_order();
            farewell(program).await;
        }
    };
    tokio::join!(farewell(peer), program);
}

/// Server role, where the rule allows it: the client did not ask for TLS.
pub(super) async fn go_on_in_clear(
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
pub(in crate::stream) fn remote_ip(leg: &Leg) -> Option<IpAddr> {
    address::from_socket(&socket::peer_address(leg.fd()).ok()??).ip()
}

/// The relay of a connection under TLS, after what there is still to be said.
pub(super) fn talked(path: SealedPath, talk: Option<Talk>, family: Option<Family>) -> Path {
    let Some(Talk { mut dialogue, .. }) = talk else { return Path::Sealed(Box::new(path)) };
    dialogue.set_ends(ends(&path.tls, &path.clear));
    dialogue.secured();
    let carried = Carried::Sealed(Box::new(path));
    Path::Talking(Box::new(TalkingPath { carried, dialogue, family }))
}
