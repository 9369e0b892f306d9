//! What is kept although it is unsafe.

/// What is kept although it is unsafe.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Clients that check nothing go on so.
    pub keep_no_verification: bool,
    /// Clients that accept any certificate of their CAs go on so.
    pub keep_no_name_check: bool,
}
