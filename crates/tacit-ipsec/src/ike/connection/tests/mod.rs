//! Two connections with a virtual clock.

mod collisions;
mod opening;
mod pair;
mod schedules;
