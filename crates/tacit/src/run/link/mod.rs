//! Requests sockets from `tacit link serve`, for programs on the side without a network. The module
//! [`protocol`] defines the messages between the two sides of a link. The module [`choice`] chooses
//! the link of a run.

pub mod choice;
pub mod client;
pub mod protocol;
