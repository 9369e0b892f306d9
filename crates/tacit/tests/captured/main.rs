//! Tests a captured host: one policy applies to all of its programs, even to those that started
//! long before tacit.
//!
//! This is a separate test binary, because each test has network namespaces of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]
#![allow(unreachable_pub, reason = "only this test program uses it")]

#[path = "../lab/fits.rs"]
mod fits;
#[allow(dead_code, reason = "the lab's tools, of which these tests need some")]
#[path = "../lab/harness.rs"]
mod harness;
#[allow(dead_code, reason = "the lab's tools, of which these tests need some")]
#[path = "../lab/public.rs"]
mod public;

mod audit;
mod boot;
mod bypass;
mod check;
mod combined;
mod confirmation;
mod containers;
mod coverage;
mod death;
mod filters;
mod inbound;
mod joined;
mod learn;
mod local_addresses;
mod machines;
mod names;
mod oci;
mod outbound;
mod published;
mod removed_addresses;
mod scenario;
mod senders;
mod untracked;
