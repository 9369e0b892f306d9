//! Defines the content of `tacit show metrics`: the metrics of the agent as text.

use serde::{Deserialize, Serialize};

/// The metrics of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MetricsDisplay {
    /// The version of this format.
    pub version: u32,
    /// The page that a scraper gets, in the text format of Prometheus.
    pub text: String,
}
