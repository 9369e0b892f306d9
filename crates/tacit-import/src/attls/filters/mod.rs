//! IP filter rules: which flows they permit and deny, in order.
//!
//! ```text
//!   IpFilterPolicy ─> IpFilterGroup ─> IpFilterRule ─> IpService…     which flows
//!                                                  ─> IpGenericFilterAction
//! ```
//!
//! The original looks at packets, we at connections: a connection passes if its packets of both
//! directions do. Of a bidirectional service, source is the local end. What no rule matches is
//! denied, here as there; how filters and TLS rules go together stands in `combine`.
//!
//! It does not read IPsec and IKE: their statements are errors that say so. Packets that are
//! forwarded, security classes, and protocols other than TCP and UDP are nothing that our rules are
//! about; each is told.

pub(super) mod combine;
mod filter;
mod read;
mod space;
#[cfg(test)]
mod tests;

pub(super) use filter::Filter;
pub(super) use read::read;
