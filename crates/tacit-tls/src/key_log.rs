//! Writes key logs in the format of NSS (`SSLKEYLOGFILE`). With a key log, Wireshark can decrypt
//! the recorded packets of a connection.
//!
//! ```text
//! LABEL, client random in hexadecimal, secret in hexadecimal
//! ```

use std::fmt::{self, Write as _};

/// One secret of a connection. Its text must only be written to a file that an operator names:
/// `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyLogLine(String);

impl KeyLogLine {
    /// Formats the line of a secret.
    pub(crate) fn new(label: &str, client_random: &[u8], secret: &[u8]) -> Self {
        let mut line = label.to_owned();
        for bytes in [client_random, secret] {
            line.push(' ');
            for byte in bytes {
                // Writing to a string cannot fail.
                let _ = write!(line, "{byte:02x}");
            }
        }
        line.push('\n');
        Self(line)
    }

    /// Takes a secret of another protocol, in a format of its own.
    #[must_use]
    pub fn of_text(mut line: String) -> Self {
        line.push('\n');
        Self(line)
    }

    /// Returns the line with its line end.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeyLogLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyLogLine(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_format_of_nss_and_is_hidden_elsewhere() {
        let line = KeyLogLine::new("CLIENT_RANDOM", &[0, 0xab], &[0x10]);
        assert_eq!(line.text(), "CLIENT_RANDOM 00ab 10\n");
        assert_eq!(format!("{line:?}"), "KeyLogLine(hidden)");
    }
}
