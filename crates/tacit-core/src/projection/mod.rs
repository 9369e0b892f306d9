//! Estimates the CPU cost of a change, such as more traffic or an additional engine, from measured
//! CPU time.
//!
//! ```text
//!   ledger of    ──> MeasuredCosts ──> project(costs, request) ──> before and after,
//!   an interval                         engines, traffic, rules    by component and CPU
//! ```
//!
//! The model is linear: half the traffic costs half as much. This is true for CPU time per
//! connection, per message and per byte as long as sizes do not change. So measured figures are
//! scaled, and no figures of another machine are used. Only a saturated engine is not linear: its
//! excess work spills ([`land`]).
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
