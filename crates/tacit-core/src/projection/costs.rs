//! Defines the input of a projection: the CPU time that was measured in an interval.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::meter::Component;

/// CPU time by kind of CPU; the three parts are disjoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlaceCosts {
    /// On general CPUs, not eligible for engines.
    pub general: f64,
    /// On engines.
    pub engine: f64,
    /// On general CPUs, although an engine could have done it.
    pub eligible: f64,
}

/// CPU time by component; missing components are zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Components(BTreeMap<Component, PlaceCosts>);

/// The CPU time of an agent in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredCosts {
    /// The length of the interval in seconds.
    pub interval_s: f64,
    /// The number of CPUs of the machine.
    pub cpus: u32,
    /// CPU time of the process.
    pub agent_us: f64,
    /// The part that is in no cell.
    pub uncaptured_us: f64,
    /// CPU time of the programs that it serves, as far as known.
    pub programs_us: f64,
    /// By rule, and the agent's own part.
    pub rules: Vec<MeasuredRuleCosts>,
}

/// The part of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRuleCosts {
    /// The name of the rule or of the row.
    pub name: String,
    /// Whether it is a rule: the agent's own part is not.
    pub is_rule: bool,
    /// Connections opened.
    pub connections: u64,
    /// Handshakes that succeeded.
    pub handshakes: u64,
    /// Uninterrupted runs of bytes in one direction.
    pub messages: u64,
    /// Payload from the downstream socket.
    pub sent_bytes: u64,
    /// Payload to the downstream socket.
    pub received_bytes: u64,
    /// CPU time in microseconds.
    pub cpu_us: Components,
}

impl PlaceCosts {
    /// The sum.
    #[must_use]
    pub fn total(self) -> f64 {
        self.general + self.engine + self.eligible
    }

    /// Multiplies every part.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            general: self.general * factor,
            engine: self.engine * factor,
            eligible: self.eligible * factor,
        }
    }

    /// Adds both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            general: self.general + other.general,
            engine: self.engine + other.engine,
            eligible: self.eligible + other.eligible,
        }
    }
}

impl Components {
    /// The CPU time of one component.
    #[must_use]
    pub fn of(&self, component: Component) -> PlaceCosts {
        self.0.get(&component).copied().unwrap_or_default()
    }

    /// Sets the CPU time of one component.
    pub fn set(&mut self, component: Component, cell: PlaceCosts) {
        self.0.insert(component, cell);
    }

    /// All components together.
    #[must_use]
    pub fn total(&self) -> PlaceCosts {
        self.0.values().fold(PlaceCosts::default(), |sum, cell| sum.plus(*cell))
    }

    /// The same with every cell changed.
    #[must_use]
    pub fn map(&self, change: impl Fn(Component, PlaceCosts) -> PlaceCosts) -> Self {
        Self(
            Component::ALL
                .map(|component| (component, change(component, self.of(component))))
                .into(),
        )
    }
}

impl MeasuredCosts {
    /// The part of one rule.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&MeasuredRuleCosts> {
        self.rules.iter().find(|rule| rule.is_rule && rule.name == name)
    }

    /// Converts microseconds to per cent of one CPU.
    #[must_use]
    pub fn percent(&self, us: f64) -> f64 {
        if self.interval_s > 0.0 { us / (self.interval_s * 1e4) } else { 0.0 }
    }
}

impl MeasuredRuleCosts {
    /// Whether it used TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        [Component::Handshake, Component::Seal, Component::Open]
            .into_iter()
            .any(|component| self.cpu_us.of(component).total() > 0.0)
    }

    /// The mean length of a message, in bytes; `None` without any.
    #[must_use]
    pub fn message_bytes(&self) -> Option<f64> {
        let bytes = (self.sent_bytes + self.received_bytes) as f64;
        (self.messages > 0).then(|| bytes / self.messages as f64)
    }
}
