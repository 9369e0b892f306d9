//! Tests IKE connections: two connections exchange messages, and the clock is virtual.

mod choice;
mod collisions;
mod forged;
mod fragments;
mod liveness;
mod moves;
mod opening;
mod pair;
mod refusals;
mod schedules;
mod signatures;
mod sleep;
mod values;

pub(in crate::ike) use pair::config;
