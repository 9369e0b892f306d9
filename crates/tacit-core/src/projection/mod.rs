//! Projects the CPU cost of a change from measured CPU time.
//!
//! ```text
//!   ledger of    ──> MeasuredCosts ──> project(costs, request) ──> before and after,
//!   an interval                         engines, traffic, rules    by component and CPU
//! ```
//!
//! Everything is linear: half the traffic costs half. That holds for CPU time per connection, per
//! message and per byte if sizes do not change, so measured figures are scaled, and none from
//! another machine is used. Only a full engine is not linear: the excess spills ([`land`]).
//!
//! Units: CPU time in microseconds, and in per cent of *one* CPU over an interval, so that two busy
//! CPUs are 200 %. A megabyte is 10^6 bytes.
//!
//! Not modelled: latencies, and cache effects between CPUs.

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
