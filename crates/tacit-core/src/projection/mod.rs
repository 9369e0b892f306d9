//! What something would cost: arithmetic on CPU time that was measured.
//!
//! ```text
//!   ledger of    ──> Costs ──> project(costs, question) ──> before and after,
//!   an interval                engines, traffic, rules      by component and place
//! ```
//!
//! Everything is linear: half the traffic costs half. That holds for CPU time per connection, per
//! message and per byte as long as sizes stay as they were, and it is why measured figures are
//! scaled and none from another machine is used. The one thing that is not linear is an engine
//! that is full: what does not fit spills ([`land`]).
//!
//! Units: CPU time in microseconds, and in per cent of *one* CPU over an interval, so that two busy
//! CPUs are 200 %. A megabyte is 10^6 bytes.
//!
//! Not here: latencies, which queues make; and caches that several CPUs take from each other.

mod arithmetic;
mod costs;
mod model;

pub use arithmetic::{
    CpuReading, EngineSplit, RateAtUtilisation, land, of_whole, rate_per_utilisation,
};
pub use costs::{Components, MeasuredCosts, MeasuredRuleCosts, PlaceCosts};
pub use model::{
    CpuLoad, Projection, ProjectionError, ProjectionRequest, RuleChange, UnitCosts, project,
};
