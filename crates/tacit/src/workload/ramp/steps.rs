//! Stores the measured steps of the `ramp` workload.

use tacit_core::statistics::Histogram;

use super::super::clocks::CpuUsage;

/// The steps of one ramp.
pub(super) type Ramp = Vec<Step>;

/// The ramps of one route.
#[derive(Debug)]
pub(super) struct RouteResults {
    pub(super) route: String,
    pub(super) ramps: Vec<Ramp>,
    pub(super) latency: Histogram,
}

/// The connections that one step opened, and the CPU time that it used.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) held: usize,
    pub(super) opened: usize,
    pub(super) used: CpuUsage,
}

impl Step {
    /// The number of open connections in the middle of the step.
    pub(super) fn middle(&self) -> f64 {
        self.held as f64 + self.opened as f64 / 2.0
    }

    /// CPU time per connection that the step opened.
    pub(super) fn us(&self, of: impl Fn(&CpuUsage) -> u64) -> f64 {
        of(&self.used) as f64 / 1000.0 / self.opened as f64
    }
}
