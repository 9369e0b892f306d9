//! Finds out which files an agent needs. Rejects a new policy if the sandbox of the running agent
//! does not allow access to the files of this policy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Policy, Rule, SourcePosition};
use tacit_sys::sandbox::Reach;

use super::AgentOptions;
use crate::agent::listeners;
use crate::confine::{NamedFile, Reachable, named_files, policy_files};
use crate::live::directory_of;

/// The fix for a policy that needs a new sandbox.
pub(in crate::agent) const RESTART: &str =
    "run `tacit restart`, which starts an agent with the changed policy, and closes no connection";

/// The files that this policy and these options need.
pub(super) fn of(policy: &Policy, options: &AgentOptions) -> Reachable {
    let mut written = sockets(policy, options);
    written.extend(options.last_policy.clone());
    Reachable::of(&policy_files(policy, &options.policy), &written, options.log.shared_directory())
}

/// Whether a rule with `listen` selects clients by `program`.
pub(super) fn looks_at_programs(policy: &Policy) -> bool {
    program_rule(policy).is_some()
}

fn program_rule(policy: &Policy) -> Option<&Rule> {
    let asks = |rule: &&Arc<Rule>| rule.forward().is_some() && !rule.selectors.program.is_empty();
    policy.rules.iter().find(asks).map(|rule| &**rule)
}

/// Rejects a policy with a file that the sandbox does not allow.
pub(super) fn check(reach: &Reach, policy: &Policy, base: &Path) -> Result<(), Diagnostic> {
    if let Some(rule) = program_rule(policy) {
        let message = "for this rule, the agent must find out which program is the client of a \
                       connection. The agent's sandbox does not allow this, because no rule had \
                       both `listen` and `program` when the agent started";
        return Err(
            Diagnostic::error(MessageId("needs-restart"), rule.position, message).with_fix(RESTART)
        );
    }
    for NamedFile { position, path } in named_files(policy, base) {
        check_file(reach, position, &path)?;
    }
    for (text, wanted) in listeners::wanted(policy) {
        let Address::Path(path) = &wanted.address else { continue };
        let directory = directory_of(path);
        if Reachable::is_unwritable(reach, &directory) {
            let position = position_of_listener(policy, &text);
            return Err(out_of_reach(position, path, &directory, "write"));
        }
    }
    Ok(())
}

/// Rejects a file that the agent cannot read. A missing file is reported when it is opened.
pub(super) fn check_file(
    reach: &Reach,
    position: SourcePosition,
    path: &Path,
) -> Result<(), Diagnostic> {
    match Reachable::unreadable(reach, path) {
        Some(directory) => Err(out_of_reach(position, path, &directory, "read")),
        None => Ok(()),
    }
}

fn out_of_reach(position: SourcePosition, path: &Path, directory: &Path, verb: &str) -> Diagnostic {
    let message = format!(
        "this agent cannot {verb} {path}: its sandbox allows only the directories that the policy \
         used when the agent started, and {directory} is not one of them",
        path = path.display(),
        directory = directory.display()
    );
    Diagnostic::error(MessageId("needs-restart"), position, message).with_fix(RESTART)
}

fn position_of_listener(policy: &Policy, address: &str) -> SourcePosition {
    let listens = |address_of: &[Address]| address_of.iter().any(|one| one.to_string() == address);
    let of_rule =
        policy.rules.iter().find(|rule| rule.forward().is_some_and(|f| listens(&f.listen)));
    of_rule.map_or(SourcePosition { file: 0, line: 1, column: 1 }, |rule| rule.position)
}

/// The UNIX sockets that the agent creates and removes.
fn sockets(policy: &Policy, options: &AgentOptions) -> Vec<PathBuf> {
    let mut all = vec![options.control.clone()];
    all.extend(options.enrol.iter().map(|enrol| enrol.path.clone()));
    let metrics = policy.agent.metrics.iter().cloned();
    let listening = listeners::wanted(policy).into_values().map(|wanted| wanted.address);
    let paths = metrics.chain(listening).filter_map(|address| match address {
        Address::Path(path) => Some(path),
        Address::Inet(_) | Address::Abstract(_) | Address::Unnamed => None,
    });
    all.extend(paths);
    all
}
