//! The stream lane: what becomes of a connection, stage by stage.
//!
//! ```text
//!   intercept ──> connection ──> secure ──> relay ──> account
//!   Arrival       Connection     Secured    Finished
//! ```
//!
//! Each stage consumes what the one before made and knows none after it. [`start`] begins the
//! whole life of a connection, which runs on one data worker from beginning to end, or on an engine
//! up to its relay.

pub mod intercept;
pub mod leg;

pub mod asked;
pub mod connection;
pub mod gate;

mod dial;
mod header;
pub mod secure;
mod talk;

pub mod relay;

mod data;

pub mod account;

mod serve;
pub use serve::{Begun, Place, Worker, go_on, start, start_data};
