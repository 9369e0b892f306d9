//! Tests that real programs behave the same with and without `tacit run`, except for the
//! differences that the manual lists.
//!
//! This is a separate test binary, because each test has a network namespace.
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
mod network;
#[path = "../lab/public.rs"]
mod public;

mod agents;
mod audit_mode;
mod comparison;
mod confined;
mod connect;
mod datagrams;
mod difference;
mod faults;
mod ftp;
mod give;
mod handed;
mod hidden;
mod host;
mod import;
mod inbound;
mod interfaces;
mod languages;
mod link_faults;
mod link_scripts;
mod links;
mod links_chosen;
mod links_ftp;
mod links_handed;
mod links_of_hostile_hosts;
mod links_of_hosts;
mod links_of_programs;
mod names;
mod own_tls;
mod placement;
mod programs;
mod query;
mod refused;
mod refused_sockets;
mod resolvers;
mod schema;
mod sockets;
mod start;
mod starttls;
mod unix_sockets;
mod workload;
