//! Defines the sockets that receive the captured datagrams of a run (a program under `tacit run`).
//! Also defines the table of the run's UDP flows.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use crate::dns::Forwarder;
use crate::live::Live;
use crate::log::Log;
use crate::run::Run;
use crate::session::{ConnectionTable, RefusalTable};

/// The sockets for captured datagrams of a run, for one IP version.
#[derive(Debug)]
pub struct Receiver {
    /// The socket; a successor may take it over.
    pub socket: Arc<OwnedFd>,
    /// The raw socket for ICMP errors with other hosts' addresses.
    pub raw: Arc<OwnedFd>,
    /// The run of the datagrams.
    pub run: Arc<Run>,
    /// Answers datagrams to port 53.
    pub names: Arc<Forwarder>,
}

/// The state that datagram lanes of all threads share.
#[derive(Clone, Debug)]
pub struct DatagramShared {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// All connections and flows of the agent.
    pub table: Arc<ConnectionTable>,
    /// The permits for connections and flows.
    pub places: Arc<Semaphore>,
    /// The table of refusals.
    pub refusals: Arc<RefusalTable>,
    /// The log.
    pub log: Log,
}
