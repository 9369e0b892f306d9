//! Passes sockets of the agent's network namespace to programs under `tacit run`, for connections
//! that a rule permits. The bytes of these connections then do not pass through the agent. This
//! module also logs and counts these connections.
//!
//! ```text
//!   helper ── question ──> judge ── the rule permits, path = "auto" ──> new socket ──> helper
//!          ── started ───> record in the table of connections
//!   kernel ── socket destroyed, with its counters ──> end of the record
//! ```
//!
//! The agent keeps no duplicate of the socket. A duplicate would keep the connection open after the
//! program has closed its socket. So the agent gets the byte counters from the kernel
//! (`sock_diag`).
//!
//! Limits: at most `judge::PENDING_MAX` sockets wait for a result from the helper. The kernel may
//! report a destroyed socket before the agent knows the connection of this socket. The agent stores
//! at most `early::UNKNOWN_MAX` of these reports.

mod early;
mod judge;
mod table;

pub use judge::ConnectJudge;
pub use table::HandedConnections;
