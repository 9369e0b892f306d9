//! The secret that proves a successor: the supervisor makes it, and gives it to the agents that it
//! starts over the channel that it has to each of them. No file, no argument and no variable holds
//! it.

use std::fmt::{self, Write as _};
use std::io;

use rustix::rand::{GetRandomFlags, getrandom};

const BYTES: usize = 32;
/// Its length on the channel: hexadecimal digits.
pub const TEXT_BYTES: usize = 2 * BYTES;

/// What only a supervisor and its agents know.
#[derive(Clone)]
pub struct SuccessorSecret([u8; BYTES]);

impl fmt::Debug for SuccessorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SuccessorSecret")
    }
}

impl SuccessorSecret {
    /// A new one.
    ///
    /// # Errors
    /// The kernel gives no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        // So few bytes come whole.
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        Ok(Self(bytes))
    }

    /// As it is said.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Reads what [`to_text`](Self::to_text) made; `None`: it is not that.
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

    /// Whether a client knows it; takes as long wherever the two differ.
    #[must_use]
    pub fn is_known_by(&self, said: &str) -> bool {
        let Some(Self(said)) = Self::from_text(said) else { return false };
        self.0.iter().zip(said).fold(0, |differs, (own, other)| differs | (own ^ other)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_its_own_text_alone() {
        let secret = SuccessorSecret::new().unwrap();
        let text = secret.to_text();
        assert!(secret.is_known_by(&text));
        assert!(!SuccessorSecret::new().unwrap().is_known_by(&text));
        for wrong in ["", &text[1..], &text.replace(|_| true, "g"), &format!("{text}0")] {
            assert!(!secret.is_known_by(wrong), "{wrong}");
        }
        assert_eq!(format!("{secret:?}"), "SuccessorSecret");
    }
}
