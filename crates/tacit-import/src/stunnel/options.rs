//! What is kept although it is unsafe, and what is left out.

/// What is kept although it is unsafe, and what is left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Clients that check nothing go on so.
    pub keep_no_verification: bool,
    /// Clients that accept any certificate of their CAs go on so.
    pub keep_no_name_check: bool,
    /// Options about OCSP, which the policy does without, are reported and stop no import.
    pub without_ocsp: bool,
}
