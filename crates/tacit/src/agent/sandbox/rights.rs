//! Determines from the policy which capabilities an agent keeps.

use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Policy, Rule, SourcePosition, Target};
use tacit_sys::sandbox::{self, CapabilitySet, Reach, WorkerSockets};
use tacit_sys::socket;

use super::AgentOptions;
use super::reach::{self, RESTART};
use crate::agent::captured_host::may_mark;
use crate::agent::listeners;
use crate::agent::opened::RequiredListener;
use crate::confine::{missing_for_files, policy_files, with_only};

/// Kept by every agent, because a reload may add a port below 1024.
const EVERY: CapabilitySet = CapabilitySet::NET_BIND_SERVICE;
/// Needed to change the owners of socket files.
const OWNERS: CapabilitySet = CapabilitySet::CHOWN.union(CapabilitySet::FOWNER);
/// Needed to find the programs of other users' processes.
const PROGRAMS: CapabilitySet = CapabilitySet::SYS_PTRACE;
/// The capabilities that workers may keep. Workers create no files.
pub(super) const OF_WORKERS: CapabilitySet = CapabilitySet::NET_BIND_SERVICE
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(PROGRAMS)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::NET_RAW);

/// The capabilities of this process that the policy needs.
pub(super) fn kept(
    policy: &Policy,
    options: &AgentOptions,
    reach: &Reach,
    congestion_control: Option<&str>,
) -> CapabilitySet {
    let own = sandbox::capabilities().unwrap_or_else(|_| CapabilitySet::empty());
    if own.is_empty() {
        return own;
    }
    let mut kept = EVERY;
    if reach::looks_at_programs(policy) {
        kept |= PROGRAMS;
    }
    if options.host {
        kept |= marking();
    }
    let enrolment = options.enrol.iter().any(|enrol| enrol.unix.owner.is_some());
    if enrolment || listens_at_files(policy) {
        kept |= OWNERS;
    }
    // A thread without capabilities tries what this user can do without them.
    let missing = with_only(EVERY, || missing_of(policy, options, reach, congestion_control));
    (kept | missing) & own
}

/// Returns the capability that is needed to mark packets: the weaker one if the kernel accepts it
/// (Linux 5.17).
fn marking() -> CapabilitySet {
    let suffices =
        || sandbox::keep_capabilities(CapabilitySet::NET_RAW).is_ok() && may_mark(1).is_ok();
    let is_enough = std::thread::scope(|scope| scope.spawn(suffices).join().unwrap_or_default());
    if is_enough { CapabilitySet::NET_RAW } else { CapabilitySet::NET_ADMIN }
}

/// The capabilities that the calling thread does not have, and needs for the files and sockets of
/// the policy.
fn missing_of(
    policy: &Policy,
    options: &AgentOptions,
    reach: &Reach,
    congestion_control: Option<&str>,
) -> CapabilitySet {
    let mut missing = missing_for_files(&policy_files(policy, &options.policy), &reach.write);
    if rule_to_file(policy).is_some() {
        missing |= CapabilitySet::DAC_OVERRIDE;
    }
    if congestion_control.is_some_and(|name| !socket::has_congestion_control(name)) {
        missing |= CapabilitySet::NET_ADMIN;
    }
    missing
}

/// Whether the policy has socket files, whose owners a reload may change.
fn listens_at_files(policy: &Policy) -> bool {
    let is_file = |wanted: RequiredListener| matches!(wanted.address, Address::Path(_));
    listeners::wanted(policy).into_values().any(is_file)
}

fn gives_sockets_away(policy: &Policy) -> bool {
    listeners::wanted(policy).values().any(|wanted| wanted.unix.owner.is_some())
}

/// The first rule that connects to a socket file, which may be another user's.
fn rule_to_file(policy: &Policy) -> Option<&Rule> {
    rule_to(policy, |address| matches!(address, Address::Path(_)))
}

/// The first rule that connects to a UNIX socket.
fn rule_to_unix(policy: &Policy) -> Option<&Rule> {
    rule_to(policy, |address| matches!(address, Address::Path(_) | Address::Abstract(_)))
}

fn rule_to(policy: &Policy, is_it: impl Fn(&Address) -> bool) -> Option<&Rule> {
    let connects = |rule: &&Arc<Rule>| {
        let mut targets = rule.connect().into_iter().flat_map(|connect| &connect.targets);
        targets.any(|target| matches!(target, Target::Address(address) if is_it(address)))
    };
    policy.rules.iter().find(connects).map(|rule| &**rule)
}

/// The kinds of sockets that workers create for a policy and these options.
pub(super) fn sockets(policy: &Policy, options: &AgentOptions) -> WorkerSockets {
    if rule_to_unix(policy).is_some() || options.link.of_run(policy).is_some() {
        WorkerSockets::InternetAndUnix
    } else {
        WorkerSockets::Internet
    }
}

/// Rejects a policy that needs kinds of sockets which workers can no longer create.
pub(super) fn check_sockets(made: WorkerSockets, policy: &Policy) -> Result<(), Diagnostic> {
    match rule_to_unix(policy) {
        Some(rule) if made == WorkerSockets::Internet => {
            let message = "this agent cannot connect to UNIX sockets: the agent's sandbox forbids \
                           such connections, because no rule connected to a UNIX socket when the \
                           agent started";
            Err(Diagnostic::error(MessageId("needs-restart"), rule.position, message)
                .with_fix(RESTART))
        }
        _ => Ok(()),
    }
}

/// Rejects a policy that needs a capability which the agent has dropped.
pub(super) fn check(kept: CapabilitySet, policy: &Policy) -> Result<(), Diagnostic> {
    // An agent of an ordinary user never had capabilities.
    if kept.is_empty() || kept.contains(OWNERS) || !gives_sockets_away(policy) {
        return Ok(());
    }
    let gives =
        |rule: &&Arc<Rule>| rule.forward().is_some_and(|forward| forward.unix.owner.is_some());
    let rule = policy.rules.iter().find(gives);
    let position =
        rule.map_or(SourcePosition { file: 0, line: 1, column: 1 }, |rule| rule.position);
    let message = "this agent cannot change the owner of a socket file: the agent's sandbox \
                   forbids this change, because no rule had `unix-owner` when the agent started";
    Err(Diagnostic::error(MessageId("needs-restart"), position, message).with_fix(RESTART))
}
