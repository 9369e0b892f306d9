//! Holds the handles of the program, the agent and the helper process, while `tacit run` runs a
//! program.

use super::agent::Agent;
use super::enter::Helper;

/// A running program, with the agent and helper that end with it.
pub(super) struct Running {
    /// The process of the program; `None` if only a namespace is protected.
    pub(super) program: Option<u32>,
    pub(super) agent: Agent,
    pub(super) helper: Helper,
    /// Whether only this helper can answer the program's calls that connect.
    pub(super) needs_helper: bool,
}
