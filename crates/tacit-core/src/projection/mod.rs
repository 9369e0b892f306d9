//! Estimates the CPU cost of a change. Examples are more traffic and an additional engine. Each
//! estimate is computed from measured CPU time.
//!
//! ```text
//!   costs of     ──> MeasuredCosts ──> project(costs, request) ──> before and after,
//!   an interval                         engines, traffic, rules    by component and CPU
//! ```
//!
//! The model is linear: half the traffic costs half as much CPU time, if messages keep their sizes.
//! There is one exception: when an engine (a thread on a reserved CPU) is saturated, other CPUs do
//! the rest of its work ([`land`]). An estimate applies only to the machine on which the CPU time
//! was measured.
//!
//! Units: CPU time in microseconds, or in percent of *one* CPU, so that two busy CPUs are 200 %. A
//! megabyte is 10^6 bytes.

mod arithmetic;
mod costs;
mod model;

pub use arithmetic::{
    CpuReading, EngineSplit, RateAtUtilisation, engines_needed, land, of_whole,
    rate_per_utilisation,
};
pub use costs::{Components, CostsOwner, MeasuredCosts, MeasuredRuleCosts, PlaceCosts};
pub use model::{
    CpuLoad, Projection, ProjectionError, ProjectionRequest, RuleChange, UnitCosts, project,
};
