//! Tests the program `tacit` on loopback, with real sockets and real peers.
//!
//! Each file tests one subject. Each test has a [`harness::Lab`] of its own: a directory, a private
//! CA, and the agents that the test starts. The lab removes all of these when the test ends. If a
//! peer program is not installed, the test fails and says what to install.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]
#![allow(unreachable_pub, reason = "only this test program uses it")]

mod certificates;
mod fits;
mod harness;
mod lane;
mod papers;
mod peers;
mod policy_test;
mod programs;
mod public;
mod schema;

mod accept_both;
mod activate;
mod audit;
mod check;
mod cli;
mod client_cert;
mod completions;
mod control;
mod costs;
mod cpus;
mod doctor;
mod drain;
mod engine;
mod expiry;
mod explain_peer;
mod first_bytes;
mod forms;
mod ftp;
mod import_attls;
mod import_filters;
mod import_output;
mod import_pinned;
mod import_stunnel;
mod include;
mod installed;
mod job;
mod key_limit;
mod kill;
mod limits;
mod metrics;
mod orphans;
mod peers_http;
mod peers_libraries;
mod peers_openssl;
mod peers_postgres;
mod pinned;
mod policy_schema;
mod project;
mod proxy;
mod recheck;
mod relay;
mod reload;
mod restart;
mod revocation;
mod run;
mod run_tls;
mod sandbox;
mod server_cert;
mod show;
mod signer;
mod smoke;
mod starttls;
mod starttls_postgres;
mod starttls_smtp;
mod starttls_telnet;
mod targets;
mod tls;
mod top;
mod trace;
mod transparency;
mod truncation;
mod unix;
mod windows;
mod workload;
