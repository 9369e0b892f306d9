//! A program that runs, with its agent and its helper.

use std::process::Child;

use super::agent::Agent;
use super::enter::Helper;

/// A program that runs, and what ends with it.
pub(super) struct Running {
    pub(super) child: Child,
    pub(super) agent: Agent,
    pub(super) helper: Helper,
}
