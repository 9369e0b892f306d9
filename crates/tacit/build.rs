//! Collects, at build time, the data that `tacit --version` prints: the commit, the target, and the
//! versions of libraries.

use std::path::{Path, PathBuf};

/// Libraries that do TLS, and the runtime.
const LIBRARIES: [&str; 4] = ["rustls", "rustls-webpki", "aws-lc-rs", "tokio"];

fn main() {
    let root = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../..");
    set("TACIT_COMMIT", &commit(&root).unwrap_or_else(|| "unknown".to_owned()));
    set("TACIT_TARGET", &variable("TARGET"));
    let lock = read(&root.join("Cargo.lock")).unwrap_or_default();
    let versions: Vec<_> = LIBRARIES
        .iter()
        .filter_map(|name| Some(format!("{name} {}", version(&lock, name)?)))
        .collect();
    set("TACIT_LIBRARIES", &versions.join(", "));
}

/// The commit that is checked out, if the sources are a repository of git.
fn commit(root: &Path) -> Option<String> {
    let git = git_directory(root)?;
    let head = read(&git.join("HEAD"))?;
    // A branch may be in one of two files; every commit is in this one.
    let _ = read(&git.join("logs/HEAD"));
    let Some(branch) = head.trim().strip_prefix("ref: ") else { return short(head.trim()) };
    // A work tree shares branches with the repository that it belongs to.
    let shared = match std::fs::read_to_string(git.join("commondir")) {
        Ok(path) => git.join(path.trim()),
        Err(_) => git,
    };
    if let Some(commit) = read(&shared.join(branch)) {
        return short(commit.trim());
    }
    let packed = read(&shared.join("packed-refs"))?;
    packed.lines().find_map(|line| short(line.strip_suffix(branch)?.trim()))
}

fn git_directory(root: &Path) -> Option<PathBuf> {
    let git = root.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let file = std::fs::read_to_string(&git).ok()?;
    Some(root.join(file.strip_prefix("gitdir: ")?.trim()))
}

/// The first characters of a commit's hash.
fn short(commit: &str) -> Option<String> {
    let is_hash = commit.len() >= 40 && commit.bytes().all(|b| b.is_ascii_hexdigit());
    is_hash.then(|| commit[..12].to_owned())
}

/// The version of a package in Cargo.lock.
fn version(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines().skip_while(|line| *line != name).skip(1);
    let version = lines.next()?.strip_prefix("version = \"")?.strip_suffix('"')?;
    Some(version.to_owned())
}

/// Reads a file; its next change builds the crate again.
fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

fn set(name: &str, value: &str) {
    println!("cargo::rustc-env={name}={value}");
}
