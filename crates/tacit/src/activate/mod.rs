//! Starts the programs of `[activate.NAME]` for the connections of an agent.
//!
//! An agent in its sandbox cannot start programs. So before the agent enters the sandbox and
//! accepts connections, it starts another process, the *starter*.
//!
//! ```text
//!   agent ── programs of the policy, once ──> starter
//!         ── "start NAME" ──────────────────>    ├─ NAME[1] ── its socket
//!         <── the agent's end of the socket ──   └─ NAME[2]
//! ```
//!
//! The first message contains all programs of the policy, and their arguments, users and limits.
//! Later messages contain only the name of one program and the address of the client. So neither a
//! client, nor an agent that a client has compromised, can start anything else. If a new policy
//! changes `[activate.NAME]`, the operator must run `tacit restart`.
//!
//! Some programs serve one connection each, and other programs serve all connections. The starter
//! ends when the agent ends. Then a program that serves one connection reads end of file from its
//! socket. A program that serves all connections gets SIGTERM.

pub mod client;
mod passwd;
mod protocol;
pub mod serve;

/// The hidden command of the starter.
pub const VERB: &str = "starter";
/// The hidden command that executes a program with `LISTEN_FDS`.
pub const EXEC_VERB: &str = "listen-fds";
