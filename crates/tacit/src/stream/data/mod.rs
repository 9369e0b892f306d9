//! Serves the data connections of FTP.
//!
//! The relay of a control connection opens a listener for each data connection that FTP commands
//! announce. The data connection is then served like any other, under the rule of its control
//! connection.

mod listener;
mod pending;

pub use listener::{DataListener, OpenListener};
pub use pending::{ARRIVAL_WAIT_MAX, DATA_CONNECTIONS_MAX, PendingDataConnection, ftp_of};
