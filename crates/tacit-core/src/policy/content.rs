//! Defines the type [`Policy`], which holds all parts of a valid policy.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::activate::Activation;
use super::agent::{AgentSettings, Limits};
use super::credentials::{Identity, Trust};
use super::diagnostic::SourcePosition;
use super::engine::EngineSettings;
use super::filter_rule::FilterRule;
use super::host::HostSettings;
use super::ike::IkePeer;
use super::link::{Link, LinkRule};
use super::map::IdentityMap;
use super::rule::{PathChoice, Rule};
use super::sa::ManualSa;
use super::selector::{Selectors, UnknownOwner};
use crate::flow::{Direction, Flow};

/// A complete policy that can be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// `[identity.NAME]`: certificates that tacit presents, with their keys.
    pub identities: BTreeMap<String, Identity>,
    /// `[trust.NAME]`: trust anchors. Includes `system` if a rule names it.
    pub trusts: BTreeMap<String, Trust>,
    /// `[ike.NAME]`: peers of IPsec tunnels.
    pub ikes: BTreeMap<String, IkePeer>,
    /// `[sa.NAME]`: peers of IPsec tunnels whose keys are in files.
    pub sas: BTreeMap<String, ManualSa>,
    /// `[[map.NAME]]`: identity maps, from certificates to names.
    pub maps: BTreeMap<String, IdentityMap>,
    /// `[[rule]]`, in order. Each rule is stored once and shared with the [`Index`](super::Index)
    /// and the agent.
    pub rules: Vec<Arc<Rule>>,
    /// `[activate.NAME]`: programs that connections start.
    pub activations: BTreeMap<String, Activation>,
    /// `[[rule]]` with `filter`, in order. They are for packets, and not for flows.
    pub filters: Vec<FilterRule>,
    /// `[link.NAME]`: links whose other side may use sockets of this host.
    pub links: BTreeMap<String, Link>,
    /// `[[rule]]` with `link`, in order.
    pub link_rules: Vec<LinkRule>,
    /// `[agent]`.
    pub agent: AgentSettings,
    /// `[engine]`; `None`: no CPU is reserved for engines.
    pub engine: Option<EngineSettings>,
    /// `[host]`; `None`: the policy cannot be used to capture a host.
    pub host: Option<HostSettings>,
    /// `[limits]`.
    pub limits: Limits,
    /// `path` of rules that have none of their own.
    pub path: PathChoice,
    /// The patterns of `include`, as they are written.
    pub includes: Vec<String>,
    /// The names of the included files, in their order.
    pub included: Vec<Arc<str>>,
}

impl Policy {
    /// Whether there is a peer of tunnels with this name, with IKE or with keys of files.
    #[must_use]
    pub fn has_tunnel_peer(&self, name: &str) -> bool {
        self.ikes.contains_key(name) || self.sas.contains_key(name)
    }

    /// How the connections of a rule may reach their destination. A rule in audit mode has its
    /// connections relayed, so that the agent sees what it would protect.
    #[must_use]
    pub fn path_of(&self, rule: &Rule) -> PathChoice {
        if rule.permits_connections() && rule.audited.is_none() {
            rule.path.unwrap_or(self.path)
        } else {
            PathChoice::Relay
        }
    }

    /// Whether programs can get sockets of the agent's network by some rule.
    #[must_use]
    pub fn hands_sockets(&self) -> bool {
        self.rules.iter().any(|rule| self.path_of(rule) == PathChoice::Auto)
    }

    /// Whether a rule for connections that programs open depends on the address or port of the
    /// program's socket, which is not known before it connects.
    #[must_use]
    pub fn selects_local(&self) -> bool {
        self.rules.iter().any(|rule| {
            let Selectors { direction, local, local_ports, .. } = &rule.selectors;
            *direction == Direction::Outbound && !(local.is_empty() && local_ports.is_empty())
        })
    }

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

    /// The first rule with `link` that matches a request of this link; without one, the request is
    /// refused.
    #[must_use]
    pub fn link_rule(&self, link: &str, flow: &Flow) -> Option<&LinkRule> {
        let applies = |rule: &&LinkRule| rule.links.iter().any(|name| name == link);
        self.link_rules
            .iter()
            .filter(applies)
            .find(|rule| rule.selectors.matches(flow, UnknownOwner::Differs).is_ok())
    }

    /// Sets the time zone that `local` means.
    pub fn set_local_zone(&mut self, local: &TimeZone) {
        for rule in self.rules.iter_mut().filter(|rule| rule.selectors.when.is_some()) {
            if let Some(when) = &mut Arc::make_mut(rule).selectors.when {
                when.zone.set_local(local);
            }
        }
        let link_whens = self.link_rules.iter_mut().filter_map(|rule| rule.selectors.when.as_mut());
        link_whens.for_each(|when| when.zone.set_local(local));
        let whens = self.filters.iter_mut().filter_map(|rule| rule.selectors.when.as_mut());
        whens.for_each(|when| when.zone.set_local(local));
    }

    /// For each rule with time windows, returns whether a window is open at a time (in seconds
    /// since 1970). If the result differs between two times, a rule became active or inactive
    /// between them. The result is empty if no rule has windows.
    #[must_use]
    pub fn open_windows(&self, unix_s: i64) -> Vec<bool> {
        let of_flows = self.rules.iter().filter_map(|rule| rule.selectors.when.as_ref());
        let of_packets = self.filters.iter().filter_map(|rule| rule.selectors.when.as_ref());
        of_flows.chain(of_packets).map(|when| when.is_open(unix_s)).collect()
    }
}
