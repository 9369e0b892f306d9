//! Two connections with a virtual clock.

mod collisions;
mod opening;
mod pair;
mod schedules;

pub(in crate::ike) use pair::config;
