//! Defines the scope of a captured flow: the place where the flow was captured. This is a run (a
//! program under `tacit run`), the host, or a network namespace that another program has created.
//!
//! The scope has information about the flow, such as the owner of its socket. Code that depends on
//! the kind of scope uses `match`. So when a new kind is added, the compiler finds this code.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tacit_core::dns::NamedDestination;
use tacit_core::flow::Flow;

use super::protocol::{SocketEnds, SocketOwner, SocketSet};
use super::{Run, Usage};

/// Where a flow is captured.
#[derive(Clone, Debug)]
pub enum Scope {
    /// In the network namespace of a run.
    Run(Arc<Run>),
    /// In the host's own network. The agent serves it as a run whose helper works there.
    Host(Arc<Run>),
    /// In a network namespace that another program has made, such as that of a container.
    Joined(Arc<Run>),
}

impl Scope {
    /// The scope that a run stands for.
    #[must_use]
    pub fn of(run: Arc<Run>) -> Self {
        match run.sockets {
            SocketSet::Connected | SocketSet::Held => Self::Run(run),
            SocketSet::Host => Self::Host(run),
            SocketSet::Joined => Self::Joined(run),
        }
    }

    /// The run, or the host or a joined namespace as a run.
    #[must_use]
    pub fn run(&self) -> &Arc<Run> {
        match self {
            Self::Run(run) | Self::Host(run) | Self::Joined(run) => run,
        }
    }

    /// The user whose programs open the flows; `None`: programs of all users do. For a joined
    /// namespace it is the user of the launcher, because its programs have users of their own.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        match self {
            Self::Run(run) | Self::Joined(run) => Some(&run.user),
            Self::Host(_) => None,
        }
    }

    /// The group of the programs that open the flows, as rules select it. The kernel of a captured
    /// host compares groups itself: it sends no flow to the agent about which a rule for its group
    /// decides.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        match self {
            Self::Run(_) | Self::Joined(_) => None,
            Self::Host(_) => Some(""),
        }
    }

    /// The name of the run whose programs open the flows, as rules select it. Programs of the host
    /// belong to no run: no rule that names one matches them.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Run(run) | Self::Joined(run) => &run.name,
            Self::Host(_) => "",
        }
    }

    /// The CPU that its programs share with a worker; `None` if they share none.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        self.run().cpu()
    }

    /// Whether an address is one of the host's own, which a rule must name.
    #[must_use]
    pub fn has_host_address(&self, address: IpAddr) -> bool {
        self.run().host.has(address)
    }

    /// The destination for which an address inside stands.
    #[must_use]
    pub fn destination(&self, address: IpAddr) -> NamedDestination {
        self.run().destination(address)
    }

    /// The process that holds a program's socket; `None` if no process is found.
    ///
    /// # Errors
    /// The helper does not reply.
    pub async fn owner(&self, ends: SocketEnds) -> io::Result<Option<SocketOwner>> {
        self.run().helper.owner(ends.protocol, ends.program, ends.peer).await
    }

    /// Adds the known facts about the owner to a flow. If a fact is unknown, a deny that names an
    /// owner matches, and the flow does not pass in clear if a rule could require TLS.
    pub fn attribute(&self, flow: &mut Flow, owner: Option<SocketOwner>) {
        let Some(SocketOwner { program, user, cgroup, .. }) = owner else { return };
        flow.program = program;
        match self {
            Self::Run(_) => {}
            Self::Host(_) => (flow.user, flow.cgroup) = (user, cgroup),
            Self::Joined(_) => flow.cgroup = cgroup,
        }
    }

    /// Adds the cost of a flow that has ended.
    pub fn add(&self, usage: Usage) {
        self.run().totals.add(usage);
    }

    /// Whether it is the run with this number.
    #[must_use]
    pub fn is_run(&self, id: u64) -> bool {
        self.run().id == id
    }
}
