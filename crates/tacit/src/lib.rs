//! The agent and its command line.
#![forbid(unsafe_code)]

pub mod ca;
pub mod tls;
