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
    /// The tables whose files have other contents than before, such as `[ike.branch]`. An older
    /// agent does not report them.
    #[serde(default)]
    pub new_contents: Vec<String>,
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
        if !self.new_contents.is_empty() {
            let tables = self.new_contents.join(", ");
            text.push_str(&format!("; new contents of the files of {tables}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_contents_of_files_are_reported_if_no_rule_changed() {
        let mut reloaded = Reloaded {
            generation: 2,
            changes: Changes::default(),
            new_contents: Vec::new(),
            warnings: Vec::new(),
            needs_restart: Vec::new(),
        };
        assert_eq!(reloaded.text(), "policy generation 2: no rule changed\n");
        reloaded.new_contents = ["[identity.gw]", "[ike.branch]"].map(str::to_owned).to_vec();
        let files = "; new contents of the files of [identity.gw], [ike.branch]\n";
        assert_eq!(reloaded.text(), format!("policy generation 2: no rule changed{files}"));
        reloaded.changes.changed.push("web".to_owned());
        assert_eq!(reloaded.text(), format!("policy generation 2; changed: web{files}"));
    }

    #[test]
    fn the_answer_of_an_older_agent_has_no_contents_of_files() {
        let text = r#"{ "generation": 2, "changes": { "added": [], "changed": [], "removed": [] },
            "warnings": [], "needs-restart": [] }"#;
        let reloaded: Reloaded = serde_json::from_str(text).unwrap();
        assert_eq!(reloaded.new_contents, [""; 0]);
    }
}
