//! The configuration of another product, imported as a policy of tacit.
//!
//! ```text
//!   bytes ─> text ─> statements ─> objects ─> what holds ─> policy text
//!                         └────────────┴──────────┴─> findings, each with its file and line
//! ```
//!
//! Names of files go in, with a way to read them ([`Files`]): this crate opens none itself. The
//! text of a policy comes out, or nothing, and [`Findings`] that say what was found where:
//!
//! ```
//! use tacit_import::attls::{Request, import};
//! use tacit_import::{Findings, InMemory, Input, Severity};
//!
//! let policy = b"TTLSRule mail\n{\nRemotePortRange 25\nDirection Outbound\n\
//!                TTLSGroupActionRef off\n}\nTTLSGroupAction off\n{\nTTLSEnabled Off\n}\n";
//! let files = [Input { file: "pagent.policy", bytes: policy }];
//! let request = Request { policies: &["pagent.policy".to_owned()], ..Request::default() };
//! let mut findings = Findings::default();
//! let imported = import(&request, &InMemory(&files), &mut findings);
//! assert!(imported.policy.unwrap().contains("remote-ports = 25"));
//! assert!(findings.finish().iter().all(|found| found.severity != Severity::Error));
//! ```
//!
//! An import is all or nothing: after one error there is no policy. What cannot be kept as it was
//! is a finding of its own ([`Severity::Changed`]); nothing is guessed or ignored without one. The
//! policy is checked by tacit's own parser before it is handed out.
//!
//! * [`attls`]: policies of AT-TLS, the TLS of z/OS, with IP filter rules;
//! * [`stunnel`]: configurations of stunnel.
#![forbid(unsafe_code)]

pub mod attls;
mod draft;
mod files;
mod finding;
pub mod stunnel;

pub use files::{FILE_BYTES_MAX, Files, InMemory, Input};
pub use finding::{FINDINGS_MAX, Finding, Findings, Origin, Severity};
