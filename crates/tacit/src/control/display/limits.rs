//! Defines the content of `tacit show limits`: the limits of the agent and their current use.

use serde::{Deserialize, Serialize};

/// The limits of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LimitsDisplay {
    /// The version of this format.
    pub version: u32,
    /// Each limit.
    pub limits: Vec<LimitDisplay>,
}

/// One limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LimitDisplay {
    /// The name of the limit; the key in `[limits]` if the policy sets it.
    pub name: String,
    /// The limit.
    pub max: LimitValue,
    /// How much of it is in use; `None`: this is not counted.
    pub used: Option<u64>,
    /// What happens when the limit is exceeded.
    pub beyond: Option<String>,
}

/// The value of a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LimitValue {
    /// There is no limit.
    None,
    /// A number.
    Number(u64),
    /// What the sandbox permits.
    Text(String),
}

impl LimitDisplay {
    /// A limit whose use is not counted.
    #[must_use]
    pub fn new(name: &str, max: impl Into<LimitValue>) -> Self {
        Self { name: name.to_owned(), max: max.into(), used: None, beyond: None }
    }

    /// How much is in use.
    #[must_use]
    pub fn used(self, used: impl TryInto<u64>) -> Self {
        Self { used: used.try_into().ok(), ..self }
    }

    /// Sets what happens when the limit is exceeded.
    #[must_use]
    pub fn beyond(self, beyond: &str) -> Self {
        Self { beyond: Some(beyond.to_owned()), ..self }
    }
}

impl From<usize> for LimitValue {
    fn from(value: usize) -> Self {
        Self::Number(u64::try_from(value).unwrap_or(u64::MAX))
    }
}

impl From<u32> for LimitValue {
    fn from(value: u32) -> Self {
        Self::Number(value.into())
    }
}

impl From<&str> for LimitValue {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for LimitValue {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl<T: Into<Self>> From<Option<T>> for LimitValue {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::None, Into::into)
    }
}
