//! Stores the records of open connections and datagram flows. When a connection or flow opens,
//! fails or ends, this module writes the log, the audit log and the counters.
//!
//! ```text
//!   Opening ──> Connection ── counts ──> ConnectionRecord <── tacit show, query socket, operator
//!                   │
//!                   └── ends: ConnectionEnd or Failure ──> account: log, audit, counters
//! ```
//!
//! Only the worker that relays a connection writes its [`ConnectionRecord`]. Other threads only
//! read the record.

pub mod account;
mod connection;
mod end;
mod failure;
mod quotas;
mod recent_tls;
mod recheck;
mod record;
mod refusals;
mod table;
pub mod tls_control;
pub mod trace;

pub use connection::{Connection, RefusedFlow};
pub use end::{BrokenSocket, ConnectionEnd};
pub use failure::{Failure, Unreached};
pub use quotas::{ConnectionOpener, QuotaExceeded, QuotaPermit, Quotas};
pub use recent_tls::RecentTls;
pub use recheck::{Pass, Peers};
pub use record::{
    Closing, ConnectionPath, ConnectionRecord, ConnectionSockets, CurrentTls, Opening, Proxied,
    ScopeFacts, TlsFacts,
};
pub use refusals::{RefusalTable, RefusedName};
pub use table::ConnectionTable;
