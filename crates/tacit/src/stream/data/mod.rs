//! Data connections: each is agreed on by a control connection, comes in through a door of its own,
//! and is then a connection of its own under the rule of its control connection.

mod door;
mod job;

pub use door::{Door, Listening};
pub use job::{ARRIVAL_WAIT_MAX, DATA_CONNECTIONS_MAX, Job, ftp_of};
