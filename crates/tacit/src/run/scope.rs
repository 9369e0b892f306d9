//! The scope in which a flow was captured; at present, only runs are scopes.
//!
//! Code that handles a captured flow gets facts about it, such as the names of an address or the
//! owner of a socket, from its scope. Code that needs what only a run has, such as its helper,
//! matches on the scope, so that the compiler finds all such code when a scope is added.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tacit_core::dns::NamedDestination;

use super::protocol::{SocketEnds, SocketOwner};
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

    /// The destination that an address stands for inside.
    #[must_use]
    pub fn destination(&self, address: IpAddr) -> NamedDestination {
        match self {
            Self::Run(run) => run.destination(address),
        }
    }

    /// The process that holds a program's socket; `None`: no process is seen to.
    ///
    /// # Errors
    /// The helper does not reply.
    pub async fn owner(&self, ends: SocketEnds) -> io::Result<Option<SocketOwner>> {
        match self {
            Self::Run(run) => run.helper.owner(ends.protocol, ends.program, ends.peer).await,
        }
    }

    /// Adds the cost of a flow that has ended.
    pub fn add(&self, usage: Usage) {
        match self {
            Self::Run(run) => run.totals.add(usage),
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
