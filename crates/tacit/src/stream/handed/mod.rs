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
//! The agent keeps no duplicate of the socket, because otherwise the program could not close its
//! connection. So the agent gets the counters from the kernel (`sock_diag`).
//!
//! Limits: `judge::PENDING_MAX` sockets for which the helper has not reported a result.

mod judge;
mod table;

pub use judge::ConnectJudge;
pub use table::HandedConnections;
