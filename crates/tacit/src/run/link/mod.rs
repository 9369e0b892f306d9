//! Requests sockets from `tacit link serve`, for the side of a link that has no network. The module
//! [`protocol`] defines the messages of both sides, and [`choice`] which link a run uses.

pub mod choice;
pub mod client;
pub mod protocol;
