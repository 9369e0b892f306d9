//! Reads the input files of an import, and writes the policy, the errors and the warnings.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use tacit_core::message_id::MessageId;
use tacit_import::{FILE_BYTES_MAX, Files, Finding, Findings, Severity};
use tacit_tls::credentials::load_chain;
use tacit_tls::{CertificateFacts, HandshakeRole};

use crate::exit::{EXIT_FAILURE, EXIT_OK, EXIT_POLICY, complain, fail, print, versioned};
use crate::output_file::{self, FileId, Written};

/// The options that select the output.
#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// Write the policy to this file [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print policy and diagnostics as JSON
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

/// The result of an import.
#[derive(Debug, Serialize)]
struct ImportReport<'a> {
    /// Whether the import wrote a policy.
    ok: bool,
    policy: Option<&'a str>,
    findings: Vec<Finding>,
}

/// Prints the diagnostics and writes the policy.
pub(super) fn finish(
    output: &OutputArgs,
    disk: &OnDisk,
    policy: Option<&str>,
    findings: Findings,
) -> ExitCode {
    let findings = findings.finish();
    let code = if policy.is_some() { EXIT_OK } else { EXIT_POLICY };
    if output.json {
        return print(versioned(&ImportReport { ok: policy.is_some(), policy, findings }), code);
    }
    print_diagnostics(&findings);
    let Some(policy) = policy else {
        let errors = of("error", count(&findings, Severity::Error));
        return fail(
            MessageId("nothing-imported"),
            format_args!("the import found {errors}, and wrote no policy"),
            code,
        );
    };
    let Some(path) = &output.output else { return print(policy, code) };
    let written = match output_file::write(path, policy, &disk.read.borrow()) {
        Ok(written) => written,
        Err(error) => {
            return fail(
                MessageId("file-failed"),
                format_args!("cannot write {}: {error}", path.display()),
                EXIT_FAILURE,
            );
        }
    };
    let path = path.display();
    let rules = of("rule", policy.matches("[[rule]]").count());
    let changed = count(&findings, Severity::Changed);
    let info = count(&findings, Severity::Info);
    let summary = format!(
        "{path}: {rules}; messages with severity `changed`: {changed}, with severity `info`: {info}"
    );
    if written == Written::Stream {
        // The policy may have been written to standard output.
        complain(summary);
        return code.into();
    }
    print(format!("{summary}\nnext step: tacit check {path}\n"), code)
}

/// Prints the diagnostics, one after the other.
pub(super) fn print_diagnostics(findings: &[Finding]) {
    findings.iter().for_each(|finding| complain(finding.render()));
}

fn count(findings: &[Finding], severity: Severity) -> usize {
    findings.iter().filter(|finding| finding.severity == severity).count()
}

fn of(what: &str, count: usize) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Access to the files of this host.
#[derive(Default)]
pub(super) struct OnDisk {
    /// The directory that replaces `/`; paths cannot leave it.
    root: Option<PathBuf>,
    /// The files that were read.
    read: RefCell<Vec<FileId>>,
}

impl OnDisk {
    /// Access to the files of this host. If there is a `root`, this directory replaces `/`.
    pub(super) fn below(root: Option<&str>) -> Self {
        Self { root: root.map(PathBuf::from), ..Self::default() }
    }

    /// Refuses a path that leaves the root through a symbolic link.
    fn check_root(&self, path: &str) -> Result<(), String> {
        let Some(root) = self.root.as_ref().filter(|root| Path::new(path).starts_with(root)) else {
            return Ok(());
        };
        let real = |path: &Path| path.canonicalize().map_err(|error| error.to_string());
        if real(Path::new(path))?.starts_with(real(root)?) {
            return Ok(());
        }
        Err("a symbolic link leads to a file outside of the directory of --root".to_owned())
    }
}

impl Files for OnDisk {
    fn read(&self, path: &str) -> Result<Vec<u8>, String> {
        self.check_root(path)?;
        let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
        if !metadata.is_file() {
            return Err("the file is not a regular file".to_owned());
        }
        if metadata.len() > FILE_BYTES_MAX {
            return Err(format!("the file is larger than {FILE_BYTES_MAX} bytes"));
        }
        self.read.borrow_mut().push(FileId::of(&metadata));
        std::fs::read(path).map_err(|error| error.to_string())
    }

    fn names(&self, directory: &str) -> Result<Vec<String>, String> {
        self.check_root(directory)?;
        let entries = std::fs::read_dir(directory).map_err(|error| error.to_string())?;
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.map_err(|error| error.to_string())?.file_name();
            name.into_string()
                .map_err(|_| "the directory has a file whose name is not UTF-8".to_owned())
        };
        entries.map(name).collect()
    }

    fn is_for_clients(&self, certificate: &str) -> Option<bool> {
        let chain = load_chain(Path::new(certificate)).ok()?;
        let facts = CertificateFacts::from_der(chain.first()?).ok()?;
        Some(facts.is_for(HandshakeRole::Client.usage()))
    }
}
