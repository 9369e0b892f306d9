//! Lists the files and directories that a process of tacit may read, write and execute.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use tacit_core::policy::{Policy, SourcePosition};
use tacit_sys::sandbox::Reach;

use crate::live::directory_of;

/// Files of the host that every process reads: users, names, resolvers, system trust, threads,
/// CPUs.
const OF_HOST: [&str; 5] =
    ["/etc", "/proc", "/sys", "/usr/share/ca-certificates", "/usr/share/zoneinfo"];
/// Files of the host that may be symbolic links to another directory.
const LINKS_OF_HOST: [&str; 4] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/localtime", "/etc/ssl/certs/ca-certificates.crt"];
/// The output of a signer.
const NULL: &str = "/dev/null";

/// The files that a process may use.
#[derive(Clone, Debug)]
pub struct Reachable {
    /// The files.
    pub files: Reach,
    /// The directories of the policy and options for displays, without those that every process
    /// uses.
    pub text: String,
}

impl Reachable {
    /// The files of a process that reads the files in `named`, and creates and removes those in
    /// `sockets`. It can start a signer. `log` is the directory of a log that it opens again later.
    #[must_use]
    pub fn of(named: &[PathBuf], sockets: &[PathBuf], log: Option<PathBuf>) -> Self {
        let mut read: BTreeSet<PathBuf> = OF_HOST.into_iter().map(PathBuf::from).collect();
        let links = LINKS_OF_HOST.into_iter().map(PathBuf::from);
        read.extend(links.flat_map(|link| directories_of(&link)));
        let named: BTreeSet<_> = named.iter().flat_map(|file| directories_of(file)).collect();
        let Program { files, libraries } = Program::of_this_process();
        read.extend(libraries);
        let mut write: BTreeSet<PathBuf> = sockets.iter().map(|at| directory_of(at)).collect();
        let text = format!("read {}; write {}", list(&named), list(&write));
        read.extend(named);
        write.insert(NULL.into());
        write.extend(log);
        let read = read.into_iter().collect();
        let write = write.into_iter().collect();
        Self { text, files: Reach { read, write, run: files } }
    }

    /// The directory of a file that the process cannot read. A missing file is reported when it is
    /// opened.
    #[must_use]
    pub fn unreadable(reach: &Reach, path: &Path) -> Option<PathBuf> {
        let readable = |path: &Path| is_beneath(path, reach.read.iter().chain(&reach.write));
        directories_of(path).into_iter().find(|directory| !readable(directory))
    }

    /// Whether the process cannot create or remove files of a directory.
    #[must_use]
    pub fn is_unwritable(reach: &Reach, directory: &Path) -> bool {
        !is_beneath(directory, reach.write.iter())
    }
}

/// A file that a policy names.
#[derive(Clone, Debug)]
pub struct NamedFile {
    /// Where the policy names it.
    pub position: SourcePosition,
    /// Its path.
    pub path: PathBuf,
}

/// The files of certificates, keys, shared keys and trusts, and those that the policy includes.
#[must_use]
pub fn named_files(policy: &Policy, base: &Path) -> Vec<NamedFile> {
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

/// The files that a process with this policy reads: those that the policy names, and its own file.
#[must_use]
pub fn policy_files(policy: &Policy, file: &Path) -> Vec<PathBuf> {
    let named = named_files(policy, &directory_of(file)).into_iter().map(|named| named.path);
    named.chain([file.to_owned()]).collect()
}

/// The directory of a path, and the directory of its canonical path.
fn directories_of(file: &Path) -> Vec<PathBuf> {
    let real = file.canonicalize().ok().map(|file| directory_of(&file));
    let named = std::path::absolute(directory_of(file)).ok();
    [named, real].into_iter().flatten().collect()
}

fn list(paths: &BTreeSet<PathBuf>) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(" ")
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
