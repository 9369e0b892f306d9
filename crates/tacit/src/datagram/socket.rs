//! The sockets that receive the captured datagrams of a run, and the state of its flows that all
//! threads share.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;

use crate::dns::Forwarder;
use crate::live::Live;
use crate::log::Log;
use crate::run::Run;
use crate::session::{ConnectionTable, RefusalTable};

/// Where captured datagrams of a run arrive, of one family.
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

/// What the datagrams of all threads share.
#[derive(Clone, Debug)]
pub struct DatagramShared {
    /// The installed policy.
    pub live: Arc<ArcSwap<Live>>,
    /// All connections and flows of the agent.
    pub table: Arc<ConnectionTable>,
    /// Permits for them.
    pub places: Arc<Semaphore>,
    /// What was refused.
    pub refusals: Arc<RefusalTable>,
    /// Where events go.
    pub log: Log,
}
