//! Defines the agent's answers to commands such as reload, drain and close. Formats these answers
//! as text and as JSON.

use serde::{Deserialize, Serialize};

use crate::live::Changes;

/// `tacit reload` has installed a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Reloaded {
    /// Counts the policies that the agent has installed, from 1.
    pub generation: u64,
    /// The rules in which it differs from the policy before.
    pub changes: Changes,
    /// Warnings about the policy, as they are printed.
    pub warnings: Vec<String>,
    /// Tables that have changed and take effect at the next start.
    pub needs_restart: Vec<String>,
}

/// `tacit confirm` keeps the installed policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Confirmed {
    /// Whether the policy waited for that.
    pub has_waited: bool,
    /// Warnings, as they are printed. An older agent has none.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// `tacit drain` and `tacit restart`: the agent accepts no more connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draining {
    /// The connections that are still open.
    pub open: usize,
}

/// `tacit close` has closed connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closed {
    /// The numbers of the connections.
    pub closed: Vec<u64>,
    /// Numbers of the request that no open connection has.
    pub unknown: Vec<u64>,
}

impl Confirmed {
    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let text = match self.has_waited {
            true => "the agent keeps the installed policy, because you have confirmed it\n",
            false => "the installed policy needs no confirmation\n",
        };
        let warnings = self.warnings.iter().map(|warning| format!("{warning}\n"));
        std::iter::once(text.to_owned()).chain(warnings).collect()
    }
}

impl Reloaded {
    /// Formats the result as text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("policy generation {}", self.generation);
        if self.changes.is_empty() {
            text.push_str(": no rule changed");
        }
        let Changes { added, changed, removed } = &self.changes;
        for (kind, names) in [("added", added), ("changed", changed), ("removed", removed)] {
            if !names.is_empty() {
                text.push_str(&format!("; {kind}: {}", names.join(", ")));
            }
        }
        text.push('\n');
        for warning in &self.warnings {
            text.push_str(&format!("{warning}\n"));
        }
        for part in &self.needs_restart {
            text.push_str(&format!(
                "{part} changed, but a reload cannot apply this change: run `tacit restart`\n"
            ));
        }
        text
    }
}
