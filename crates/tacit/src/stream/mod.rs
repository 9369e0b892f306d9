//! The stream lane: what becomes of a connection, stage by stage.
//!
//! ```text
//!   accept ──> admit ──> establish ──> relay ──> account
//!   Arrival    Admitted  Established   Finished
//! ```
//!
//! Each stage consumes what the one before made and knows none after it. [`serve`] has the whole
//! life of a connection on one screen. It runs on one data worker from beginning to end, or on an
//! engine up to its relay.

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
