//! Policies of other products, read and written anew as a policy of ours.
//!
//! ```text
//!   bytes ─> text ─> statements ─> objects ─> what holds ─> policy text
//!                         └────────────┴──────────┴─> findings, each with its file and line
//! ```
//!
//! An import is all or nothing: one error among the [`Findings`], and nothing is written. What is
//! not an error and yet not as it was, is told: nothing is guessed in silence, nothing ignored.
//!
//! Nothing here reads or writes files; that is the command line's.
#![forbid(unsafe_code)]

pub mod attls;
pub mod draft;
mod files;
mod finding;
pub mod stunnel;

pub use files::{FILE_BYTES_MAX, Files};
pub use finding::{FINDINGS_MAX, Finding, Findings, Origin, Severity};
