//! Requests sockets from `tacit link serve`, for the side of a link that has no network. The module
//! [`protocol`] defines the messages between the two sides. The module [`choice`] chooses the link
//! of a run.

pub mod choice;
pub mod client;
pub mod protocol;
