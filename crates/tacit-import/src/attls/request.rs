//! What to import, and how.

use crate::files::Input;

/// What to import, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Names of policies, or of main and image files of the Policy Agent, which name them.
    pub policies: &'a [String],
    /// Names of files of IP filter rules, beside those that the others name. Without any file of
    /// filters, nothing is filtered.
    pub filters: &'a [String],
    /// What stands for `/` in the names that files hold.
    pub root: Option<&'a str>,
    /// The map file of the site.
    pub map: Option<Input<'a>>,
    /// How to import.
    pub options: Options,
}

/// How to import.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// A server's name is not checked where the original does not either.
    pub keep_no_name_check: bool,
    /// What no rule matches is denied, and not passed in clear.
    pub fail_closed: bool,
}
