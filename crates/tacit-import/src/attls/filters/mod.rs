//! Imports z/OS IP filter rules: reads in order which flows each rule permits or denies.
//!
//! ```text
//!   IpFilterPolicy ─> IpFilterGroup ─> IpFilterRule ─> IpService…     which flows
//!                                                  ─> IpGenericFilterAction
//! ```
//!
//! z/OS filters packets, and tacit filters connections. So a connection is permitted if its packets
//! are permitted in both directions. If a service (`IpService`) applies to both directions, its
//! source is the local end. As on z/OS, a flow that no rule matches is denied. The module `combine`
//! combines filters and TLS rules.
//!
//! Not supported: statements for IPsec and IKE are errors. A tacit policy cannot express rules for
//! forwarded packets, for security classes, or for protocols other than TCP and UDP; the import
//! reports each of them.

pub(super) mod combine;
mod filter;
mod read;
mod space;
#[cfg(test)]
mod tests;

pub(super) use filter::Filter;
pub(super) use read::read;
