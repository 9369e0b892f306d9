//! Defines the options of an import from stunnel.

/// Options of an import from stunnel.
#[derive(Clone, Copy, Debug, Default)]
pub struct StunnelOptions {
    /// Keep clients that verify nothing.
    pub keep_no_verification: bool,
    /// Keep clients that accept any certificate of their CAs.
    pub keep_no_name_check: bool,
    /// Report OCSP options as changes instead of errors; the policy does not use OCSP.
    pub without_ocsp: bool,
}
