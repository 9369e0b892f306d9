//! Contains the agent of tacit and its command line. tacit adds TLS or IPsec to the connections of
//! programs, without changes to the programs. A policy defines which connections tacit encrypts,
//! and how.
//!
//! In reading order: [`cli`] parses the command line. [`agent`] starts listeners and worker threads
//! ([`worker`], [`engine`]) for the installed policy ([`live`]). [`stream`] serves connections. For
//! programs under `tacit run`, [`datagram`] relays datagrams, [`dns`] answers DNS queries, and
//! [`query`] answers queries about connections. [`packet`] moves packets of IPsec tunnels. The
//! crate [`tacit_tls`] implements TLS. [`ledger`] records CPU time. [`control`] answers the
//! operator's commands, and [`log`] writes the logs. [`workload`] is a load generator.
#![forbid(unsafe_code)]

pub mod cli;

pub mod activate;
pub mod agent;
pub mod engine;
pub mod ike;
pub mod ledger;
pub mod live;
pub mod net;
mod output_file;
pub mod packet;
pub mod placement;
pub mod run;
pub mod session;
pub mod signer;
pub mod worker;

pub mod datagram;
pub mod dns;
pub mod query;
pub mod stream;

pub mod control;
pub mod log;

pub mod address;
pub mod ca;
mod cgroups;
pub mod check;
pub mod clock;
pub mod completions;
pub mod confine;
pub mod cpus;
pub mod doctor;
pub mod exit;
pub mod explain;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod host;
pub mod host_file;
pub mod import;
pub mod launch;
pub mod learn;
pub mod link;
pub mod policy_file;
pub mod policy_test;
pub mod project;
pub mod random;
mod runtime;
pub mod show;
mod temporary_file;
pub mod top;
pub mod trace;
pub mod workload;
