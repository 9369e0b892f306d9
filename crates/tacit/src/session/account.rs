//! Writes the log and updates the counters when connections open, fail, end, or are refused.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use tacit_core::audited::AuditedFlow;
use tacit_core::failure_kind::FailureKind;
use tacit_core::flow::{Address, Direction, Flow};
use tacit_core::policy::{Action, ClientCert, RecheckAction};
use tacit_core::refusal::{Refusal, RefusalKind, RefusalReason};
use tacit_tls::failure::describe_alert_number;
use tacit_tls::verify::{MappedIdentity, identity};
use tacit_tls::{HandshakeRole, PeerCheck, SessionError};

use crate::address::Source;
use crate::live::{LiveAction, TlsRole, WaivedCheck};
use crate::log::{AuditOutcome, Event, EventCause, Log};
use crate::run::protocol::RefusedSocket;
use crate::run::{Run, Scope};

use super::connection::{Connection, RefusedFlow};
use super::end::{BrokenSocket, ConnectionEnd};
use super::failure::Failure;
use super::record::{Closing, ConnectionRecord, TlsFacts};
use super::refusals::{self, RefusalTable, RefusedName};

/// Logs and records that the policy rejected a connection or a flow of datagrams.
pub fn refused(log: &Log, refusals: &RefusalTable, refused: &RefusedFlow) {
    let rule = refused.rule.as_ref().ok();
    if let Some(rule) = rule {
        rule.counters.count_hit();
    }
    let refusal = refused.refusal();
    let flow = &refused.flow;
    let opener = refused.scope.as_ref().filter(|_| flow.direction == Direction::Outbound);
    let rule_name = rule.map(|rule| rule.name());
    let event = about_refusal(&refusal)
        .caused_by(cause(opener, &flow.remote, rule_name))
        .field("local", &flow.local)
        .field("remote", &flow.remote);
    // A denied client is only logged if the rule has `log`: that is what the policy intends. A
    // refusal of a program is always logged, because the program may fail.
    let is_of_program = refusal.kind != RefusalKind::Client;
    if is_of_program || refused.exceeded.is_some() || rule.is_none_or(|rule| rule.rule.log) {
        log_refusal(log, &refusal, event.clone());
    }
    log.audit(AuditOutcome::Denied, event);
    refusals.record(refusal);
}

/// Logs and records that a program of a run looked up a name that the policy does not allow.
pub fn refused_name(log: &Log, refusals: &RefusalTable, run: &Run, refused: &RefusedName<'_>) {
    if let Some(refusal) = refusals::of_name(run, refused) {
        let event = about_refusal(&refusal);
        leave_trace(log, refusals, run, event, refusal, 1);
    }
}

/// Logs and records a broadcast or multicast datagram of a run. Runs do not support these.
pub fn refused_group(log: &Log, refusals: &RefusalTable, run: &Run, destination: SocketAddr) {
    let refusal = refusals::of_group(run, destination);
    let event = about_refusal(&refusal);
    leave_trace(log, refusals, run, event, refusal, 1);
}

/// Logs and records that programs of a run created sockets of a kind that runs do not support.
pub fn refused_socket(log: &Log, refusals: &RefusalTable, run: &Run, refused: RefusedSocket) {
    let times = refused.times;
    let refusal = refusals::of_socket(run, refused);
    let mut event = about_refusal(&refusal);
    if let Some(program) = &refusal.program {
        event = event.field("program", &program.display());
    }
    if times > 1 {
        event = event.value("times", times);
    }
    leave_trace(log, refusals, run, event, refusal, times);
}

/// Logs and records packets of a run that were refused because there is no tunnel. The audit log
/// has them as `tunnel-packet-dropped`.
pub fn refused_without_tunnel(log: &Log, refusals: &RefusalTable, refusal: Refusal, times: u64) {
    let cause = refusal.run.clone().map_or(EventCause::Agent, EventCause::Run);
    let event = about_refusal(&refusal).caused_by(cause).value("times", times);
    log_refusal(log, &refusal, event);
    refusals.record_times(refusal, times);
}

/// Logs and records a refusal that has occurred this number of times.
fn leave_trace(
    log: &Log,
    refusals: &RefusalTable,
    run: &Run,
    event: Event,
    refusal: Refusal,
    times: u64,
) {
    let event = event.caused_by(EventCause::Run(run.label()));
    log_refusal(log, &refusal, event.clone());
    log.audit(AuditOutcome::Denied, event);
    refusals.record_times(refusal, times);
}

/// Returns the cause of an event: the run whose program opened the connection, or the client.
fn cause(opener: Option<&Scope>, remote: &Address, rule: Option<&str>) -> EventCause {
    match (opener, Source::of(remote), rule) {
        (Some(opener), _, _) => EventCause::Run(opener.run().label()),
        (None, Source::Local, Some(rule)) => EventCause::Rule(rule.to_owned()),
        (None, source, _) => EventCause::Source(source),
    }
}

fn about_refusal(refusal: &Refusal) -> Event {
    let mut event = Event::new("denied")
        .field("rule", refusal.rule.as_deref().unwrap_or("no rule matches"))
        .field("kind", refusal.kind.word());
    if let Some(run) = &refusal.run {
        event = event.field("run", &run.name);
    }
    event
        .field("destination", &refusal.destination)
        .field("why", refusal.why.word())
        .field("next", &refusal.next)
}

/// Logs a refusal, once a second at most for each destination. Clients are logged as information: a
/// refused program may fail because of it, and its operator needs the reason.
fn log_refusal(log: &Log, refusal: &Refusal, event: Event) {
    let run = refusal.run.as_ref().map_or(0, |run| run.id);
    let kind = refusal.kind.word();
    let event = event.limited(format!("denied {kind} {run} {}", refusal.destination));
    if refusal.kind == RefusalKind::Client && refusal.why != RefusalReason::Limit {
        log.info(event);
    } else {
        log.warn(event);
    }
}

/// Logs that a connection had no valid PROXY header, so that its client is not known and it gets no
/// rule.
pub fn unclaimed(log: &Log, flow: &Flow, reason: &str) {
    let event = Event::new("failed")
        .caused_by(cause(None, &flow.remote, None))
        .field("remote", &flow.remote)
        .field("listen", &flow.local)
        .field("kind", &FailureKind("proxy-header"))
        .field("reason", reason);
    let from = flow.remote.host();
    log.warn(event.clone().limited(format!("proxy-header {} {from}", flow.local)));
    log.audit(AuditOutcome::Failed, event);
}

/// Logs and counts a connection that failed before it relayed a byte.
pub fn failed(log: &Log, connection: &Connection, failure: &Failure) {
    let record = connection.record();
    record.rule.counters.count_failure(failure.kind());
    let event = level(about(Event::new("failed"), record), record)
        .field("kind", &failure.kind())
        .field("reason", failure);
    let limited = event.clone().limited(failure_key(record, failure));
    match failure {
        // Programs try several addresses at once and keep one.
        Failure::Abandoned => log.info(limited),
        _ => log.warn(limited),
    }
    log.audit(AuditOutcome::Failed, event);
}

/// Failures with the same key are logged once a second: same rule, kind and remote address. A
/// client's port is left out, because it differs each time.
fn failure_key(record: &ConnectionRecord, failure: &Failure) -> String {
    let remote = record.client();
    let is_outbound = record.scope.as_ref().is_some_and(|facts| !facts.is_inbound);
    let rule = record.rule.name();
    let kind = failure.kind();
    match remote.ip() {
        Some(ip) if !is_outbound => format!("failed {rule} {kind} {ip}"),
        _ => format!("failed {rule} {kind} {remote}"),
    }
}

/// Logs that a connection is established.
pub fn opened(log: &Log, connection: &Connection) {
    begun(log, connection, Event::new("opened"), "clear");
}

/// Logs that a client sent a cancel request in clear, and the rule forwards it.
pub fn cancel_opened(log: &Log, connection: &Connection) {
    begun(log, connection, Event::new("opened"), "cancel");
}

/// Records that a rule in audit mode lets a flow pass, with what the rule would do if it were
/// enforced. Logs it if the rule has not recorded such a flow yet.
pub fn audited(log: &Log, record: &ConnectionRecord, program: Option<PathBuf>) {
    let (Some(action), Some(facts)) = (&record.rule.rule.audited, &record.scope) else { return };
    let host = facts.names.first().cloned().unwrap_or_else(|| record.client().host());
    // The port of a client differs each time.
    let port = record.remote.port().filter(|_| !facts.is_inbound);
    let destination = refusals::endpoint(host, port);
    let flow = AuditedFlow {
        run: facts.scope.name().to_owned(),
        program,
        protocol: record.protocol,
        destination: destination.clone(),
    };
    if !record.rule.counters.record_audited(flow) {
        return;
    }
    let key = format!("audited {} {destination}", record.rule.name());
    let event = about(Event::new("audited"), record)
        .field("run", facts.scope.name())
        .field("destination", &destination)
        .field("would", action.word())
        .limited(key);
    match action {
        Action::Permit => log.info(event),
        // If the rule is enforced, this program will be affected.
        Action::Deny(_) | Action::Tls(_) | Action::Ipsec(_) => log.warn(event),
    }
}

/// Logs that a rule with `accept = "both"` accepted a client without TLS, once a second for each
/// client: these are the clients that a migration has to find.
pub fn accepted_in_clear(log: &Log, connection: &Connection) {
    let record = connection.record();
    let client = record.client();
    let key = format!("accepted-in-clear {} {}", record.rule.name(), client.host());
    log.info(about(Event::new("accepted-in-clear"), record).limited(key));
}

/// Logs that a program has started TLS on an open connection.
pub fn secured(log: &Log, connection: &Connection) {
    begun(log, connection, Event::new("secured"), "clear");
}

/// Logs that a connection relays bytes. `in_clear` is the value of the field `starttls` if there is
/// no TLS.
fn begun(log: &Log, connection: &Connection, event: Event, in_clear: &'static str) {
    let record = connection.record();
    let tls = record.tls.get();
    if let Some(tls) = &tls {
        report_waived(log, record, tls);
    }
    if !(record.rule.rule.log || log.has_audit()) {
        return;
    }
    let mut event = level(about(event, record), record);
    if tls.is_none() && record.rule.starttls().is_some() {
        event = event.field("starttls", in_clear);
    }
    if let Some(action) = &record.rule.rule.audited {
        event = event.field("would", action.word());
    }
    if tls.is_none() && record.rule.clear_access.is_some() {
        event = event.field("tls", "none");
    }
    if let Some(tls) = tls {
        event = event.field("suite", &tls.agreed.suite).field("check", tls.check.word());
        if let Some(name) = identity(&tls.check, &tls.named, tls.peer.as_deref()).identity {
            event = event.field("peer", &name);
        }
    }
    if record.rule.rule.log {
        log.info(event.clone());
    }
    log.audit(AuditOutcome::Allowed, event);
}

/// Counts and logs a peer that is accepted although its certificate failed a check.
fn report_waived(log: &Log, record: &ConnectionRecord, tls: &TlsFacts) {
    let subject = tls.peer.as_ref().map_or("", |peer| peer.title());
    let counters = &record.rule.counters;
    match &tls.check {
        PeerCheck::Invalid { reason } => {
            counters.count_waived(WaivedCheck::Invalid);
            log.warn(
                level(about(Event::new("certificate-waived"), record), record)
                    .field("reason", reason)
                    .field("claimed-subject", subject),
            );
        }
        PeerCheck::RevocationUnknown { reason } => {
            counters.count_waived(WaivedCheck::RevocationUnknown);
            log.warn(
                level(about(Event::new("revocation-unknown"), record), record)
                    .field("reason", reason)
                    .field("subject", subject),
            );
        }
        _ => {}
    }
    if let MappedIdentity::Warned { entry } = &tls.named {
        counters.count_waived(WaivedCheck::Warned);
        log.warn(
            level(about(Event::new("certificate-warned"), record), record)
                .field(
                    "reason",
                    &format_args!(
                        "{entry} would deny the client, but the entry has `warn`, so tacit logs a \
                         warning and accepts the client"
                    ),
                )
                .field("subject", subject),
        );
    }
}

/// Adds the `client-cert` level of a rule that asks clients for certificates.
fn level(event: Event, record: &ConnectionRecord) -> Event {
    match record.rule.action.tls().and_then(|tls| tls.client_cert()) {
        Some(client_cert @ ClientCert::Requested(_)) => event.field("client-cert", client_cert),
        Some(ClientCert::None) | None => event,
    }
}

/// Logs and records that a program uses TLS itself, and the rule rejects that.
pub fn own_tls_refused(log: &Log, refusals: &RefusalTable, connection: &Connection) {
    let record = connection.record();
    let refusal = refusals::of_own_tls(record);
    let key = format!("own-tls {}", refusal.destination);
    refused_later(
        log,
        refusals,
        record,
        about(Event::new("own-tls-refused"), record).limited(key),
        refusal,
        FailureKind("own-tls"),
    );
}

/// Logs and records that a client sent a cancel request in clear, and the rule rejects that.
pub fn cancel_refused(log: &Log, refusals: &RefusalTable, connection: &Connection) {
    let record = connection.record();
    let refusal = refusals::of_cancel(record);
    let event = level(about(Event::new("cancel-refused"), record), record).field(
        "reason",
        "the client sent a PostgreSQL cancel request in clear, but the rule requires TLS",
    );
    let key = format!("cancel {} {}", record.rule.name(), refusal.destination);
    let kind = FailureKind("cancel-in-clear");
    refused_later(log, refusals, record, event.limited(key), refusal, kind);
}

/// Logs and records that a connection was rejected for its content, after it had its rule.
fn refused_later(
    log: &Log,
    refusals: &RefusalTable,
    record: &ConnectionRecord,
    event: Event,
    refusal: Refusal,
    kind: FailureKind,
) {
    let event = event.field("next", &refusal.next);
    log.warn(event.clone());
    log.audit(AuditOutcome::Denied, event);
    record.rule.counters.count_failure(kind);
    refusals.record(refusal);
}

/// Logs that a program uses TLS itself, and tacit passes it on without the rule's TLS.
pub fn own_tls_passed(log: &Log, connection: &Connection) {
    let event = about(Event::new("own-tls-passed"), connection.record());
    if connection.record().rule.rule.log {
        log.info(event.clone());
    }
    log.audit(AuditOutcome::Allowed, event);
}

/// Logs that a connection is near its key limit; TLS 1.2 cannot replace the key.
pub fn key_limit_near(log: &Log, connection: &Connection) {
    let reason = "a TLS 1.2 key has reached 90 % of its data limit, and TLS 1.2 cannot replace \
                  the key: tacit closes the connection at the limit; use TLS 1.3, or make the \
                  program reconnect";
    log.warn(about(Event::new("key-limit-near"), connection.record()).field("reason", reason));
}

/// Logs the end of a connection.
pub fn settle(log: &Log, record: &ConnectionRecord, end: &ConnectionEnd) {
    let event = || closed(record).field("end", &end_of(end, record));
    match end {
        ConnectionEnd::KeyLimit
        | ConnectionEnd::Session(_)
        | ConnectionEnd::Refused(_)
        | ConnectionEnd::ControlFailed(_)
        | ConnectionEnd::NotPassed(_) => log.warn(event()),
        ConnectionEnd::NotStarted(_) => {
            record.rule.counters.count_failure(FailureKind("activate"));
            log.warn(event().limited(format!("not-started {}", record.rule.name())));
        }
        _ if record.rule.rule.log => log.info(event()),
        _ => {}
    }
}

/// Logs the end of a flow of datagrams.
pub fn flow_ended(log: &Log, connection: &Connection, end: &impl Display) {
    let record = connection.record();
    if record.rule.rule.log {
        log.info(closed(record).field("end", end));
    }
}

fn closed(record: &ConnectionRecord) -> Event {
    about(Event::new("closed"), record)
        .value("bytes-in", record.sent_bytes())
        .value("bytes-out", record.received_bytes())
}

/// How it ended, with the next step for an alert of the peer. A TLS 1.3 server rejects a client
/// certificate after the client's handshake is complete, so the alert arrives here.
fn end_of(end: &ConnectionEnd, record: &ConnectionRecord) -> String {
    let role = match record.rule.action.tls().map(|tls| tls.role()) {
        Some(TlsRole::Client(_)) => HandshakeRole::Client,
        Some(TlsRole::Server(_)) | None => HandshakeRole::Server,
    };
    match end {
        ConnectionEnd::Session(SessionError::PeerAlert(alert)) => {
            describe_alert_number(role, alert.0).message
        }
        ConnectionEnd::Broken { socket, error } if record.tls.get().is_none() => {
            let socket = match socket {
                BrokenSocket::Clear => "downstream",
                BrokenSocket::Far => "upstream",
            };
            format!("the {socket} socket failed: {error}")
        }
        other => other.to_string(),
    }
}

/// Logs that the agent closed an open connection.
pub fn closed_on_request(log: &Log, record: &ConnectionRecord) {
    let end = match record.why_closing() {
        Some(Closing::Untrusted) => "the peer is no longer trusted, so tacit closed the connection",
        Some(Closing::Aged) => {
            "the connection reached the `max-age` of its rule, so tacit closed it"
        }
        Some(Closing::Idle) => {
            "the connection reached the `idle` time of its rule, so tacit closed it"
        }
        Some(Closing::RunEnded) => {
            "the run has ended and the connection was still open, so tacit closed it"
        }
        Some(Closing::Requested) | None => "an operator closed the connection",
    };
    log.info(about(Event::new("closed"), record).field("end", end));
}

/// Logs that the peer of an open connection is no longer trusted.
pub(super) fn peer_rejected(
    log: &Log,
    record: &ConnectionRecord,
    check: &PeerCheck,
    recheck: RecheckAction,
) {
    let next = match recheck {
        RecheckAction::Log => {
            "the connection stays open, although tacit no longer accepts the peer's \
             certificate: to close the connection, run `tacit close --peer invalid`. If you want \
             tacit to close these connections itself, set recheck = \"close\" in the rule"
        }
        RecheckAction::Close => "tacit closes the connection",
    };
    let tls = record.tls.get();
    let subject = tls.as_ref().and_then(|tls| tls.peer.as_deref()).map_or("", |peer| peer.title());
    let event = about(Event::new("peer-invalid"), record)
        .field("check", check.word())
        .field("subject", subject)
        .field("reason", check.reason().unwrap_or_default())
        .field("next", next);
    log.warn(event.clone().limited(format!("peer-invalid {} {subject}", record.rule.name())));
    if recheck == RecheckAction::Close {
        log.audit(AuditOutcome::Denied, event);
    }
}

/// Logs that the peers of open connections were checked again, because a trust may have changed.
pub(super) fn rechecked(log: &Log, connections: usize, chains: usize, rejected: usize) {
    let event = Event::new("peers-checked")
        .value("connections", connections)
        .value("chains", chains)
        .value("no-longer-trusted", rejected);
    log.info(event);
}

fn about(event: Event, record: &ConnectionRecord) -> Event {
    let opener = record.scope.as_ref().filter(|facts| !facts.is_inbound).map(|facts| &facts.scope);
    let mut event = event
        .connection(record.id)
        .caused_by(cause(opener, record.client(), Some(record.rule.name())))
        .field("rule", &record.rule.name());
    if let Some(parent) = record.parent() {
        event = event.value("parent", parent.get());
    }
    event = event.field("remote", record.client());
    if let Some(facts) = record.scope.as_ref().filter(|facts| facts.alias.is_some()) {
        let name = facts.names.first().map_or("", String::as_str);
        event = event.field("name", name);
        if let Some(alias) = &facts.alias {
            event = event.field("alias", alias);
        }
    }
    match (&record.sockets.get(), &record.rule.action) {
        (Some(sockets), _) => event.field("connect", &sockets.target),
        (None, LiveAction::Deny(_)) => event,
        (None, _) => event.field("listen", &record.local),
    }
}
