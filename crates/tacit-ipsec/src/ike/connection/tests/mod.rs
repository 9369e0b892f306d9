//! Two connections with a virtual clock.

mod collisions;
mod opening;
mod pair;
mod schedules;
mod signatures;

pub(in crate::ike) use pair::config;
