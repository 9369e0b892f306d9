//! The input and options of an import from AT-TLS.

use crate::files::Input;

/// The input of an import from AT-TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttlsRequest<'a> {
    /// Names of policies, or of main and image files of the Policy Agent, which name them.
    pub policies: &'a [String],
    /// Names of files with IP filter rules, in addition to those that the policies name. Without
    /// such files the policy has no filter rules.
    pub filters: &'a [String],
    /// What stands for `/` in the names that files hold.
    pub root: Option<&'a str>,
    /// The map file of the site.
    pub map: Option<Input<'a>>,
    /// How to import.
    pub options: AttlsOptions,
}

/// How to import.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttlsOptions {
    /// A server's name is not checked where the original does not either.
    pub keep_no_name_check: bool,
    /// What no rule matches is denied, and not passed in clear.
    pub fail_closed: bool,
}
