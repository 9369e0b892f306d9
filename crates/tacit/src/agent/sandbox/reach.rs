//! The files that an agent reaches.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tacit_core::flow::Address;
use tacit_core::policy::{Diagnostic, Policy, Rule, SourcePosition};
use tacit_sys::sandbox::Reach;

use super::AgentOptions;
use crate::agent::listeners;
use crate::live::directory_of;

/// What the host says of itself: users, names, resolvers, system trust, threads, CPUs.
const OF_HOST: [&str; 5] =
    ["/etc", "/proc", "/sys", "/usr/share/ca-certificates", "/usr/share/zoneinfo"];
/// Files of the host that may be links to a directory elsewhere.
const LINKS_OF_HOST: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/localtime", "/etc/ssl/certs/ca-certificates.crt"];
/// What takes a policy that a reload cannot.
pub(super) const RESTART: &str =
    "run `tacit restart`: it installs the policy and closes no connection";
/// Where a signer's output goes.
const NULL: &str = "/dev/null";

/// What an agent reaches.
#[derive(Clone, Debug)]
pub(super) struct Reachable {
    pub(super) files: Reach,
    /// For displays: the directories of this policy, without those that every agent reaches.
    pub(super) text: String,
}

/// Everything that a policy takes, and an agent with these options.
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
    let text = format!("read {}; write {}", list(&named), list(&write));
    read.extend(named);
    write.insert(NULL.into());
    // Any other log is open.
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

/// Whether a rule asks which program a client of a UNIX socket is.
pub(super) fn looks_at_programs(policy: &Policy) -> bool {
    program_rule(policy).is_some()
}

fn program_rule(policy: &Policy) -> Option<&Rule> {
    let asks = |rule: &&Arc<Rule>| rule.forward().is_some() && !rule.selectors.program.is_empty();
    policy.rules.iter().find(asks).map(|rule| &**rule)
}

/// Finds the first file of a policy that is out of reach.
pub(super) fn check(reach: &Reach, policy: &Policy, base: &Path) -> Result<(), Diagnostic> {
    let readable = |path: &Path| is_beneath(path, reach.read.iter().chain(&reach.write));
    if let Some(rule) = program_rule(policy) {
        let message = "this agent cannot find the programs of clients: its sandbox was set up \
                       before the policy required it";
        return Err(Diagnostic::error(rule.position, message).with_fix(RESTART));
    }
    for Named { position, path } in named_files(policy, base) {
        // A file that is not there is reported as such.
        if let Some(directory) = directories_of(&path).into_iter().find(|d| !readable(d)) {
            return Err(out_of_reach(position, &path, &directory, "read"));
        }
    }
    for (text, wanted) in listeners::wanted(policy) {
        let Address::Path(path) = &wanted.address else { continue };
        let directory = directory_of(path);
        if !is_beneath(&directory, reach.write.iter()) {
            let position = position_of_listener(policy, &text);
            return Err(out_of_reach(position, path, &directory, "listen in"));
        }
    }
    Ok(())
}

fn out_of_reach(position: SourcePosition, path: &Path, directory: &Path, verb: &str) -> Diagnostic {
    let message = format!(
        "{} is out of reach: the sandbox of this agent was set up before the policy named the \
         directory {}, which the agent cannot {verb}",
        path.display(),
        directory.display()
    );
    Diagnostic::error(position, message).with_fix(RESTART)
}

fn position_of_listener(policy: &Policy, address: &str) -> SourcePosition {
    let listens = |address_of: &[Address]| address_of.iter().any(|one| one.to_string() == address);
    let of_rule =
        policy.rules.iter().find(|rule| rule.forward().is_some_and(|f| listens(&f.listen)));
    of_rule.map_or(SourcePosition { line: 1, column: 1 }, |rule| rule.position)
}

fn list(paths: &BTreeSet<PathBuf>) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(" ")
}

struct Named {
    position: SourcePosition,
    path: PathBuf,
}

/// The files of credentials.
fn named_files(policy: &Policy, base: &Path) -> Vec<Named> {
    let named = |position, path: &Path| Named { position, path: base.join(path) };
    let mut all = Vec::new();
    for identity in policy.identities.values() {
        all.extend([&identity.cert, &identity.key].map(|path| named(identity.position, path)));
    }
    for trust in policy.trusts.values() {
        all.extend(trust.files().map(|path| named(trust.position, path)));
    }
    all
}

/// The directory that names a file, and the one where it really is.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().ok().map(|file| directory_of(&file));
    let named = std::path::absolute(directory_of(file)).ok();
    [named, real].into_iter().flatten().collect()
}

/// UNIX sockets that the agent makes and removes.
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
    // One that does not exist is reported as such, when it is opened.
    let Ok(real) = directory.canonicalize() else { return true };
    reach.any(|known| known.canonicalize().is_ok_and(|known| real.starts_with(known)))
}

/// What starting a signer takes.
struct Program {
    /// The program, and the directory of the loader of its libraries.
    files: Vec<PathBuf>,
    /// The directories of those.
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
        // With their directory: an upgrade puts another loader there.
        let mut files: Vec<_> =
            mapped.iter().filter(is_loader).map(|path| directory_of(path)).collect();
        // By this name it is found although an upgrade has replaced it.
        files.push("/proc/self/exe".into());
        let libraries = mapped.iter().filter(|path| path.to_string_lossy().contains(".so"));
        let libraries = libraries.map(|path| directory_of(path)).collect();
        Self { files, libraries }
    }
}
