//! Defines the input of a projection: the CPU times of an interval, measured for each rule and each
//! kind of work. A projection estimates the CPU cost of a change.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::meter::Component;

/// CPU time by kind of CPU; the three parts are disjoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlaceCosts {
    /// The time on general CPUs for work that is not eligible for engines.
    pub general: f64,
    /// The time on engines.
    pub engine: f64,
    /// The time on general CPUs for work that an engine could have done.
    pub eligible: f64,
}

/// The CPU time by component; missing components count as zero.
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
    /// The CPU time of the process.
    pub agent_us: f64,
    /// The part of it that is in no cell.
    pub uncaptured_us: f64,
    /// The CPU time of the programs that it serves, as far as it is known.
    pub programs_us: f64,
    /// The parts by rule, and the agent's own part.
    pub rules: Vec<MeasuredRuleCosts>,
}

/// Whose CPU time a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostsOwner {
    /// The agent itself, or rules that were removed. It does not change with the traffic.
    Agent,
    /// The packets of IPsec tunnels.
    Packets,
    /// A rule.
    Rule,
}

/// The part of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRuleCosts {
    /// The name of the rule or of the row.
    pub name: String,
    /// Whose part it is.
    pub owner: CostsOwner,
    /// Connections opened.
    pub connections: u64,
    /// Handshakes that succeeded.
    pub handshakes: u64,
    /// The number of messages. A message is all bytes in one direction before the next byte in the
    /// other direction.
    pub messages: u64,
    /// The payload received from the downstream socket, in bytes.
    pub sent_bytes: u64,
    /// The payload sent to the downstream socket, in bytes.
    pub received_bytes: u64,
    /// The CPU time in microseconds.
    pub cpu_us: Components,
}

impl PlaceCosts {
    /// Returns the sum of the parts.
    #[must_use]
    pub fn total(self) -> f64 {
        self.general + self.engine + self.eligible
    }

    /// Multiplies every part by a factor.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            general: self.general * factor,
            engine: self.engine * factor,
            eligible: self.eligible * factor,
        }
    }

    /// Adds two costs.
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

    /// Returns the sum of all components.
    #[must_use]
    pub fn total(&self) -> PlaceCosts {
        self.0.values().fold(PlaceCosts::default(), |sum, cell| sum.plus(*cell))
    }

    /// Returns the same components with every cell changed.
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
    /// Returns the part of one rule.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&MeasuredRuleCosts> {
        self.rules.iter().find(|rule| rule.is_rule() && rule.name == name)
    }

    /// Converts microseconds to per cent of one CPU.
    #[must_use]
    pub fn percent(&self, us: f64) -> f64 {
        if self.interval_s > 0.0 { us / (self.interval_s * 1e4) } else { 0.0 }
    }
}

impl MeasuredRuleCosts {
    /// Whether it is the part of a rule.
    #[must_use]
    pub fn is_rule(&self) -> bool {
        self.owner == CostsOwner::Rule
    }

    /// Whether the rule used TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        [Component::Handshake, Component::Seal, Component::Open]
            .into_iter()
            .any(|component| self.cpu_us.of(component).total() > 0.0)
    }

    /// Returns the mean length of a message in bytes; `None` if there were no messages.
    #[must_use]
    pub fn message_bytes(&self) -> Option<f64> {
        let bytes = (self.sent_bytes + self.received_bytes) as f64;
        (self.messages > 0).then(|| bytes / self.messages as f64)
    }
}
