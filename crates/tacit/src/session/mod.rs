//! What the lanes share about open connections: the table that displays read, the log and counters
//! of their ends, and the reasons of failures.
//!
//! ```text
//!   Opening ──> Connection ── counts ──> ConnectionRecord <── displays, query socket, operator
//!                   │
//!                   └── ends: ConnectionEnd or Failure ──> account: log, audit, counters
//! ```
//!
//! A connection has one writer, the worker that relays it; all others read its
//! [`ConnectionRecord`].

pub mod account;
mod connection;
mod end;
mod failure;
mod quotas;
mod recheck;
mod record;
mod refusals;
mod table;
pub mod tls_control;

pub use connection::{Connection, RefusedFlow};
pub use end::{BrokenSocket, ConnectionEnd};
pub use failure::{Failure, Unreached};
pub use quotas::{ConnectionOpener, QuotaExceeded, QuotaPermit, Quotas};
pub use recheck::{Pass, Peers};
pub use record::{
    Closing, ConnectionRecord, ConnectionSockets, Opening, Proxied, ScopeFacts, Shown, TlsFacts,
};
pub use refusals::{RefusalTable, RefusedName};
pub use table::ConnectionTable;
