//! Defines the secret by which the running agent recognises an agent that the supervisor has
//! started.
//!
//! The supervisor generates the secret, and sends it to each agent over a private channel. The
//! secret is never in a file, an argument or an environment variable.

use std::fmt;
use std::io;

use tacit_tls::facts::hex;

use crate::random;

const BYTES: usize = 32;
/// The length of the secret on the channel, in hexadecimal digits.
pub const TEXT_BYTES: usize = 2 * BYTES;

/// A secret that only a supervisor and its agents know.
#[derive(Clone)]
pub struct SuccessorSecret([u8; BYTES]);

impl fmt::Debug for SuccessorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SuccessorSecret")
    }
}

impl SuccessorSecret {
    /// Generates a secret.
    ///
    /// # Errors
    /// The kernel returns no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        random::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// The secret as hexadecimal digits.
    #[must_use]
    pub fn to_text(&self) -> String {
        hex(&self.0)
    }

    /// Parses the output of [`to_text`](Self::to_text); `None` if the text has another form.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut bytes = [0; BYTES];
        if digits.len() != TEXT_BYTES {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// Whether the text is this secret. Compares in constant time.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let Some(Self(other)) = Self::from_text(text) else { return false };
        self.0.iter().zip(other).fold(0, |differs, (own, other)| differs | (own ^ other)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_matches_only_its_own_text() {
        let secret = SuccessorSecret::new().unwrap();
        let text = secret.to_text();
        assert!(secret.matches(&text));
        assert!(!SuccessorSecret::new().unwrap().matches(&text));
        for wrong in ["", &text[1..], &text.replace(|_| true, "g"), &format!("{text}0")] {
            assert!(!secret.matches(wrong), "{wrong}");
        }
        assert_eq!(format!("{secret:?}"), "SuccessorSecret");
    }
}
