//! Computes how work is divided between engines (threads on reserved CPUs) and other CPUs. Also
//! computes how the total CPU time changes if one kind of work becomes cheaper or more expensive.
//!
//! These computations also apply to mainframes with special-purpose CPUs, so the tests use
//! published measurements of mainframes.

/// The CPU time of an interval, in per cent of one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuReading {
    /// The time on general CPUs, including work that is eligible for engines.
    pub general: f64,
    /// The part of this time that could have run on an engine.
    pub eligible: f64,
    /// The time on engines.
    pub engine: f64,
}

impl CpuReading {
    /// Returns the load of each general CPU.
    #[must_use]
    pub fn per_cpu(self, cpus: u32) -> f64 {
        self.general / f64::from(cpus.max(1))
    }
}

/// Where eligible work runs, in per cent of one CPU.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineSplit {
    /// The work on engines.
    pub on_engines: f64,
    /// The work on general CPUs, because the engines are saturated.
    pub spilled: f64,
}

impl EngineSplit {
    /// Returns the share of eligible work that engines take, from 0 to 1.
    #[must_use]
    pub fn share(self) -> f64 {
        let all = self.on_engines + self.spilled;
        if all > 0.0 { self.on_engines / all } else { 0.0 }
    }
}

/// Assigns eligible work to engines until they are saturated. The excess work spills.
///
/// `capacity` is what one engine can use for this work: 100 minus its unmetered work. The model
/// treats work as a continuous flow: below saturation nothing spills, although bursts do in
/// reality.
#[must_use]
pub fn land(eligible: f64, engines: u32, capacity: f64) -> EngineSplit {
    let on_engines = eligible.min(f64::from(engines) * capacity).max(0.0);
    EngineSplit { on_engines, spilled: eligible - on_engines }
}

/// Returns the number of engines that do this work if none is busier than `utilisation`, in per
/// cent of one CPU.
#[must_use]
pub fn engines_needed(eligible: f64, utilisation: f64) -> u32 {
    (0..ENGINES_MAX)
        .find(|&count| f64::from(count) * utilisation >= eligible)
        .unwrap_or(ENGINES_MAX)
}

/// More CPUs than any machine has.
const ENGINES_MAX: u32 = 65_536;

/// Returns the relative change of the whole (0.61 is +61 %) for a relative change of a part;
/// `share` is the part's share of the whole before the change.
#[must_use]
pub fn of_whole(change: f64, share: f64) -> f64 {
    change * share
}

/// A rate and the utilisation at which it was reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateAtUtilisation {
    /// The rate, in work per time.
    pub rate: f64,
    /// The utilisation of the machine at that rate.
    pub utilisation: f64,
}

/// Returns the ratio of rate to utilisation after a change, compared with before: the gain of a
/// change on a machine with other work, even if something else limited the rates.
#[must_use]
pub fn rate_per_utilisation(before: RateAtUtilisation, after: RateAtUtilisation) -> f64 {
    (after.rate / after.utilisation) / (before.rate / before.utilisation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, wanted: f64, off: f64) {
        assert!((found - wanted).abs() <= off, "{found} is not {wanted}");
    }

    /// Two general CPUs and no engine.
    const NONE: CpuReading = CpuReading { general: 113.76, eligible: 105.17, engine: 0.0 };
    /// The same work with one engine, without the work that is not eligible.
    const ONE: CpuReading = CpuReading { general: 7.78, eligible: 7.78, engine: 95.13 };

    #[test]
    fn without_engines_nearly_all_is_eligible_and_the_rest_is_the_difference() {
        near(NONE.per_cpu(2), 56.88, 1e-9);
        let eligible = CpuReading { general: NONE.eligible, ..NONE };
        near(eligible.per_cpu(2), 52.59, 0.006);
    }

    #[test]
    fn one_engine_is_full_and_what_spills_is_what_was_measured() {
        let landed = land(ONE.engine + ONE.eligible, 1, 95.13);
        near(landed.on_engines, 95.13, 1e-9);
        near(landed.spilled, 7.78, 1e-9);
        near(ONE.per_cpu(2), 3.89, 1e-9);
        near(landed.share(), 0.924, 0.001);
        let before = CpuReading { general: NONE.eligible, ..NONE }.per_cpu(2);
        near(before - ONE.per_cpu(2), 48.7, 0.01);
    }

    #[test]
    fn the_projected_limits_bracket_the_measurement() {
        // If the engine could be used fully, at least five per cent spill. With its real capacity,
        // at most ten per cent spill.
        let best = land(NONE.eligible, 1, 100.0);
        let worst = land(NONE.eligible, 1, 95.13);
        near(best.spilled, 5.17, 1e-9);
        near(worst.spilled, 10.04, 1e-9);
        assert!(best.spilled < ONE.eligible && ONE.eligible < worst.spilled);
        near(land(NONE.eligible, 2, 95.13).spilled, 0.0, 1e-9);
    }

    #[test]
    fn a_more_expensive_part_raises_the_whole_by_its_share() {
        for (change, share, whole) in [(0.61, 0.08, 5.0), (0.13, 0.30, 4.0), (0.45, 0.30, 14.0)] {
            assert_eq!((of_whole(change, share) * 100.0).round(), whole, "{change} of {share}");
        }
    }

    #[test]
    fn rates_are_compared_for_each_unit_of_utilisation() {
        let at = |rate, utilisation| RateAtUtilisation { rate, utilisation };
        near(rate_per_utilisation(at(43_579.0, 61.9), at(58_247.0, 64.4)), 1.285, 5e-4);
        near(rate_per_utilisation(at(39_267.0, 31.2), at(50_740.0, 28.8)), 1.400, 5e-4);
    }

    #[test]
    fn engines_are_needed_for_eligible_work_at_the_target() {
        for (eligible, utilisation, wanted) in
            [(0.0, 80.0, 0), (80.0, 80.0, 1), (105.17, 100.0, 2), (105.17, 50.0, 3)]
        {
            assert_eq!(engines_needed(eligible, utilisation), wanted, "{eligible}");
        }
        assert_eq!(engines_needed(1.0, 0.0), ENGINES_MAX);
    }

    #[test]
    fn nothing_lands_where_there_is_nothing() {
        assert_eq!(land(0.0, 3, 99.0), EngineSplit { on_engines: 0.0, spilled: 0.0 });
        assert_eq!(land(5.0, 0, 99.0), EngineSplit { on_engines: 0.0, spilled: 5.0 });
        assert_eq!(land(0.0, 0, 99.0).share(), 0.0);
    }
}
