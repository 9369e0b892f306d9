//! Chooses the link of a run. The option `--link` of the run has the highest priority. The variable
//! `TACIT_LINK` is second, and the default link of the run's policy is third.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use tacit_core::policy::{LinkSelection, Policy};

/// The end of the name of a link's socket.
pub const SOCKET_SUFFIX: &str = ".sock";

/// What has chosen the link of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LinkLevel {
    /// `--link`.
    Option,
    /// `TACIT_LINK`.
    Environment,
    /// `default = true` in `[link.NAME]` of the policy of the run.
    Policy,
    /// Nothing: the run uses the network of this side.
    Default,
}

impl LinkLevel {
    /// A word for displays.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Option => "option",
            Self::Environment => "environment",
            Self::Policy => "policy",
            Self::Default => "default",
        }
    }
}

/// The link of a run, before its policy has been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkChoice {
    /// The link with this socket.
    Named(ChosenLink),
    /// The default link of the policy, if it has one, whose socket is in this directory.
    OfPolicy(PathBuf),
    /// No link.
    None,
}

/// A link that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenLink {
    /// The path of its socket.
    pub path: PathBuf,
    /// What has chosen it.
    pub level: LinkLevel,
}

impl LinkChoice {
    /// The choice in the arguments of an agent.
    #[must_use]
    pub fn from_arguments(path: Option<PathBuf>, level: Option<LinkLevel>) -> Self {
        match (path, level) {
            (Some(directory), Some(LinkLevel::Policy)) => Self::OfPolicy(directory),
            (Some(path), level) => {
                let level = level.unwrap_or(LinkLevel::Option);
                Self::Named(ChosenLink { path, level })
            }
            (None, _) => Self::None,
        }
    }

    /// The arguments of an agent that makes the same choice.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let (path, level) = match self {
            Self::Named(ChosenLink { path, level }) => (path, *level),
            Self::OfPolicy(directory) => (directory, LinkLevel::Policy),
            Self::None => return Vec::new(),
        };
        vec!["--link".into(), path.into(), "--link-level".into(), level.word().into()]
    }

    /// The link of a run with this policy; `None`: it uses the network of this side.
    #[must_use]
    pub fn of_run(&self, policy: &Policy) -> Option<ChosenLink> {
        match self {
            Self::Named(chosen) => Some(chosen.clone()),
            Self::OfPolicy(directory) => {
                let is_default =
                    |link: &tacit_core::policy::Link| link.selection == LinkSelection::Default;
                let (name, link) = policy.links.iter().find(|(_, link)| is_default(link))?;
                let in_directory = || directory.join(format!("{name}{SOCKET_SUFFIX}"));
                let path = link.listen.clone().unwrap_or_else(in_directory);
                Some(ChosenLink { path, level: LinkLevel::Policy })
            }
            Self::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_of_an_agent_makes_the_same_choice() {
        let named = |level| LinkChoice::Named(ChosenLink { path: "/run/x.sock".into(), level });
        let all = [named(LinkLevel::Option), named(LinkLevel::Environment)];
        for choice in
            all.into_iter().chain([LinkChoice::OfPolicy("/run/links".into()), LinkChoice::None])
        {
            let words = choice.arguments();
            let value = |option: &str| {
                let at = words.iter().position(|word| word == option)?;
                words.get(at + 1)?.clone().into_string().ok()
            };
            let level = value("--link-level");
            let level = level.map(|word| LinkLevel::from_str(&word, false).unwrap());
            let again = LinkChoice::from_arguments(value("--link").map(PathBuf::from), level);
            assert_eq!(again, choice);
        }
    }

    #[test]
    fn the_policy_decides_only_if_nothing_else_names_a_link() {
        let text = "version = 1\n[link.01]\ndefault = true\n[link.02]\n[[rule]]\n\
                    name = \"out\"\nlink = \"02\"\ndirection = \"outbound\"\npermit = true\n";
        let policy = tacit_core::policy::parse(text).policy.unwrap();
        let of_policy = ChosenLink { path: "/run/01.sock".into(), level: LinkLevel::Policy };
        assert_eq!(LinkChoice::OfPolicy("/run".into()).of_run(&policy), Some(of_policy));
        let other = ChosenLink { path: "/run/02.sock".into(), level: LinkLevel::Environment };
        assert_eq!(LinkChoice::Named(other.clone()).of_run(&policy), Some(other));
        assert_eq!(LinkChoice::None.of_run(&policy), None);
    }
}
