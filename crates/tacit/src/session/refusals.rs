//! Stores refusals of connections, DNS names and sockets, for `tacit show refused` and for the
//! metrics.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tacit_core::dns::{DnsQuestion, ResponseCode};
use tacit_core::flow::{Address, Direction, Protocol};
use tacit_core::policy::Rule;
use tacit_core::refusal::{
    self, Refusal, RefusalEntry, RefusalKind, RefusalReason, Refusals, RunLabel,
};

use crate::live::{LiveAction, NoRule};
use crate::run::Run;
use crate::run::protocol::RefusedSocket;

use super::connection::RefusedFlow;
use super::quotas::QuotaExceeded;
use super::record::ConnectionRecord;

/// The refusals of all threads. Only code that records or shows refusals waits for the lock, which
/// is held at most for a copy of the table.
#[derive(Debug, Default)]
pub struct RefusalTable(Mutex<Refusals>);

impl RefusalTable {
    /// Records a refusal that occurs now.
    pub fn record(&self, refusal: Refusal) {
        self.lock().record(refusal, SystemTime::now());
    }

    /// Records a refusal that has occurred `times` times, most recently now.
    pub fn record_times(&self, refusal: Refusal, times: u64) {
        self.lock().record_times(refusal, times, SystemTime::now());
    }

    /// The latest refusals, newest first.
    #[must_use]
    pub fn entries(&self) -> Vec<RefusalEntry> {
        self.lock().entries()
    }

    /// The number of refusals for a reason since the agent started.
    #[must_use]
    pub fn total(&self, why: RefusalReason) -> u64 {
        self.lock().total(why)
    }

    fn lock(&self) -> MutexGuard<'_, Refusals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RefusedFlow {
    /// Returns the refusal as displays show it, with the policy line that would allow it.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let Self { rule, flow, scope, exceeded } = self;
        let kind = match (flow.direction, flow.protocol) {
            (Direction::Inbound, _) => RefusalKind::Client,
            (Direction::Outbound, Protocol::Tcp) => RefusalKind::Connection,
            (Direction::Outbound, Protocol::Udp | Protocol::Icmp) => RefusalKind::Datagram,
        };
        let host = flow.remote_names.first().cloned().unwrap_or_else(|| flow.remote.host());
        let port = flow.remote.port();
        let why = match rule {
            Ok(_) if exceeded.is_some() => RefusalReason::Limit,
            Err(no_rule) => no_rule.why(),
            Ok(rule) if matches!(rule.action, LiveAction::Deny(_)) => RefusalReason::Denied,
            Ok(_) => RefusalReason::WrongForm,
        };
        let next = match (kind, rule) {
            (_, Ok(_)) if let Some(QuotaExceeded { key, max }) = exceeded => {
                refusal::next_for_limit(key, *max)
            }
            (_, Ok(rule)) => refusal::next_for_denied(rule.name()),
            (_, Err(NoRule::Ambiguous)) if flow.is_shared => {
                refusal::next_for_shared(&flow.remote_names)
            }
            (_, Err(NoRule::Ambiguous)) => refusal::next_for_ambiguous(&flow.remote_names),
            (_, Err(NoRule::NoAlias)) => refusal::next_for_no_alias(),
            (_, Err(NoRule::NoListener)) => {
                refusal::next_for_no_listener(flow.protocol, &host, port)
            }
            (RefusalKind::Client, _) => refusal::next_for_client(&host),
            (RefusalKind::Datagram, _) => {
                refusal::next_for_datagram(&host, port.unwrap_or_default())
            }
            (_, _) => refusal::next_for_connection(&host, port),
        };
        let destination = match (kind, port) {
            (RefusalKind::Client, _) => client_of(&flow.local, &host),
            (_, port) => endpoint(host, port),
        };
        Refusal {
            kind,
            run: scope.as_ref().map(|scope| scope.run().label()),
            destination,
            program: flow.program.clone(),
            why,
            rule: rule.as_ref().ok().map(|rule| rule.name().to_owned()),
            next,
        }
    }
}

/// A name or an address with its port, as displays show a destination.
pub(super) fn endpoint(host: String, port: Option<u16>) -> String {
    match port {
        Some(port) if host.contains(':') => format!("[{host}]:{port}"),
        Some(port) => format!("{host}:{port}"),
        None => host,
    }
}

/// A client as displays show it: without its port, which differs each time.
fn client_of(local: &Address, host: &str) -> String {
    format!("{local} from {host}")
}

/// A name that a program has looked up and that the agent does not send to a resolver.
#[derive(Debug)]
pub struct RefusedName<'a> {
    /// The query for it.
    pub question: &'a DnsQuestion,
    /// The rule that denies it, if one does.
    pub rule: Option<&'a Rule>,
    /// The response that the program got.
    pub answer: ResponseCode,
}

/// The refusal of a name; `None` if a rule can match the name, and only records of the requested
/// type are missing.
pub(super) fn of_name(run: &Run, refused: &RefusedName<'_>) -> Option<Refusal> {
    let RefusedName { question, rule, answer } = *refused;
    if let Some(kind) = question.zone_transfer() {
        return Some(of_zone_transfer(run, &question.name, kind));
    }
    let name = question.name.as_str();
    let is_refused = matches!(answer, ResponseCode::Refused | ResponseCode::NoSuchName);
    is_refused.then(|| Refusal {
        kind: RefusalKind::Name,
        run: Some(run.label()),
        destination: name.to_owned(),
        program: None,
        why: if rule.is_some() { RefusalReason::Denied } else { RefusalReason::NoRule },
        rule: rule.map(|rule| rule.name.clone()),
        next: match rule {
            Some(rule) => refusal::next_for_denied(&rule.name),
            None => refusal::next_for_name(name),
        },
    })
}

/// The refusal of a zone transfer of this type. No rule can allow it, whatever the name.
fn of_zone_transfer(run: &Run, name: &str, kind: &str) -> Refusal {
    Refusal {
        kind: RefusalKind::Name,
        run: Some(run.label()),
        destination: format!("{name} ({kind})"),
        program: None,
        why: RefusalReason::NotOffered,
        rule: None,
        next: refusal::next_for_zone_transfer(kind),
    }
}

/// The refusal of a broadcast or multicast datagram of a run.
pub(super) fn of_group(run: &Run, destination: SocketAddr) -> Refusal {
    Refusal {
        kind: RefusalKind::Datagram,
        run: Some(run.label()),
        destination: destination.to_string(),
        program: None,
        why: RefusalReason::NotOffered,
        rule: None,
        next: "no rule can allow this flow: runs do not support broadcast or multicast".to_owned(),
    }
}

/// The refusal of a socket of a kind that runs do not support, or of an option.
pub(super) fn of_socket(run: &Run, refused: RefusedSocket) -> Refusal {
    Refusal {
        kind: RefusalKind::Socket,
        run: Some(run.label()),
        destination: refused.socket.name(),
        program: refused.program,
        why: RefusalReason::NotOffered,
        rule: None,
        next: refused.socket.next(),
    }
}

/// The refusal of a connection whose program uses TLS itself under a rule with `tls`.
pub(super) fn of_own_tls(record: &ConnectionRecord) -> Refusal {
    let facts = record.scope.as_ref();
    let name = facts.and_then(|facts| facts.names.first());
    let destination = match (name, record.remote.port()) {
        (Some(name), Some(port)) => format!("{name}:{port}"),
        _ => record.remote.to_string(),
    };
    Refusal {
        kind: RefusalKind::Connection,
        run: label_of(record),
        destination,
        program: None,
        why: RefusalReason::OwnTls,
        rule: Some(record.rule.name().to_owned()),
        next: refusal::next_for_own_tls(record.rule.name()),
    }
}

/// The refusal of a cancel request in clear under a rule that requires TLS.
pub(super) fn of_cancel(record: &ConnectionRecord) -> Refusal {
    Refusal {
        kind: RefusalKind::Client,
        run: label_of(record),
        destination: client_of(&record.local, &record.client().host()),
        program: None,
        why: RefusalReason::CancelInClear,
        rule: Some(record.rule.name().to_owned()),
        next: refusal::next_for_cancel(record.rule.name()),
    }
}

/// The run to which the connection belongs, if it belongs to one.
fn label_of(record: &ConnectionRecord) -> Option<RunLabel> {
    record.scope.as_ref().map(|facts| {
        let run = facts.scope.run();
        run.label()
    })
}
