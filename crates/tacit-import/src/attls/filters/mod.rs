//! Imports z/OS IP filter rules. Each imported rule permits or denies flows.
//!
//! ```text
//!   IpFilterPolicy ─> IpFilterGroup ─> IpFilterRule ─> IpService…     which flows
//!                                                  ─> IpGenericFilterAction
//! ```
//!
//! z/OS filters packets, but the imported rules filter connections. So a connection is permitted if
//! its packets are permitted in both directions. A flow that matches no rule is denied, as on z/OS.
//! The module `combine` combines the filter rules with the TLS rules.
//!
//! Not supported: IPsec, IKE, forwarded packets, security classes, and protocols other than TCP and
//! UDP. The import reports each unsupported statement.

pub(super) mod combine;
mod filter;
mod read;
mod space;
#[cfg(test)]
mod tests;

pub(super) use filter::Filter;
pub(super) use read::read;
