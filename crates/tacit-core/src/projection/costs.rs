//! What was measured: the ledger of an interval.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::meter::Component;

/// CPU time by place. Each stands in one place only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PlaceCosts {
    /// On general CPUs, and belongs there.
    pub general: f64,
    /// On engines.
    pub engine: f64,
    /// On general CPUs, though an engine could have done it.
    pub eligible: f64,
}

/// CPU time by component and place; what is not there is nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Components(BTreeMap<Component, PlaceCosts>);

/// What an agent spent in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredCosts {
    /// How long it was, in seconds.
    pub interval_s: f64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// What the process spent.
    pub agent_us: f64,
    /// What of it stands in no cell.
    pub uncaptured_us: f64,
    /// What the programs spent whose connections it carries, as far as that is known.
    pub programs_us: f64,
    /// By rule, and what belongs to none.
    pub rules: Vec<MeasuredRuleCosts>,
}

/// One rule's part.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRuleCosts {
    /// Its name, or what else the row is.
    pub name: String,
    /// Whether it is a rule: the agent's own part is not.
    pub is_rule: bool,
    /// Connections opened.
    pub connections: u64,
    /// Handshakes that succeeded.
    pub handshakes: u64,
    /// Uninterrupted runs of bytes in one direction.
    pub messages: u64,
    /// Payload from the side that was accepted.
    pub sent_bytes: u64,
    /// Payload to it.
    pub received_bytes: u64,
    /// CPU time in microseconds.
    pub cpu_us: Components,
}

impl PlaceCosts {
    /// In all places.
    #[must_use]
    pub fn total(self) -> f64 {
        self.general + self.engine + self.eligible
    }

    /// So many times as much, everywhere.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self {
            general: self.general * factor,
            engine: self.engine * factor,
            eligible: self.eligible * factor,
        }
    }

    /// Both.
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
    /// One component's.
    #[must_use]
    pub fn of(&self, component: Component) -> PlaceCosts {
        self.0.get(&component).copied().unwrap_or_default()
    }

    /// Replaces one component's.
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
    /// One rule's part.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&MeasuredRuleCosts> {
        self.rules.iter().find(|rule| rule.is_rule && rule.name == name)
    }

    /// What so many microseconds are, in per cent of one CPU.
    #[must_use]
    pub fn percent(&self, us: f64) -> f64 {
        if self.interval_s > 0.0 { us / (self.interval_s * 1e4) } else { 0.0 }
    }
}

impl MeasuredRuleCosts {
    /// Whether TLS was spoken.
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
