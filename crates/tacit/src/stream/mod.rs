//! Serves TCP connections and UNIX stream connections, in five stages:
//!
//! ```text
//!   accept ─────────────> admit ──> establish ──> relay ──> account
//!   AcceptedConnection    Admitted  Established   Finished
//! ```
//!
//! Each stage gets the result of the previous stage. [`serve`] calls the stages in this order.
//! There are two ways to serve a connection. One data worker executes all stages, or an engine (a
//! thread for handshakes) executes the stages before the relay.

mod bulk;
pub mod data;
pub mod lane;
pub mod limiter;
pub mod relay_kind;
pub mod scratch;
pub mod stage;

mod admit;
pub mod intercept;

mod activated;
mod dial;
pub mod establish;
pub mod handed;
mod header;
mod starttls_driver;

pub mod relay;

pub mod serve;
