//! What may be linked: licences, bans and sources, as `deny.toml` has them.
//!
//! cargo-deny does this best, and is used where it is installed. Building it takes minutes, which
//! is more than the rest of a run on a fresh machine; where it is missing, the same file is read
//! here and held against `cargo tree`. Which of the two was used is always printed.
//!
//! Not done by the second way: dependency trees in messages, clarifications, advisories.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Outcome;

/// The version that `deny.toml` was written for.
const CARGO_DENY_VERSION: &str = "0.20.2";
/// The libraries of this platform are looked at; cargo-deny looks at all in `deny.toml`.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Checks the dependencies by the better way at hand.
pub(crate) fn run() -> Outcome {
    let cargo_deny = Command::new("cargo-deny")
        .arg("--version")
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success());
    match cargo_deny {
        Some(version) => {
            println!("dependencies: by {}", String::from_utf8_lossy(&version.stdout).trim());
            let status = Command::new("cargo-deny")
                .args(["--locked", "check", "licenses", "bans", "sources"])
                .current_dir(crate::root())
                .status()
                .map_err(|error| format!("cannot run cargo-deny: {error}"))?;
            if status.success() { Ok(()) } else { Err("dependencies: see above".to_owned()) }
        }
        None => {
            println!(
                "dependencies: by xtask itself (for more: cargo install --locked cargo-deny \
                 --version {CARGO_DENY_VERSION})"
            );
            own_check()
        }
    }
}

fn own_check() -> Outcome {
    let path = crate::root().join("deny.toml");
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let rules = Rules::parse(&text)?;
    let packages = packages()?;
    let wrong = rules.check(&packages);
    for line in &wrong {
        println!("{line}");
    }
    match wrong.len() {
        0 => {
            println!("dependencies: {} packages, licences, bans and sources ok", packages.len());
            Ok(())
        }
        count => Err(format!("dependencies: {count} to put right")),
    }
}

/// A package that is linked or runs in the build.
#[derive(Default)]
struct Package {
    name: String,
    version: String,
    licence: String,
    /// What cargo says beside the version: nothing for the registry; a path, an address, a kind.
    beside: String,
    /// Names of the packages that ask for it.
    users: BTreeSet<String>,
}

/// Everything the workspace links or runs on [`PLATFORM`]. `cargo metadata` would be easier to
/// read, but lists optional packages that no feature in use asks for.
fn packages() -> Result<Vec<Package>, String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--workspace", "--edges=normal,build,dev"])
        .args(["--target", PLATFORM, "--prefix=depth", "--format=\t{p}\t{l}"])
        .current_dir(crate::root())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run cargo tree: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", output.status));
    }
    parse_tree(&String::from_utf8_lossy(&output.stdout))
}

/// Lines of `DEPTH \t NAME vVERSION [(BESIDE)]… \t LICENCE`; a line's user is the last one above
/// it that stands one less deep.
fn parse_tree(tree: &str) -> Result<Vec<Package>, String> {
    let mut packages: BTreeMap<&str, Package> = BTreeMap::new();
    let mut above: Vec<&str> = Vec::new();
    for line in tree.lines().filter(|line| !line.is_empty()) {
        let unclear = || format!("cargo tree: unclear line `{line}`");
        let [depth, package, licence] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(unclear());
        };
        let depth: usize = depth.parse().map_err(|_| unclear())?;
        let (name, rest) = package.split_once(" v").ok_or_else(unclear)?;
        let (version, beside) = rest.split_once(' ').unwrap_or((rest, ""));
        above.truncate(depth);
        let found = packages.entry(package).or_insert_with(|| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            // Printed once more, the package's own dependencies are left out and marked.
            licence: licence.trim_end_matches(" (*)").to_owned(),
            beside: beside.to_owned(),
            users: BTreeSet::new(),
        });
        found.users.extend(above.last().map(|user| (*user).to_owned()));
        above.push(name);
    }
    Ok(packages.into_values().collect())
}

/// The part of `deny.toml` that is understood here.
#[derive(Debug)]
struct Rules {
    licences: BTreeSet<String>,
    /// Package, and the packages that may use it all the same.
    banned: BTreeMap<String, BTreeSet<String>>,
    /// `name@version` that may stand beside another version; the version may be shortened.
    doubled: BTreeSet<String>,
}

impl Rules {
    fn parse(text: &str) -> Result<Self, String> {
        let root = DeTable::parse(text).map_err(|error| format!("deny.toml: {error}"))?;
        let list = |table: &str, key: &str| {
            let entries = root.get_ref().get(table).and_then(|table| table.get_ref().get(key));
            entries.and_then(|entries| entries.get_ref().as_array()).into_iter().flatten()
        };
        let string = |entry: &DeValue<'_>| entry.as_str().map(str::to_owned);
        let name = |entry: &DeValue<'_>| entry.get("crate").and_then(|name| string(name.get_ref()));
        let mut banned = BTreeMap::new();
        for entry in list("bans", "deny").map(Spanned::get_ref) {
            let crate_name = name(entry).ok_or("deny.toml: a ban without `crate`")?;
            let wrappers = entry.get("wrappers").and_then(|wrappers| wrappers.get_ref().as_array());
            let wrappers = wrappers.into_iter().flatten();
            banned.insert(crate_name, wrappers.filter_map(|w| string(w.get_ref())).collect());
        }
        let licences: BTreeSet<String> =
            list("licenses", "allow").filter_map(|entry| string(entry.get_ref())).collect();
        if licences.is_empty() || banned.is_empty() {
            return Err("deny.toml: no licences or no bans found: has its form changed?".to_owned());
        }
        let doubled = list("bans", "skip").filter_map(|entry| name(entry.get_ref())).collect();
        Ok(Self { licences, banned, doubled })
    }

    /// One line for everything that is not as it should be.
    fn check(&self, packages: &[Package]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for package in packages {
            let Package { name, version, licence, beside, users } = package;
            if !allowed(licence, &self.licences) {
                wrong.push(format!("{name} {version}: licence `{licence}` is not allowed"));
            }
            // A path of this repository, an address, or another registry's name.
            let elsewhere = beside.contains("://") || beside.contains("registry");
            if elsewhere {
                wrong.push(format!("{name} {version}: comes from {beside}, not the registry"));
            }
            if let Some(wrappers) = self.banned.get(name) {
                let others: Vec<_> = users.difference(wrappers).collect();
                if wrappers.is_empty() || !others.is_empty() {
                    wrong.push(format!("{name} {version}: banned, used by {others:?}"));
                }
            }
            let skipped = self.doubled.iter().any(|skip| match skip.split_once('@') {
                Some((skip, prefix)) => {
                    skip == name
                        && (version == prefix || version.starts_with(&format!("{prefix}.")))
                }
                None => skip == name,
            });
            if !skipped {
                versions.entry(name).or_default().push(version);
            }
        }
        for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
            wrong.push(format!("{name}: versions {versions:?}, wanted one"));
        }
        wrong
    }
}

/// Whether a licence expression can be met with these licences.
fn allowed(expression: &str, licences: &BTreeSet<String>) -> bool {
    // The older way to write OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let (met, rest) = any_of(&words, licences);
    met && rest.is_empty()
}

fn any_of<'a>(words: &'a [&'a str], licences: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = all_of(words, licences);
    while let ["OR", after @ ..] = rest {
        let (other, after) = all_of(after, licences);
        (met, rest) = (met || other, after);
    }
    (met, rest)
}

fn all_of<'a>(words: &'a [&'a str], licences: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    let (mut met, mut rest) = one(words, licences);
    while let ["AND", after @ ..] = rest {
        let (other, after) = one(after, licences);
        (met, rest) = (met && other, after);
    }
    (met, rest)
}

fn one<'a>(words: &'a [&'a str], licences: &BTreeSet<String>) -> (bool, &'a [&'a str]) {
    match words {
        ["(", inside @ ..] => match any_of(inside, licences) {
            (met, [")", rest @ ..]) => (met, rest),
            (_, rest) => (false, rest),
        },
        [licence, "WITH", exception, rest @ ..] => {
            (licences.contains(&format!("{licence} WITH {exception}")), rest)
        }
        [licence, rest @ ..] => (licences.contains(*licence), rest),
        [] => (false, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> Rules {
        let path = crate::root().join("deny.toml");
        Rules::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn package(name: &str, version: &str, licence: &str, users: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.to_owned(),
            beside: String::new(),
            users: users.iter().map(|user| (*user).to_owned()).collect(),
        }
    }

    #[test]
    fn licence_expressions() {
        let licences = BTreeSet::from(["MIT".to_owned(), "ISC".to_owned()]);
        for met in ["MIT", "MIT/GPL-3.0", "X OR (MIT AND ISC)", "ISC AND (X OR MIT)"] {
            assert!(allowed(met, &licences), "{met}");
        }
        for unmet in ["", "X", "MIT AND X", "(MIT", "MIT)", "X AND MIT OR Y", "MIT WITH E"] {
            assert!(!allowed(unmet, &licences), "{unmet}");
        }
    }

    #[test]
    fn a_tree_tells_who_uses_what() {
        let tree = "0\ta v1.0.0 (/a)\tMIT\n1\tb v2.0.0 (proc-macro)\tISC\n2\tc v3.0.0\tMIT\n\
                    1\tc v3.0.0\tMIT (*)\n\n0\tb v2.0.0 (proc-macro)\tISC (*)\n";
        let packages = parse_tree(tree).unwrap();
        let seen: Vec<String> = packages
            .iter()
            .map(|p| format!("{} {} {} {:?}", p.name, p.version, p.licence, p.users))
            .collect();
        let wanted = ["a 1.0.0 MIT {}", "b 2.0.0 ISC {\"a\"}", "c 3.0.0 MIT {\"a\", \"b\"}"];
        assert_eq!(seen, wanted);
        assert!(parse_tree("a v1.0.0").is_err());
    }

    #[test]
    fn each_kind_of_wrong_is_found() {
        let rules = rules();
        let right = [
            package("a", "1.0.0", "MIT", &["tacit"]),
            package("rustls", "0.23.0", "MIT", &["tacit"]),
            package("syn", "2.0.1", "MIT", &["a"]),
            package("syn", "3.0.1", "MIT", &["a"]),
        ];
        assert_eq!(rules.check(&right), [""; 0]);
        let mut elsewhere = package("a", "1.0.0", "MIT", &[]);
        elsewhere.beside = "(https://example.org/a#1234)".to_owned();
        for wrong in [
            vec![package("a", "1.0.0", "GPL-3.0", &[])],
            vec![package("ring", "0.17.0", "MIT", &["tacit"])],
            vec![package("rustls", "0.23.0", "MIT", &["tacit", "a"])],
            vec![package("a", "1.0.0", "MIT", &[]), package("a", "2.0.0", "MIT", &[])],
            vec![elsewhere],
        ] {
            assert_eq!(rules.check(&wrong).len(), 1);
        }
    }
}
