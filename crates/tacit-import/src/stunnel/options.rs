//! Defines the options of an import from stunnel.

/// Options of an import from stunnel.
#[derive(Clone, Copy, Debug, Default)]
pub struct StunnelOptions {
    /// Do not add verification of the server to client services that have none.
    pub keep_no_verification: bool,
    /// Do not add a check of the server's name to client services that have none.
    pub keep_no_name_check: bool,
    /// Report OCSP options as changes instead of errors; the policy does not use OCSP.
    pub without_ocsp: bool,
}
