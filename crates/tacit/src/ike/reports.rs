//! Reports the events of IKE connections in the log and in the audit log. An IKE connection
//! negotiates tunnels with one peer.
//!
//! The audit log contains every event: each tunnel and its identities, each rekeying, each end of a
//! connection, and each failure. For an end or a failure, the audit log also contains the reason.
//! The log contains only events that need an action of an operator.

use std::net::IpAddr;

use tacit_core::policy::{IkeCredentials, TunnelPacket};
use tacit_core::refusal::RunLabel;
use tacit_ipsec::ChildSa;
use tacit_ipsec::ike::{IkeFailure, IkeIdentity, IkeProposal, UnansweredRequest};

use super::connection::PeerConnection;
use super::unproved::Suppressed;
use super::words::{auth_word, proposal_words, protocol_words, selector_words};
use crate::log::{AuditOutcome, Event, EventCause, Log};

/// A connection cannot begin: its key or its certificates cannot be used.
pub(super) fn not_configured(log: &Log, run: &str, ike: &str, error: &str) {
    let event = Event::new("ike-not-configured").field("run", run).field("ike", ike);
    let limited = format!("ike-not-configured {ike}");
    log.error(event.field("error", error).limited(limited));
}

/// Both sides have proved who they are.
pub(super) fn established(
    log: &Log,
    one: &PeerConnection,
    identity: &IkeIdentity,
    proposal: IkeProposal,
) {
    let event = about(Event::new("ike-established"), one)
        .field("identity", identity)
        .field("local-identity", &one.settings.peer.local_id)
        .field("auth", auth_word(&one.settings.peer.credentials))
        .field("proposal", &proposal_words(proposal));
    let event = match &one.settings.peer.credentials {
        IkeCredentials::SharedKey { .. } => event,
        IkeCredentials::Certificates { identity, trust } => {
            event.field("certificate", identity).field("trust", trust)
        }
    };
    log.info(event.clone());
    log.audit(AuditOutcome::Allowed, event);
}

/// The IKE SA has new keys.
pub(super) fn rekeyed(log: &Log, one: &PeerConnection) {
    log.audit(AuditOutcome::Allowed, about(Event::new("ike-rekeyed"), one));
}

/// There is a tunnel, or new keys for it. `before` is how many child SAs there were before.
pub(super) fn installed(log: &Log, one: &PeerConnection, child: &ChildSa, before: u64) {
    let event = match before {
        0 => Event::new("tunnel-established"),
        _ => Event::new("tunnel-rekeyed"),
    };
    let words = |list: &[_]| list.iter().map(selector_words).collect::<Vec<_>>();
    let inner: Vec<String> = one.inner.iter().map(ToString::to_string).collect();
    let event = about(event, one)
        .field("proposal", &protocol_words(child.protocol))
        .field("spi-in", &format_args!("{:08x}", child.inbound.spi.number()))
        .field("spi-out", &format_args!("{:08x}", child.outbound.spi.number()))
        .names("inner", &inner)
        .names("local", &words(&child.local))
        .names("remote", &words(&child.remote));
    log.audit(AuditOutcome::Allowed, event);
}

/// The peer has assigned resolvers, perhaps none.
pub(super) fn resolvers_not_used(log: &Log, one: &PeerConnection, resolvers: &[IpAddr]) {
    if resolvers.is_empty() {
        return;
    }
    let next = "to let programs query these name servers through the tunnel, write rules with \
                `ipsec` for port 53 of the name servers";
    let words: Vec<String> = resolvers.iter().map(ToString::to_string).collect();
    let event = about(Event::new("ike-resolvers-not-used"), one).names("resolvers", &words);
    log.info(event.field("next", next));
}

/// The connection has ended without a failure.
pub(super) fn closed(log: &Log, one: &PeerConnection) {
    let reason = match one.is_closing {
        true => {
            "tacit closed the connection, because the run has ended, the policy has changed, or \
             the agent is exiting"
        }
        false => "the peer closed the connection",
    };
    let event = about(Event::new("ike-closed"), one).field("reason", reason);
    let next = "if this was not intended, check whether another agent or host connects with the \
                same `local-id`: the peer may keep only the newest connection of an identity";
    let event = if one.is_closing { event } else { event.field("next", next) };
    log.info(event.clone());
    log.audit(AuditOutcome::Allowed, event);
}

/// The connection, an attempt or a part of it has failed.
pub(super) fn failed(log: &Log, one: &PeerConnection, failure: &IkeFailure) {
    log.audit(AuditOutcome::Failed, failure_event(one, failure));
}

/// Failures of senders that have not proved who they are, which have no lines of their own.
pub(super) fn suppressed(log: &Log, run: &str, suppressed: &Suppressed) {
    let Suppressed { pair, kind, count } = suppressed;
    let label = RunLabel { id: pair.run, name: run.to_owned() };
    let event = Event::new("ike-failures-suppressed").field("run", run).field("ike", &pair.ike);
    let event = event.field("kind", *kind).value("count", *count).caused_by(EventCause::Run(label));
    log.audit(AuditOutcome::Failed, event);
}

/// A failure of a kind that was not logged since the connection was last established.
pub(super) fn failed_first(log: &Log, one: &PeerConnection, failure: &IkeFailure) {
    log.warn(failure_event(one, failure));
}

fn failure_event(one: &PeerConnection, failure: &IkeFailure) -> Event {
    about(Event::new("ike-failed"), one)
        .field("kind", failure.kind)
        .field("side", failure.side.word())
        .field("error", failure)
}

/// Reports the first unanswered attempt since a tunnel of the connection last worked.
pub(super) fn unanswered_first(
    log: &Log,
    one: &PeerConnection,
    request: UnansweredRequest,
    error: &str,
) {
    log.warn(unanswered_event(one, request, error));
}

/// Reports to the audit log that the peer has not answered a request yet. The attempt continues.
pub(super) fn unanswered(log: &Log, one: &PeerConnection, request: UnansweredRequest, error: &str) {
    log.audit(AuditOutcome::Failed, unanswered_event(one, request, error));
}

fn unanswered_event(one: &PeerConnection, request: UnansweredRequest, error: &str) -> Event {
    let request = match request {
        UnansweredRequest::Init => "IKE_SA_INIT",
        UnansweredRequest::Auth { .. } => "IKE_AUTH",
    };
    about(Event::new("ike-unanswered"), one).field("request", request).field("error", error)
}

/// The peer has dropped the earlier connection without a message.
pub(super) fn dropped_by_peer(log: &Log, one: &PeerConnection) {
    let reason = "the peer answered no request of the earlier connection, but has accepted this \
                  one at once: the network has failed meanwhile, or the peer has restarted, or it \
                  ended the earlier connection when another agent or host connected with the same \
                  `local-id`";
    let next = "if other agents or hosts use this `local-id`, set inner = \"gateway\", or give \
                each agent and host its own `local-id` and `inner` in [ike.NAME]; to see who has \
                connected, read the peer's log";
    let event = about(Event::new("ike-dropped-by-peer"), one).field("reason", reason);
    log.warn(event.field("local-identity", &one.settings.peer.local_id).field("next", next));
}

/// A packet needs the tunnel, which there is not.
pub(super) fn dropped(log: &Log, one: &PeerConnection, packet: &TunnelPacket) {
    if !log.has_audit() {
        return;
    }
    let event = about(Event::new("tunnel-packet-dropped"), one)
        .field("protocol", packet.protocol.word())
        .field("local", &packet.local)
        .field("remote", &packet.remote);
    let event = match one.failure() {
        Some(failure) => event.field("error", failure),
        None => event,
    };
    log.audit(AuditOutcome::Failed, event);
}

fn about(event: Event, one: &PeerConnection) -> Event {
    let run = RunLabel { id: one.pair.run, name: one.run_name.clone() };
    let event = event.field("run", &one.run_name).field("ike", &one.pair.ike);
    event.field("peer", &one.remote).caused_by(EventCause::Run(run))
}
