//! Imports sample files from a directory and reports which imports fail: `cargo xtask samples DIR`.
//!
//! The files are published configurations of other products. This program detects the format of
//! each file from its content. A file may have a map file `NAME.map.toml`, which contains Linux
//! names that the import needs, such as programs and users. The option `--map` sets the map file of
//! all samples that have no map file of their own. This program prints one line for each file:
//!
//! ```text
//!   web.policy: ok
//!   old.policy: errors in lines 4, 17
//! ```
//!
//! The directory may have a file `expected` that contains such lines. Then this program compares
//! its output with this file, and fails if the two differ.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tacit_import::attls::{self, AttlsRequest};
use tacit_import::{Files, Finding, Findings, Input, Severity, stunnel};

/// What the lines of the directory are held against.
const EXPECTED: &str = "expected";
const MAP_ENDING: &str = ".map.toml";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("samples: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    let (directory, map, all) = match words {
        [directory] => (directory, None, false),
        [directory, "--findings"] => (directory, None, true),
        [directory, "--map", map] => (directory, Some(PathBuf::from(map)), false),
        [directory, "--map", map, "--findings"] => (directory, Some(PathBuf::from(map)), true),
        _ => return Err("usage: cargo xtask samples DIR [--map FILE] [--findings]".to_owned()),
    };
    let directory = Path::new(directory);
    let names = samples(directory)?;
    let mut lines = BTreeMap::new();
    for name in &names {
        let findings = import(&directory.join(name), map.as_deref())?;
        let line = line(&findings);
        println!("{name}: {line}");
        let shown = findings.iter().filter(|one| all || one.severity == Severity::Error);
        shown.for_each(|finding| println!("    {}", finding.render().replace('\n', "\n    ")));
        lines.insert(name.clone(), line);
    }
    compare(directory, &lines)
}

/// The files to import, by name.
fn samples(directory: &Path) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = name == EXPECTED || name.ends_with(MAP_ENDING) || name.starts_with("README");
        if !is_ours && entry.path().is_file() {
            names.push(name);
        }
    }
    names.sort();
    if names.is_empty() {
        return Err(format!(
            "{directory}: the directory has no file to import",
            directory = directory.display()
        ));
    }
    Ok(names)
}

/// Imports a file as what it looks like.
fn import(path: &Path, map: Option<&Path>) -> Result<Vec<Finding>, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let names = [path.display().to_string()];
    let mut findings = Findings::default();
    if looks_like_stunnel(&text) {
        let options = stunnel::StunnelOptions::default();
        _ = stunnel::import(&names, &OnDisk, &options, &mut findings);
        return Ok(findings.finish());
    }
    let beside = PathBuf::from(format!("{}{MAP_ENDING}", path.display()));
    let map = if beside.exists() { Some(beside.as_path()) } else { map };
    let map_file = map.map(|map| map.display().to_string()).unwrap_or_default();
    let map_bytes = match map {
        Some(map) => std::fs::read(map).map_err(|error| format!("{map_file}: {error}"))?,
        None => Vec::new(),
    };
    let map = map.map(|_| Input { file: &map_file, bytes: &map_bytes });
    let is_filters = text.lines().any(|line| line.trim().starts_with("IpFilterPolicy"));
    let mut request = AttlsRequest { map, ..AttlsRequest::default() };
    if is_filters {
        request.filters = &names;
    } else {
        request.policies = &names;
    }
    _ = attls::import(&request, &OnDisk, &mut findings);
    Ok(findings.finish())
}

fn looks_like_stunnel(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.any(|line| line.starts_with('[') && line.ends_with(']'))
        && text.lines().any(|line| line.trim().to_ascii_lowercase().starts_with("accept"))
}

/// The result of an import in one line.
fn line(findings: &[Finding]) -> String {
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let mut lines: Vec<usize> = errors.map(|finding| finding.line).collect();
    lines.dedup();
    if lines.is_empty() {
        return "ok".to_owned();
    }
    let lines: Vec<String> = lines.iter().map(usize::to_string).collect();
    format!("errors in lines {}", lines.join(", "))
}

fn compare(directory: &Path, lines: &BTreeMap<String, String>) -> Result<(), String> {
    let path = directory.join(EXPECTED);
    if !path.exists() {
        return Ok(());
    }
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let found: Vec<String> = lines.iter().map(|(name, line)| format!("{name}: {line}")).collect();
    let wanted: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut different = Vec::new();
    for line in wanted.iter().filter(|line| !found.iter().any(|found| found == *line)) {
        different.push(format!("- {line}"));
    }
    for line in found.iter().filter(|line| !wanted.contains(&line.as_str())) {
        different.push(format!("+ {line}"));
    }
    if different.is_empty() {
        println!("all as expected");
        return Ok(());
    }
    Err(format!("not as {} says:\n{}", path.display(), different.join("\n")))
}

/// The files of this host.
struct OnDisk;

impl Files for OnDisk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn names(&self, directory: &str) -> Result<Vec<String>, String> {
        let entries = std::fs::read_dir(directory).map_err(|error| error.to_string())?;
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.map_err(|error| error.to_string())?.file_name();
            name.into_string()
                .map_err(|_| "the directory has a file whose name is not UTF-8".to_owned())
        };
        entries.map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "TTLSRule a\n{\nRemotePortRange 25\nDirection Outbound\n\
                          TTLSGroupActionRef off\n}\nTTLSGroupAction off\n{\nTTLSEnabled Off\n}\n";
    const STUNNEL: &str = "[a]\naccept = 127.0.0.1:1\nconnect = 127.0.0.1:2\ncert = /c.pem\n";

    #[test]
    fn every_file_is_imported_as_what_it_is_and_held_against_what_was_expected() {
        let directory = std::env::temp_dir().join(format!("tacit-samples-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        write("a.policy", POLICY);
        write("b.policy", &POLICY.replace("Ref off", "Ref of"));
        write("c.conf", STUNNEL);
        write("d.policy", "IpFilterPolicy\n{\n}\n");
        write("README.md", "not a policy");
        let path = directory.to_str().unwrap();
        assert_eq!(run(&[path]), Ok(()));
        let expected = "a.policy: ok\nb.policy: errors in lines 5\nc.conf: ok\nd.policy: ok\n";
        write(EXPECTED, expected);
        assert_eq!(run(&[path]), Ok(()));
        write(EXPECTED, &expected.replace("lines 5", "lines 6"));
        let reported = run(&[path]).unwrap_err();
        assert!(reported.contains("- b.policy: errors in lines 6\n+ b.policy: errors in lines 5"));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
