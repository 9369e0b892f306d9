//! Looks up the options of one section of a stunnel configuration. If the section does not set an
//! option, the value comes from the lines before the first section.

use super::lines::{Entry, Section};
use crate::draft::Toml;
use crate::finding::Findings;

/// A section with the defaults that stand before all sections.
pub(super) struct StunnelService<'s> {
    pub(super) section: &'s Section,
    pub(super) defaults: &'s [Entry],
}

impl<'s> StunnelService<'s> {
    /// Every entry of one of these names, in the order in which stunnel reads them.
    pub(super) fn in_order(&self, names: &[&str]) -> Vec<&'s Entry> {
        let named = |entry: &&Entry| names.iter().any(|n| entry.name.eq_ignore_ascii_case(n));
        self.defaults.iter().chain(&self.section.entries).filter(named).collect()
    }

    /// Every entry of that name.
    pub(super) fn all(&self, name: &str) -> Vec<&'s Entry> {
        self.in_order(&[name])
    }

    /// The last entry of that name, which is the one that stunnel uses.
    pub(super) fn last(&self, name: &str) -> Option<&'s Entry> {
        self.all(name).pop()
    }

    /// The entry of that name that stunnel uses, if it is a default.
    pub(super) fn defaults_only(&self, name: &str) -> Option<&'s Entry> {
        self.last(name).filter(|entry| self.defaults.contains(entry))
    }

    /// `yes` or `no`, `default` if there is no entry; `None` after an error was reported.
    pub(super) fn switch(
        &self,
        name: &str,
        default: Switch,
        findings: &mut Findings,
    ) -> Option<Switch> {
        self.last(name).map_or(Some(default), |entry| Switch::read(entry, findings))
    }

    /// Which side of TLS the service is; `None` after an error was reported.
    pub(super) fn role(&self, findings: &mut Findings) -> Option<ServiceRole> {
        Some(match self.switch("client", Switch::No, findings)? {
            Switch::Yes => ServiceRole::Client,
            Switch::No => ServiceRole::Server,
        })
    }
}

/// Which side of TLS a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceRole {
    Server,
    Client,
}

impl ServiceRole {
    /// As a policy writes it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// The value of an option that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    Yes,
    No,
}

impl Switch {
    /// Reads an entry; `None` after an error was reported.
    pub(super) fn read(entry: &Entry, findings: &mut Findings) -> Option<Self> {
        match entry.value.to_ascii_lowercase().as_str() {
            "yes" => Some(Self::Yes),
            "no" => Some(Self::No),
            _ => {
                let message = format!(
                    "`{option} = {value}` is neither yes nor no",
                    option = entry.name,
                    value = entry.value
                );
                findings.error(&entry.at, message, "write `yes` or `no`");
                None
            }
        }
    }
}

/// Keys with their values.
pub(super) type Keys = Vec<(&'static str, Toml)>;
