//! The stream lane: a connection passes through these stages.
//!
//! ```text
//!   accept ──> admit ──> establish ──> relay ──> account
//!   Arrival    Admitted  Established   Finished
//! ```
//!
//! Each stage takes by value what the stage before made, and knows none of the later stages.
//! [`serve`] has the whole life of a connection. It runs on one data worker from beginning to end,
//! or on an engine up to the relay.

mod bulk;
pub mod data;
pub mod lane;
pub mod limiter;
pub mod relay_kind;
pub mod scratch;
pub mod stage;

mod admit;
pub mod intercept;

mod dial;
pub mod establish;
mod header;
mod starttls_driver;

pub mod relay;

pub mod serve;
