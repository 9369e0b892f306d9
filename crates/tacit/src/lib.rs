//! tacit puts TLS by policy under programs that cannot be changed: the agent and its command line.
//!
//! In reading order: [`cli`] picks a verb; [`agent`] assembles [`live`] policy, listeners and
//! [`worker`]s, some of them [`engine`]s; [`stream`] is what becomes of a connection, stage by
//! stage; [`datagram`] and [`dns`] carry and answer what else the programs of runs send,
//! [`query`] what they ask about their connections; TLS itself is the crate [`tacit_tls`];
//! [`ledger`] says what all of it costs; [`control`] and [`log`] are what an operator sees;
//! [`workload`] drives it from outside, as plain programs would.
#![forbid(unsafe_code)]

pub mod cli;

pub mod agent;
pub mod engine;
pub mod ledger;
pub mod live;
pub mod net;
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
pub mod clock;
pub mod doctor;
pub mod exit;
pub mod explain;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod host_file;
pub mod import;
pub mod launch;
pub mod policy_file;
pub mod policy_test;
pub mod project;
pub mod show;
pub mod top;
pub mod workload;
