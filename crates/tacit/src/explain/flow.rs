//! A flow as a person describes it: most of its parts may be left out.

use std::path::PathBuf;

use jiff::Timestamp;
use tacit_core::flow::{Address, Direction, Flow, Protocol};

use crate::address::user_word;
use crate::clock;

/// A flow to evaluate a policy with; `None` stands for the usual value or for an unknown one.
#[derive(Clone, Debug)]
pub(crate) struct FlowDescription {
    /// Who opens the connection; inbound if `listen` is given, else outbound.
    pub(crate) direction: Option<Direction>,
    /// The transport.
    pub(crate) protocol: Protocol,
    /// The address a rule listens at; inbound flows only.
    pub(crate) listen: Option<Address>,
    /// The near address; `listen` if that is given.
    pub(crate) local: Option<Address>,
    /// The far address.
    pub(crate) remote: Address,
    /// The names that the program asked for.
    pub(crate) names: Vec<String>,
    /// The executable.
    pub(crate) program: Option<PathBuf>,
    /// The user.
    pub(crate) user: Option<String>,
    /// The name of the run.
    pub(crate) run: Option<String>,
    /// When the connection opens; now.
    pub(crate) at: Option<Timestamp>,
}

/// Why a description is no flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFlow {
    /// It is inbound and has no listening address.
    ListenMissing,
    /// It is outbound and has a listening address.
    ListenUnexpected,
}

impl FlowDescription {
    /// The flow.
    ///
    /// # Errors
    /// Direction and listening address contradict each other.
    pub(crate) fn into_flow(self) -> Result<Flow, NoFlow> {
        let direction = match (self.direction, &self.listen) {
            (None | Some(Direction::Inbound), Some(_)) => Direction::Inbound,
            (Some(Direction::Inbound), None) => return Err(NoFlow::ListenMissing),
            (None | Some(Direction::Outbound), None) => Direction::Outbound,
            (Some(Direction::Outbound), Some(_)) => return Err(NoFlow::ListenUnexpected),
        };
        let protocol = match direction {
            // A listening address takes TCP and UNIX streams only.
            Direction::Inbound => Protocol::Tcp,
            Direction::Outbound => self.protocol,
        };
        // A program that opens a connection leaves its own end to the kernel.
        let local = self.local.or_else(|| self.listen.clone()).unwrap_or(Address::Unnamed);
        Ok(Flow {
            direction,
            protocol,
            listen: self.listen,
            local,
            remote: self.remote,
            remote_names: self.names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            alias: None,
            is_shared: false,
            program: self.program,
            user: self.user.as_deref().map(user_word),
            run: self.run,
            to_own_host: false,
            at_unix_s: self.at.map_or_else(clock::now_unix_s, Timestamp::as_second),
        })
    }
}
