//! Measures how long `tacit agent --host` takes to install policies of several sizes. With
//! `--host`, one policy applies to all programs of the host.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use tacit_core::statistics::median;

use super::policies;
use super::world::World;

/// The sizes of the policies, in rules.
pub(super) const RULES: [u32; 3] = [10, 1000, 10_000];

/// What an installation took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Installation {
    /// From the start of the agent until the host is captured.
    elapsed_ms: f64,
    /// CPU time of supervisor, agent, signer and helper.
    cpu_ms: f64,
    /// Resident memory of these processes; shared pages count in each.
    resident_mb: f64,
}

/// Installs a policy with this many rules, and removes it.
pub(super) fn sample(world: &World, rules: u32) -> Result<Installation, String> {
    let policy = policies::rules(rules);
    let begin = Instant::now();
    let agent = world.capture(&policy)?;
    let elapsed_ms = begin.elapsed().as_secs_f64() * 1000.0;
    let cpu_ms = agent.cpu_ns()? as f64 / 1_000_000.0;
    let resident_mb = agent.resident_bytes(None)? as f64 / f64::from(1 << 20);
    world.remove_capture(agent)?;
    Ok(Installation { elapsed_ms, cpu_ms, resident_mb })
}

/// All installations.
#[derive(Debug, Default)]
pub(super) struct Installed(BTreeMap<u32, Vec<Installation>>);

impl Installed {
    pub(super) fn add(&mut self, rules: u32, one: Installation) {
        self.0.entry(rules).or_default().push(one);
    }
}

impl fmt::Display for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "installing")?;
        writeln!(f, "{:>10}  {:>12}  {:>8}  {:>7}", "rules", "captured ms", "cpu ms", "rss MB")?;
        for (rules, all) in &self.0 {
            let of = |figure: fn(&Installation) -> f64| {
                median(&all.iter().map(figure).collect::<Vec<_>>())
            };
            writeln!(
                f,
                "{rules:>10}  {:>12.1}  {:>8.1}  {:>7.1}",
                of(|one| one.elapsed_ms),
                of(|one| one.cpu_ms),
                of(|one| one.resident_mb)
            )?;
        }
        Ok(())
    }
}
