//! Gives programs of runs sockets of the agent's network for connections that a rule permits, and
//! accounts for these connections. The bytes of these connections do not pass through the agent.
//!
//! ```text
//!   helper ── question ──> judge ── the rule permits, path = "auto" ──> new socket ──> helper
//!          ── started ───> record in the table of connections
//!   kernel ── socket destroyed, with its counters ──> end of the record
//! ```
//!
//! The agent keeps no duplicate of the socket. With a duplicate, the program could not close its
//! connection. So the agent reads the counters by socket diagnosis, and a helper resets a
//! connection if that is necessary.
//!
//! Limits: `judge::PENDING_MAX` sockets for which the helper has not reported a result.

mod judge;
mod table;

pub use judge::ConnectJudge;
pub use table::HandedConnections;
