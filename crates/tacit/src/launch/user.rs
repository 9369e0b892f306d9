//! Selects the user that runs the program: with `sudo tacit run`, this is the user who called
//! `sudo`.
//!
//! A program that runs as root gets no user namespace. So tacit cannot restrict this program as
//! much as a program of another user. With `--as-root`, the program runs as root.

use std::ffi::OsString;
use std::fmt;
use std::io;

use tacit_sys::process::{self, User};

/// The reason why the launcher cannot become the user who called `sudo`.
#[derive(Debug)]
pub enum UserError {
    /// `SUDO_UID` or `SUDO_GID` is not a number.
    NotANumber(&'static str),
    /// The kernel refused the change.
    Refused(u32, io::Error),
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotANumber(name) => {
                write!(
                    f,
                    "the environment variable {name} is not a number, so tacit does not know which \
                     user called sudo\n    fix: unset the variable, or use --as-root to run the \
                     program as root"
                )
            }
            Self::Refused(uid, error) => {
                write!(
                    f,
                    "cannot become user {uid}, who called sudo: {error}\n    \
                     fix: use --as-root to run as root"
                )
            }
        }
    }
}

impl std::error::Error for UserError {}

/// The user of the run under `sudo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnderSudo {
    /// The user who called `sudo`.
    BecomeCaller,
    /// Root.
    StayRoot,
}

/// Becomes the user who called `sudo`, if any. Call before the launcher opens any file.
pub(super) fn become_caller(sudo: UnderSudo) -> Result<(), UserError> {
    if sudo == UnderSudo::StayRoot || process::effective_user() != 0 {
        return Ok(());
    }
    match caller(|name| std::env::var_os(name))? {
        Some(user) => process::become_user(&user).map_err(|why| UserError::Refused(user.uid, why)),
        None => Ok(()),
    }
}

/// The user who called `sudo`; `None` if there is none or it is root.
fn caller(variable: impl Fn(&str) -> Option<OsString>) -> Result<Option<User>, UserError> {
    let number = |name| {
        let value = variable(name);
        let parse = |value: OsString| value.to_str()?.parse().ok();
        value.map(|value| parse(value).ok_or(UserError::NotANumber(name))).transpose()
    };
    let (Some(uid), Some(gid)) = (number("SUDO_UID")?, number("SUDO_GID")?) else {
        return Ok(None);
    };
    let name = variable("SUDO_USER").and_then(|name| name.into_string().ok());
    Ok((uid != 0).then_some(User { uid, gid, name }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<u32>, String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let user = caller(variable).map_err(|error| error.to_string())?;
        Ok(user.map(|user| user.uid))
    }

    #[test]
    fn the_caller_is_read_from_the_variables_of_sudo() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("SUDO_UID", "1000")]), Ok(None));
        assert_eq!(of(&[("SUDO_UID", "1000"), ("SUDO_GID", "100")]), Ok(Some(1000)));
        assert_eq!(of(&[("SUDO_UID", "0"), ("SUDO_GID", "0")]), Ok(None));
        for bad in ["", "-1", "alice", "4294967296"] {
            let refused = of(&[("SUDO_UID", bad), ("SUDO_GID", "100")]).unwrap_err();
            assert!(refused.contains("SUDO_UID is not a number"), "{refused}");
        }
    }
}
