//! Defines the type of an error text for operators. The text has two parts: what is wrong, and what
//! to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is wrong and what to do. Displays as one line, with `; ` between the two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultText {
    /// What is wrong.
    pub message: String,
    /// What to do, if the message does not say it.
    pub fix: Option<String>,
}

impl FaultText {
    /// The same with words before the message.
    #[must_use]
    pub fn prefixed(self, words: impl fmt::Display) -> Self {
        Self { message: format!("{words}: {}", self.message), fix: self.fix }
    }
}

impl From<&str> for FaultText {
    fn from(message: &str) -> Self {
        Self { message: message.to_owned(), fix: None }
    }
}

impl From<String> for FaultText {
    fn from(message: String) -> Self {
        Self { message, fix: None }
    }
}

impl fmt::Display for FaultText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.fix.as_ref().map_or(Ok(()), |fix| write!(f, "; {fix}"))
    }
}
