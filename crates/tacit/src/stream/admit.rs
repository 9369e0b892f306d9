//! Finds the rule of a connection, and adds the connection to the table of connections. Admit is
//! stage 2 of the five stages of a connection.
//!
//! This stage uses no socket, because the agent may not have accepted the connection yet. For
//! example, the agent may still hold the program's SYN until the destination answers.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock};

use tacit_core::datagram::is_for_one;
use tacit_core::flow::{Address, Direction, Flow};
use tacit_core::meter::Component;
use tacit_core::policy::{Deny, PathChoice, RuleForm};
use tacit_core::starttls::StarttlsSide;
use tokio::sync::OwnedSemaphorePermit;

use crate::address::Source;
use crate::ledger::meter::Ticks;
use crate::ledger::{Account, meter};
use crate::live::{Live, LiveAction, LiveRule, NoRule};
use crate::log::Event;
use crate::net::Security;
use crate::run::hold::FilteredPacket;
use crate::run::protocol::{RelayReason, SocketOwner};
use crate::run::{KnownReason, Scope};
use crate::session::{
    Connection, ConnectionOpener, ConnectionPath, Opening, Proxied, QuotaExceeded, QuotaPermit,
    Quotas, RefusedFlow, ScopeFacts, account,
};

use super::data::PendingDataConnection;
use super::lane::Shared;
use super::stage::Claim;

/// A flow that needs a rule.
#[derive(Debug)]
pub(super) struct Request<'a> {
    /// The flow, which rules match.
    pub(super) flow: Flow,
    /// The scope that captured it; `None` for a forwarding rule.
    pub(super) scope: Option<Scope>,
    /// The content of a PROXY header.
    pub(super) claim: Option<&'a Claim>,
    /// The permit from the limit of connections.
    pub(super) permit: OwnedSemaphorePermit,
    /// The CPU time that accepting it has taken.
    pub(super) accepting: Ticks,
}

/// Finds the rule of a flow, and opens the connection. Charges the rule with the CPU time of this
/// search and of accepting the connection.
///
/// # Errors
/// The policy rejects the flow. The rejection was logged.
pub(super) fn admit(shared: &Shared, mut request: Request<'_>) -> Result<Connection, Deny> {
    let found = find_rule(&shared.live.load(), &mut request.flow, request.scope.as_ref());
    let looking = meter::take();
    let rule = match &found {
        Ok(rule) => Some(rule),
        Err(denied) => denied.rule.as_ref().ok(),
    };
    let account = match rule {
        Some(rule) => rule.account(),
        None => Account::agent(),
    };
    meter::charge(account, Component::Accept, request.accepting);
    meter::charge(account, Component::Policy, looking);
    let counted = found.and_then(|rule| count(&shared.quotas, rule, &request));
    match counted {
        Ok(permitted) => Ok(open(shared, permitted, request)),
        Err(NotPermitted { rule, exceeded }) => {
            let Request { flow, scope, .. } = request;
            let refused = RefusedFlow { rule, flow, scope, exceeded };
            account::refused(&shared.log, &shared.refusals, &refused);
            Err(refused.deny())
        }
    }
}

/// Counts a connection if the policy limits those of its source, rule or run.
fn count(
    quotas: &Arc<Quotas>,
    rule: Arc<LiveRule>,
    request: &Request<'_>,
) -> Result<Permitted, NotPermitted> {
    let run = request.scope.as_ref().map(|scope| scope.run().id);
    let is_inbound = request.flow.direction == Direction::Inbound;
    let source = is_inbound.then(|| Source::of(&request.flow.remote));
    match quotas.count(ConnectionOpener { source, rule: rule.name(), run }) {
        Ok(counted) => Ok(Permitted { rule, counted }),
        Err(exceeded) => Err(NotPermitted { rule: Ok(rule), exceeded: Some(exceeded) }),
    }
}

/// A connection that a rule permits and that is not open yet, with its permits.
#[derive(Debug)]
pub(super) struct ReservedConnection {
    permitted: Permitted,
    request: Request<'static>,
}

/// Takes the permits for a connection of a rule.
///
/// # Errors
/// A limit is reached. The error is the flow.
pub(super) fn reserve(
    shared: &Shared,
    rule: Arc<LiveRule>,
    flow: Flow,
    scope: Scope,
) -> Result<ReservedConnection, Box<Flow>> {
    if !fits(&rule.rule.form, Some(&scope)) {
        return Err(Box::new(flow));
    }
    let Ok(permit) = Arc::clone(&shared.places).try_acquire_owned() else {
        return Err(Box::new(flow));
    };
    let accepting = Ticks::default();
    let request = Request { flow, scope: Some(scope), claim: None, permit, accepting };
    match count(&shared.quotas, rule, &request) {
        Ok(permitted) => Ok(ReservedConnection { permitted, request }),
        Err(_) => Err(Box::new(request.flow)),
    }
}

impl ReservedConnection {
    /// Opens the connection of a socket that the program has.
    pub(super) fn open(self, shared: &Shared, local: SocketAddr, owner: SocketOwner) -> Connection {
        let Self { permitted, mut request } = self;
        request.flow.local = local.into();
        open_on(shared, permitted, request, ConnectionPath::Handed(Box::new(owner)))
    }
}

/// Logs a packet about which a filter rule has decided.
pub(super) fn note_filtered(shared: &Shared, logged: &FilteredPacket) {
    let FilteredPacket { rule, packet } = logged;
    let live = shared.live.load();
    let filter = live.policy.filters.iter().find(|filter| filter.name == *rule);
    // A reload may have removed the rule since.
    let verdict = filter.map_or("unknown", |filter| filter.verdict.word());
    let event = Event::new("packet-filtered").field("rule", rule).field("verdict", &verdict);
    shared.log.info(event.field("packet", packet));
}

/// Logs and records a packet that the kernel inside has refused.
pub(super) fn note_refused(shared: &Shared, mut flow: Flow, scope: Scope) {
    let run = scope.run();
    let Address::Inet(destination) = flow.remote else { return };
    let ip = destination.ip();
    if !is_for_one(ip) {
        return account::refused_group(&shared.log, &shared.refusals, run, destination);
    }
    let rule = if ip.is_loopback() || run.host.has(ip) {
        Err(NoRule::NoListener)
    } else {
        match find_rule(&shared.live.load(), &mut flow, Some(&scope)) {
            Ok(_) => return,
            Err(denied) => denied.rule,
        }
    };
    let refused = RefusedFlow { rule, flow, scope: Some(scope), exceeded: None };
    account::refused(&shared.log, &shared.refusals, &refused);
}

/// A flow that a rule permits, within all limits.
#[derive(Debug)]
struct Permitted {
    rule: Arc<LiveRule>,
    counted: Option<QuotaPermit>,
}

/// A rejected flow: by a rule, because no rule matches, or because of a limit.
struct NotPermitted {
    rule: Result<Arc<LiveRule>, NoRule>,
    exceeded: Option<QuotaExceeded>,
}

fn find_rule(
    live: &Live,
    flow: &mut Flow,
    scope: Option<&Scope>,
) -> Result<Arc<LiveRule>, NotPermitted> {
    match live.decide(flow) {
        Ok(rule) if !matches!(rule.action, LiveAction::Deny(_)) && fits(&rule.rule.form, scope) => {
            Ok(Arc::clone(rule))
        }
        denied => Err(NotPermitted { rule: denied.map(Arc::clone), exceeded: None }),
    }
}

/// Whether a rule of this form may decide about a connection that was accepted in a scope or for a
/// forwarding rule. A reload between the accept and the look-up may have given the address to a
/// rule of the other kind. The socket was not accepted for that rule.
fn fits(form: &RuleForm, scope: Option<&Scope>) -> bool {
    match form {
        RuleForm::Forward(_) => scope.is_none(),
        RuleForm::Inbound(_) => matches!(scope, Some(Scope::Run(_))),
        RuleForm::HostInbound => matches!(scope, Some(Scope::Host(_) | Scope::Joined(_))),
        RuleForm::Outbound => scope.is_some(),
        // Its flows arrive as packets.
        RuleForm::TunnelInbound => false,
    }
}

fn open(shared: &Shared, permitted: Permitted, request: Request<'_>) -> Connection {
    let reason = why_relayed(shared, &permitted.rule, &request);
    open_on(shared, permitted, request, ConnectionPath::Relay(reason))
}

/// Why a connection that a rule permits is relayed; `None` if the program could not have a socket
/// of the agent in any case.
fn why_relayed(shared: &Shared, rule: &LiveRule, request: &Request<'_>) -> Option<KnownReason> {
    let is_relayed =
        matches!(rule.action, LiveAction::Permit) && request.flow.direction == Direction::Outbound;
    let run = request.scope.as_ref().filter(|_| is_relayed).map(Scope::run);
    let run = run.filter(|run| run.is_own())?;
    match hindrance(shared, &shared.live.load(), rule, &request.flow) {
        Some(reason) => Some(KnownReason::from(OnceLock::from(reason))),
        None => Some(run.why_relayed(dialled(&request.flow)?)),
    }
}

/// Why the connections of a flow are relayed although a rule permits them, as far as the policy and
/// the destination decide about it.
pub(super) fn hindrance(
    shared: &Shared,
    live: &Live,
    rule: &LiveRule,
    flow: &Flow,
) -> Option<RelayReason> {
    if live.policy.path_of(&rule.rule) != PathChoice::Auto {
        let is_audited = rule.rule.audited.is_some();
        Some(if is_audited { RelayReason::Audit } else { RelayReason::Path })
    } else if flow.to_own_host || flow.remote.ip().is_none_or(|ip| ip.is_loopback()) {
        Some(RelayReason::Local)
    } else if live.selects_local() {
        Some(RelayReason::Selector)
    } else if rule.rule.idle.is_some() {
        Some(RelayReason::Idle)
    } else {
        (!shared.table.traces().is_empty()).then_some(RelayReason::Trace)
    }
}

/// The address that the program connects to.
fn dialled(flow: &Flow) -> Option<SocketAddr> {
    let Address::Inet(remote) = flow.remote else { return None };
    Some(flow.alias.map_or(remote, |alias| SocketAddr::new(alias, remote.port())))
}

fn open_on(
    shared: &Shared,
    permitted: Permitted,
    request: Request<'_>,
    path: ConnectionPath,
) -> Connection {
    let Permitted { rule, counted } = permitted;
    let Request { flow, scope, claim, permit, .. } = request;
    let accepted = if rule.rule.tls_arrives() { Security::Tls } else { Security::Clear };
    let is_inbound = flow.direction == Direction::Inbound;
    let scope = scope.map(|scope| {
        let tls_control = rule.is_controlled().then(Box::default);
        let names = flow.remote_names;
        let moves = AtomicU8::new(0);
        let alias = flow.alias;
        Box::new(ScopeFacts { scope, is_inbound, names, alias, moves, tls_control, path })
    });
    let program = flow.program;
    let client = flow.remote;
    let (remote, proxied) = match claim {
        None => (client, None),
        Some(Claim { proxy, target: None, .. }) => (proxy.clone(), None),
        Some(Claim { proxy, target: Some(target), .. }) => {
            (proxy.clone(), Some(Proxied { client, target: target.clone() }))
        }
    };
    let opening = Opening {
        rule,
        protocol: flow.protocol,
        local: flow.local,
        remote,
        proxied,
        scope,
        parent: None,
    };
    let connection = Connection::open(&shared.table, opening, accepted, permit, counted);
    account::audited(&shared.log, connection.record(), program);
    connection
}

/// Begins a data connection under the rule of its control connection.
pub(super) fn admit_data(
    shared: &Shared,
    pending: &PendingDataConnection,
    local: Address,
    remote: Address,
    permit: OwnedSemaphorePermit,
) -> Connection {
    let parent = &pending.parent;
    let scope = parent.scope.as_ref().map(|facts| {
        let scope = facts.scope.clone();
        let names = facts.names.clone();
        let is_inbound = pending.request.connects == StarttlsSide::Peer;
        Box::new(ScopeFacts {
            scope,
            is_inbound,
            names,
            alias: facts.alias,
            moves: AtomicU8::new(0),
            tls_control: None,
            path: ConnectionPath::Relay(None),
        })
    });
    let opening = Opening {
        rule: Arc::clone(&parent.rule),
        protocol: parent.protocol,
        local,
        remote,
        proxied: None,
        scope,
        parent: NonZeroU64::new(parent.id),
    };
    // Limits of the policy count the control connection only.
    Connection::open(&shared.table, opening, pending.downstream_security(), permit, None)
}
