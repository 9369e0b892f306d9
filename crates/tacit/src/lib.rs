//! Contains the agent of tacit and its command line. tacit secures the connections of programs that
//! cannot be changed, as a policy requires.
//!
//! In reading order: [`cli`] parses the command line and calls a command. [`agent`] starts the
//! listeners and [`worker`]s (some of them [`engine`]s) for the [`live`] policy. [`stream`] serves
//! connections, stage by stage. For programs of runs, [`datagram`] relays datagrams, [`dns`]
//! answers DNS queries, and [`query`] answers queries about connections. [`packet`] moves the
//! packets of IPsec tunnels. The crate [`tacit_tls`]
//! implements TLS. [`ledger`] accounts for CPU time. [`control`] and [`log`] are the interface to
//! the operator. [`workload`] is a load generator: a client and a server.
#![forbid(unsafe_code)]

pub mod cli;

pub mod agent;
pub mod engine;
pub mod ike;
pub mod ledger;
pub mod live;
pub mod net;
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
pub mod policy_file;
pub mod policy_test;
pub mod project;
pub mod show;
pub mod top;
pub mod trace;
pub mod workload;
