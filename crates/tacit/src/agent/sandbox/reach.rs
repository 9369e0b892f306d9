//! Lists the files and directories that an agent may read, write and execute in its sandbox.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Policy, Rule, SourcePosition};
use tacit_sys::sandbox::Reach;

use super::AgentOptions;
use crate::agent::listeners;
use crate::live::directory_of;

/// Files of the host that every agent reads: users, names, resolvers, system trust, threads, CPUs.
const OF_HOST: [&str; 5] =
    ["/etc", "/proc", "/sys", "/usr/share/ca-certificates", "/usr/share/zoneinfo"];
/// Files of the host that may be symbolic links to another directory.
const LINKS_OF_HOST: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/localtime", "/etc/ssl/certs/ca-certificates.crt"];
/// The fix for a policy that needs a new sandbox.
pub(in crate::agent) const RESTART: &str =
    "run `tacit restart`, which starts an agent with the new policy and closes no connection";
/// The output of a signer.
const NULL: &str = "/dev/null";

/// The files that an agent may use.
#[derive(Clone, Debug)]
pub(super) struct Reachable {
    pub(super) files: Reach,
    /// The directories of the policy and options for displays, without those that every agent uses.
    pub(super) text: String,
}

/// The files that this policy and these options need.
pub(super) fn of(policy: &Policy, options: &AgentOptions) -> Reachable {
    let mut read: BTreeSet<PathBuf> = OF_HOST.into_iter().map(PathBuf::from).collect();
    let links = LINKS_OF_HOST.into_iter().map(PathBuf::from);
    read.extend(links.flat_map(|link| directories_of(&link)));
    let named = files(policy, options);
    let named: BTreeSet<_> = named.iter().flat_map(|file| directories_of(file)).collect();
    let Program { files, libraries } = Program::of_this_process();
    read.extend(libraries);
    let mut write: BTreeSet<PathBuf> =
        sockets(policy, options).iter().map(|at| directory_of(at)).collect();
    write.extend(options.last_policy.as_deref().map(directory_of));
    let text = format!("read {}; write {}", list(&named), list(&write));
    read.extend(named);
    write.insert(NULL.into());
    // Only this log is opened again later.
    write.extend(options.log.shared_directory());
    let read = read.into_iter().collect();
    let write = write.into_iter().collect();
    Reachable { text, files: Reach { read, write, run: files } }
}

/// The files that the agent and its signer read.
pub(super) fn files(policy: &Policy, options: &AgentOptions) -> Vec<PathBuf> {
    let named = named_files(policy, &directory_of(&options.policy));
    named.into_iter().map(|named| named.path).chain([options.policy.clone()]).collect()
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
        let message = "this agent cannot find out which program is the client of a connection: \
                       when the agent started, no rule had both `listen` and `program`, so its \
                       sandbox does not allow this";
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
        if !is_beneath(&directory, reach.write.iter()) {
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
    let readable = |path: &Path| is_beneath(path, reach.read.iter().chain(&reach.write));
    match directories_of(path).into_iter().find(|directory| !readable(directory)) {
        Some(directory) => Err(out_of_reach(position, path, &directory, "read")),
        None => Ok(()),
    }
}

fn out_of_reach(position: SourcePosition, path: &Path, directory: &Path, verb: &str) -> Diagnostic {
    let message = format!(
        "this agent cannot {verb} {}: its sandbox allows only the directories that the policy used \
         when the agent started, and {} is not one of them",
        path.display(),
        directory.display()
    );
    Diagnostic::error(MessageId("needs-restart"), position, message).with_fix(RESTART)
}

fn position_of_listener(policy: &Policy, address: &str) -> SourcePosition {
    let listens = |address_of: &[Address]| address_of.iter().any(|one| one.to_string() == address);
    let of_rule =
        policy.rules.iter().find(|rule| rule.forward().is_some_and(|f| listens(&f.listen)));
    of_rule.map_or(SourcePosition { file: 0, line: 1, column: 1 }, |rule| rule.position)
}

fn list(paths: &BTreeSet<PathBuf>) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(" ")
}

struct NamedFile {
    position: SourcePosition,
    path: PathBuf,
}

/// The files of certificates, keys, shared keys and trusts, and those that the policy includes.
fn named_files(policy: &Policy, base: &Path) -> Vec<NamedFile> {
    let named = |position, path: &Path| NamedFile { position, path: base.join(path) };
    let mut all = Vec::new();
    for identity in policy.identities.values() {
        all.extend([&identity.cert, &identity.key].map(|path| named(identity.position, path)));
    }
    for trust in policy.trusts.values() {
        all.extend(trust.files().map(|path| named(trust.position, path)));
    }
    for peer in policy.ikes.values() {
        all.extend(peer.key_file().map(|path| named(peer.position, path)));
    }
    for sa in policy.sas.values() {
        all.extend(sa.key_files().map(|path| named(sa.position, path)));
    }
    // The directories of patterns, too: files that come later are read there.
    let start = SourcePosition { file: 0, line: 1, column: 1 };
    all.extend(policy.includes.iter().map(|pattern| named(start, Path::new(pattern))));
    all.extend(
        policy.included.iter().map(|file| NamedFile { position: start, path: (&**file).into() }),
    );
    all
}

/// The directory of a path, and the directory of its canonical path.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().ok().map(|file| directory_of(&file));
    let named = std::path::absolute(directory_of(file)).ok();
    [named, real].into_iter().flatten().collect()
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

fn is_beneath<'a>(directory: &Path, mut reach: impl Iterator<Item = &'a PathBuf>) -> bool {
    // A missing directory is reported when it is opened.
    let Ok(real) = directory.canonicalize() else { return true };
    reach.any(|known| known.canonicalize().is_ok_and(|known| real.starts_with(known)))
}

/// The files that are needed to start a signer.
struct Program {
    /// The program, and the directory of the dynamic loader.
    files: Vec<PathBuf>,
    /// The directories of its shared libraries.
    libraries: BTreeSet<PathBuf>,
}

impl Program {
    fn of_this_process() -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
        let mapped: BTreeSet<PathBuf> = paths.map(PathBuf::from).collect();
        let is_loader = |path: &&PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ld"))
        };
        // The whole directory, because an upgrade installs another loader there.
        let mut files: Vec<_> =
            mapped.iter().filter(is_loader).map(|path| directory_of(path)).collect();
        // This name works even after an upgrade has replaced the program.
        files.push("/proc/self/exe".into());
        let libraries = mapped.iter().filter(|path| path.to_string_lossy().contains(".so"));
        let libraries = libraries.map(|path| directory_of(path)).collect();
        Self { files, libraries }
    }
}
