//! Imports the configuration of another product as a policy of tacit.
//!
//! ```text
//!   bytes ─> text ─> statements ─> objects ─> decisions ──> policy text
//!                         └────────────┴──────────┴─> findings, each with its file and line
//! ```
//!
//! The caller passes a list of file names, and a reader for these files ([`Files`]), because this
//! crate opens no file itself. The output has two parts: the text of a policy (`None` after an
//! error), and a list of [`Findings`]. A finding is an error, a change or information, with its
//! file and line. For example:
//!
//! ```
//! use tacit_import::attls::{AttlsRequest, import};
//! use tacit_import::{Findings, InMemory, Input, Severity};
//!
//! let policy = b"TTLSRule mail\n{\nRemotePortRange 25\nDirection Outbound\n\
//!                TTLSGroupActionRef off\n}\nTTLSGroupAction off\n{\nTTLSEnabled Off\n}\n";
//! let files = [Input { file: "pagent.policy", bytes: policy }];
//! let policies = ["pagent.policy".to_owned()];
//! let request = AttlsRequest { policies: &policies, ..AttlsRequest::default() };
//! let mut findings = Findings::default();
//! let imported = import(&request, &InMemory(&files), &mut findings);
//! assert!(imported.policy.unwrap().contains("remote-ports = 25"));
//! assert!(findings.finish().iter().all(|found| found.severity != Severity::Error));
//! ```
//!
//! An import either succeeds completely or returns no policy. An import reports each setting that
//! it changes ([`Severity::Changed`]), and never guesses. Before an import returns a policy, the
//! parser of tacit checks the policy.
//!
//! There is one module for each product:
//! * [`attls`]: policies of AT-TLS (the TLS of z/OS), and IP filter rules of z/OS;
//! * [`stunnel`]: configurations of stunnel.
#![forbid(unsafe_code)]

pub mod attls;
mod draft;
mod files;
mod finding;
pub mod stunnel;

pub use files::{FILE_BYTES_MAX, Files, InMemory, Input};
pub use finding::{FINDINGS_MAX, Finding, Findings, Origin, Severity};
