//! Requests sockets from `tacit link serve`, for programs under `tacit run` that have no network.
//! The module [`protocol`] defines the messages that agents and link servers exchange. The module
//! [`choice`] chooses the link of a run.

pub mod choice;
pub mod client;
pub mod protocol;
