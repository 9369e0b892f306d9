//! Passes sockets of the agent's network namespace to programs under `tacit run`, for connections
//! that a rule permits. The bytes of these connections then do not pass through the agent. This
//! module also logs and counts these connections.
//!
//! ```text
//!   helper ── may the program connect? ──> `judge` ── yes, path = "auto" ──> socket ──> helper
//!          ── the program has the socket ──> the agent records the connection
//!   kernel ── the socket is destroyed; its byte counters ──> the record ends
//! ```
//!
//! The agent keeps no duplicate of the socket. A duplicate would keep the connection open after the
//! program has closed its socket. So the agent gets the byte counters from the kernel
//! (`sock_diag`). The kernel's reports about destroyed sockets pause while no connection needs
//! them.
//!
//! Limits: at most `judge::PENDING_MAX` sockets are pending. A socket is pending while a link opens
//! it, or until the helper reports whether the program has it. The kernel may report that a socket
//! is destroyed before the agent knows this socket. The agent stores at most `early::UNKNOWN_MAX`
//! of these reports.

mod early;
mod judge;
mod reports;
mod table;

pub use judge::ConnectJudge;
pub use table::HandedConnections;
