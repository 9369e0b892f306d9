//! Where flows are captured.
//!
//! Code that treats a captured flow asks its scope for the names of an address, the owner of a
//! socket and the like. What only a run has (a helper inside, sockets that stand in for an address)
//! is reached by matching on the scope, so that another scope cannot be forgotten there.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tacit_core::dns::NamedDestination;

use super::protocol::{Ends, Owner};
use super::{Run, Usage};

/// Where a flow is captured.
#[derive(Clone, Debug)]
pub enum Scope {
    /// In the network namespace of a run.
    Run(Arc<Run>),
}

impl Scope {
    /// The user whose programs open the flows.
    #[must_use]
    pub fn user(&self) -> &str {
        match self {
            Self::Run(run) => &run.user,
        }
    }

    /// The name of the run whose programs open the flows.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Run(run) => &run.name,
        }
    }

    /// The CPU that its programs share with a worker, if they do.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        match self {
            Self::Run(run) => run.cpu(),
        }
    }

    /// Whether an address is one of the host's own, which a rule must name.
    #[must_use]
    pub fn has_host_address(&self, address: IpAddr) -> bool {
        match self {
            Self::Run(run) => run.host.has(address),
        }
    }

    /// What an address stands for that its programs use.
    #[must_use]
    pub fn destination(&self, address: IpAddr) -> NamedDestination {
        match self {
            Self::Run(run) => run.destination(address),
        }
    }

    /// The process that holds a program's socket; `None`: no process is seen to.
    ///
    /// # Errors
    /// There is no answer from inside.
    pub async fn owner(&self, ends: Ends) -> io::Result<Option<Owner>> {
        match self {
            Self::Run(run) => run.line.owner(ends.protocol, ends.program, ends.peer).await,
        }
    }

    /// Adds what a flow cost that has ended.
    pub fn add(&self, usage: Usage) {
        match self {
            Self::Run(run) => run.spent.add(usage),
        }
    }

    /// Whether it is the run with this number.
    #[must_use]
    pub fn is_run(&self, id: u64) -> bool {
        match self {
            Self::Run(run) => run.id == id,
        }
    }
}
