//! Serves the FTP data connections that are announced on the control connection.
//!
//! The relay of the control connection opens a listener for each announced data connection. The
//! data connection is then served like other connections, under the rule of its control connection.

mod listener;
mod pending;

pub use listener::{DataListener, OpenListener};
pub use pending::{ARRIVAL_WAIT_MAX, DATA_CONNECTIONS_MAX, PendingDataConnection, ftp_of};
