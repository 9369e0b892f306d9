//! Parses the description of a flow, so that tacit can compare the flow with the policy rules. A
//! flow is, for example, a connection. The description comes from the command line or a test file.

use std::path::PathBuf;

use jiff::Timestamp;
use tacit_core::flow::{Address, Direction, Flow, Protocol};

use crate::address::{group_word, user_word};
use crate::clock;

/// A flow to evaluate a policy with; `None` means the default or an unknown value.
#[derive(Clone, Debug)]
pub(crate) struct FlowDescription {
    /// The direction of the connection; inbound if `listen` is given, otherwise outbound.
    pub(crate) direction: Option<Direction>,
    /// The transport protocol.
    pub(crate) protocol: Protocol,
    /// The listening address of a rule; inbound flows only.
    pub(crate) listen: Option<Address>,
    /// The link whose other side requests a socket; then there is no listening address.
    pub(crate) link: Option<String>,
    /// The local address; `listen` if that is given.
    pub(crate) local: Option<Address>,
    /// The remote address.
    pub(crate) remote: Address,
    /// The names that the program resolved.
    pub(crate) names: Vec<String>,
    /// The executable.
    pub(crate) program: Option<PathBuf>,
    /// The user.
    pub(crate) user: Option<String>,
    /// The group.
    pub(crate) group: Option<String>,
    /// The control group.
    pub(crate) cgroup: Option<String>,
    /// The name of the run.
    pub(crate) run: Option<String>,
    /// The time at which the connection opens; default now.
    pub(crate) at: Option<Timestamp>,
}

/// The reason why a description is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFlow {
    /// An inbound flow has no listening address.
    ListenMissing,
    /// An outbound flow has a listening address.
    ListenUnexpected,
}

impl FlowDescription {
    /// Converts the description to a flow.
    ///
    /// # Errors
    /// Direction and listening address contradict each other.
    pub(crate) fn into_flow(self) -> Result<Flow, NoFlow> {
        let direction = match (self.direction, &self.listen) {
            (None | Some(Direction::Inbound), Some(_)) => Direction::Inbound,
            (Some(Direction::Inbound), None) if self.link.is_some() => Direction::Inbound,
            (Some(Direction::Inbound), None) => return Err(NoFlow::ListenMissing),
            (None | Some(Direction::Outbound), None) => Direction::Outbound,
            (Some(Direction::Outbound), Some(_)) => return Err(NoFlow::ListenUnexpected),
        };
        let protocol = match direction {
            // Only TCP and UNIX streams can be accepted at a listening address.
            Direction::Inbound => Protocol::Tcp,
            Direction::Outbound => self.protocol,
        };
        // The kernel chooses the local address of an outbound connection.
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
            group: self.group.as_deref().map(group_word),
            cgroup: self.cgroup.map(|path| path.trim_matches('/').to_owned()),
            run: self.run,
            to_own_host: false,
            at_unix_s: self.at.map_or_else(clock::now_unix_s, Timestamp::as_second),
        })
    }
}
