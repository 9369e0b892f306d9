//! Defines the type [`Policy`], which holds all parts of a valid policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::agent::{AgentSettings, Limits};
use super::credentials::{Identity, Trust};
use super::diagnostic::SourcePosition;
use super::engine::EngineSettings;
use super::host::HostSettings;
use super::ike::IkePeer;
use super::map::IdentityMap;
use super::rule::Rule;

/// A complete policy that can be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `[identity.NAME]`: certificates that tacit presents, with their keys.
    pub identities: BTreeMap<String, Identity>,
    /// `[trust.NAME]`: trust anchors. Includes `system` if a rule names it.
    pub trusts: BTreeMap<String, Trust>,
    /// `[ike.NAME]`: peers of IPsec tunnels.
    pub ikes: BTreeMap<String, IkePeer>,
    /// `[[map.NAME]]`: identity maps, from certificates to names.
    pub maps: BTreeMap<String, IdentityMap>,
    /// `[[rule]]`, in order. Each rule is stored once and shared with the [`Index`](super::Index)
    /// and the agent.
    pub rules: Vec<Arc<Rule>>,
    /// `[agent]`.
    pub agent: AgentSettings,
    /// `[engine]`; `None`: no CPU is reserved for engines.
    pub engine: Option<EngineSettings>,
    /// `[host]`; `None`: the policy cannot be used to capture a host.
    pub host: Option<HostSettings>,
    /// `[limits]`.
    pub limits: Limits,
    /// The patterns of `include`, as they are written.
    pub includes: Vec<String>,
    /// The names of the included files, in their order.
    pub included: Vec<Arc<str>>,
}

impl Policy {
    /// Returns the rule with this name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().map(Arc::as_ref).find(|rule| rule.name == name)
    }

    /// The included file of a position; `None`: the policy itself.
    #[must_use]
    pub fn file_of(&self, position: SourcePosition) -> Option<&Arc<str>> {
        position.file.checked_sub(1).and_then(|place| self.included.get(place))
    }

    /// Sets the time zone that `local` means.
    pub fn set_local_zone(&mut self, local: &TimeZone) {
        for rule in self.rules.iter_mut().filter(|rule| rule.selectors.when.is_some()) {
            if let Some(when) = &mut Arc::make_mut(rule).selectors.when {
                when.zone.set_local(local);
            }
        }
    }

    /// For each rule with time windows, returns whether a window is open at a time (in seconds
    /// since 1970). If the result differs between two times, a rule became active or inactive
    /// between them. The result is empty if no rule has windows.
    #[must_use]
    pub fn open_windows(&self, unix_s: i64) -> Vec<bool> {
        let whens = self.rules.iter().filter_map(|rule| rule.selectors.when.as_ref());
        whens.map(|when| when.is_open(unix_s)).collect()
    }
}
