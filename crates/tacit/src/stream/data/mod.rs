//! FTP data connections. A control connection announces each one and opens a listener for it; it is
//! then a connection of its own, under the rule of its control connection.

mod listener;
mod pending;

pub use listener::{DataListener, OpenListener};
pub use pending::{ARRIVAL_WAIT_MAX, DATA_CONNECTIONS_MAX, PendingDataConnection, ftp_of};
