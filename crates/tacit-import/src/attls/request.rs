//! Defines the input and the options of an import from AT-TLS.

use crate::files::Input;

/// The input of an import from AT-TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttlsRequest<'a> {
    /// Policy files, or main and image files of the Policy Agent that name policy files.
    pub policies: &'a [String],
    /// Files with IP filter rules, in addition to those that the policy files name. Without any
    /// such file the policy has no filter rules.
    pub filters: &'a [String],
    /// The directory that stands for `/` in the paths that files contain.
    pub root: Option<&'a str>,
    /// The map file of the site.
    pub map: Option<Input<'a>>,
    /// The options of the import.
    pub options: AttlsOptions,
}

/// The options of an import from AT-TLS.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttlsOptions {
    /// Do not check a server's name if AT-TLS did not check it.
    pub keep_no_name_check: bool,
    /// Deny connections that match no rule, instead of permitting them in clear.
    pub fail_closed: bool,
    /// Write a policy for `tacit agent --host`, instead of one for `tacit run`.
    pub host: bool,
}
