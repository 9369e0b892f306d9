//! The end of an import: what was found, and the policy; and the files that it reads.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use tacit_core::message_id::MessageId;
use tacit_import::{FILE_BYTES_MAX, Files, Finding, Findings, Severity};
use tacit_tls::credentials::load_chain;
use tacit_tls::{CertificateFacts, HandshakeRole};

use super::output::{self, FileId, Written};
use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_POLICY, complain, fail, pretty, print};

/// Where the result of an import goes.
#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// Write the policy to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print policy and findings as JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// Reports what was found and writes the policy.
pub(super) fn finish(
    output: &OutputArgs,
    disk: &OnDisk,
    policy: Option<&str>,
    findings: Findings,
) -> ExitCode {
    let findings = findings.finish();
    let code = if policy.is_some() { EXIT_OK } else { EXIT_POLICY };
    if output.json {
        let value = json!({ "ok": policy.is_some(), "policy": policy, "findings": findings });
        return print(pretty(&value), code);
    }
    told(&findings);
    let Some(policy) = policy else {
        let count = count(&findings, Severity::Error);
        return fail(
            MessageId("nothing-imported"),
            format_args!("nothing is imported: {}", of("error", count)),
            code,
        );
    };
    let Some(path) = &output.output else { return print(policy, code) };
    let written = match output::write(path, policy, &disk.read.borrow()) {
        Ok(written) => written,
        Err(error) => {
            return fail(
                MessageId("file-failed"),
                format_args!("{}: {error}", path.display()),
                EXIT_FAILURE,
            );
        }
    };
    let path = path.display();
    let rules = of("rule", policy.matches("[[rule]]").count());
    let changed = count(&findings, Severity::Changed);
    let info = count(&findings, Severity::Info);
    let summary = format!("{path}: {rules}, {changed} changed, {info} info");
    if written == Written::Stream {
        // Standard output may be where the policy went.
        complain(summary);
        return code.into();
    }
    print(format!("{summary}\nnext: tacit check {path}\n"), code)
}

/// Prints what was found, one below the other.
pub(super) fn told(findings: &[Finding]) {
    findings.iter().for_each(|finding| complain(finding.render()));
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

fn of(what: &str, count: usize) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The files of this host.
#[derive(Default)]
pub(super) struct OnDisk {
    /// The directory that stands for `/`; what is below it stays below it.
    root: Option<PathBuf>,
    /// Those that were read.
    read: RefCell<Vec<FileId>>,
}

impl OnDisk {
    /// The files of this host, with a directory that stands for `/`.
    pub(super) fn below(root: Option<&str>) -> Self {
        Self { root: root.map(PathBuf::from), ..Self::default() }
    }

    /// Refuses a path whose symbolic link leads out of the root.
    fn check_root(&self, path: &str) -> Result<(), String> {
        let Some(root) = self.root.as_ref().filter(|root| Path::new(path).starts_with(root)) else {
            return Ok(());
        };
        let real = |path: &Path| path.canonicalize().map_err(|error| error.to_string());
        if real(Path::new(path))?.starts_with(real(root)?) {
            return Ok(());
        }
        Err("a symbolic link leads out of the directory of --root".to_owned())
    }
}

impl Files for OnDisk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        self.check_root(path)?;
        let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if !metadata.is_file() {
            return Err("it is not a regular file".to_owned());
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(format!("it is larger than {FILE_BYTES_MAX} bytes"));
        }
        self.read.borrow_mut().push(FileId::of(&metadata));
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn names(&self, directory: &str) -> Result<Vec<String>, String> {
        self.check_root(directory)?;
        let entries = std::fs::read_dir(directory).map_err(|error| error.to_string())?;
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.map_err(|error| error.to_string())?.file_name();
            name.into_string().map_err(|_| "a name in it is not UTF-8".to_owned())
        };
        entries.map(name).collect()
    }

    fn is_for_clients(&self, certificate: &str) -> Option<bool> {
        let chain = load_chain(Path::new(certificate)).ok()?;
        let facts = CertificateFacts::from_der(chain.first()?).ok()?;
        Some(facts.is_for(HandshakeRole::Client.usage()))
    }
}
