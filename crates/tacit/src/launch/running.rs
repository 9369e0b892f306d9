//! Defines the state of the launcher (`tacit run`) while the program runs: the program, the agent
//! and the helper.

use std::process::Child;

use super::agent::Agent;
use super::enter::Helper;

/// A running program, with the agent and helper that end with it.
pub(super) struct Running {
    pub(super) child: Child,
    pub(super) agent: Agent,
    pub(super) helper: Helper,
}
