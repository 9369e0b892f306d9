//! Handles the addresses that a peer assigns to a run (a program under `tacit run`). Decides
//! whether the run accepts these addresses.
//!
//! A run rejects an address that already has another use. Without this check, flows to the address
//! would stay inside the run. These addresses have another use:
//! * an address in `alias-ranges` (tacit gives these addresses to DNS names);
//! * an address of the host or of a peer;
//! * the inner address of another tunnel;
//! * an address in the `remote` of a rule, if the rule does not use the tunnel to this peer. If
//!   `remote` is a DNS name, the run rejects the addresses of the name. A `remote` that contains
//!   all addresses, such as `0.0.0.0/0`, is ignored.
//!
//! If the run rejects an address, tacit closes the IKE connection and reports the reason. The
//! module `runs` checks the address again when the addresses in use may have changed.

use std::net::IpAddr;

use tacit_core::policy::{InnerAddressSource, Rule, TunnelRoutes};
use tacit_ipsec::ike::{FailureSide, IkeFailure};

use super::{IkePolicy, RunNames};

/// What decides about the addresses that a peer assigns to a run.
pub(super) struct WantedAddresses<'a> {
    pub(super) policy: &'a IkePolicy,
    /// The name of the run.
    pub(super) run: &'a str,
    /// The name of the peer.
    pub(super) ike: &'a str,
    pub(super) routes: &'a TunnelRoutes,
    /// The addresses of the host.
    pub(super) own: &'a [IpAddr],
    /// The addresses of the run inside its other tunnels.
    pub(super) others: &'a [IpAddr],
    /// The addresses of other runs inside their tunnels to the same peer.
    pub(super) other_runs: &'a [IpAddr],
    /// The names that programs of the run have looked up.
    pub(super) names: &'a dyn RunNames,
}

impl WantedAddresses<'_> {
    /// The addresses of the IP versions that the tunnel has. Fails if there are none, or if the run
    /// must not have one of them.
    pub(super) fn usable(&self, assigned: &[IpAddr]) -> Result<Vec<IpAddr>, IkeFailure> {
        let remotes = self.routes.remotes(self.ike);
        let is_used = |address: &IpAddr| {
            remotes.iter().any(|(first, _)| first.is_ipv4() == address.is_ipv4())
        };
        let usable: Vec<IpAddr> = assigned.iter().copied().filter(is_used).collect();
        if usable.is_empty() {
            return Err(missing());
        }
        if let Some(address) = usable.iter().find(|one| self.other_runs.contains(one)) {
            return Err(shared(*address));
        }
        match usable.iter().find_map(|one| self.conflict(*one).map(|what| (one, what))) {
            None => Ok(usable),
            Some((address, what)) => Err(IkeFailure::new(
                "assigned-address-refused",
                FailureSide::Both,
                format!(
                    "the peer assigned the address {address}, which is {what}: change the peer's \
                     address pool, or the policy"
                ),
            )),
        }
    }

    /// What the address is already.
    fn conflict(&self, address: IpAddr) -> Option<String> {
        let Self { own, others, .. } = self;
        let policy = &self.policy.policy;
        if own.contains(&address) {
            return Some("an address of this host".to_owned());
        }
        if policy.agent.aliases.reserves(address) {
            return Some("an address in `alias-ranges`".to_owned());
        }
        if others.contains(&address) {
            return Some("the address that the run has in another tunnel".to_owned());
        }
        let is_its =
            |name: &&String| self.policy.addresses(name).iter().any(|one| one.ip() == address);
        if let Some(name) = policy.ikes.keys().find(is_its) {
            return Some(format!("the address of the peer in [ike.{name}]"));
        }
        let is_inner = |source: &InnerAddressSource| match source {
            InnerAddressSource::Policy(inner) => inner.contains(&address),
            InnerAddressSource::Gateway => false,
        };
        if let Some((name, _)) = policy.ikes.iter().find(|(_, one)| is_inner(&one.inner)) {
            return Some(format!("the `inner` address of [ike.{name}]"));
        }
        if let Some((name, _)) = policy.sas.iter().find(|(_, one)| one.peer.ip() == address) {
            return Some(format!("the address of the peer in [sa.{name}]"));
        }
        if let Some((name, _)) = policy.sas.iter().find(|(_, one)| one.inner.contains(&address)) {
            return Some(format!("the `inner` address of [sa.{name}]"));
        }
        let names = self.names.of(address);
        let is_named = |rule: &&Rule| {
            let is_of_peer = rule.ipsec().is_some_and(|ipsec| ipsec.peer == self.ike);
            let runs = &rule.selectors.run;
            let applies = runs.is_empty() || runs.iter().any(|run| run == self.run);
            !is_of_peer && applies && rule.selectors.names_remote(address, &names)
        };
        let rule = policy.rules.iter().map(AsRef::as_ref).find(is_named)?;
        Some(format!("an address in `remote` of rule `{}`", rule.name))
    }
}

/// The peer has assigned an address that another run has. The peer would send the packets of both
/// runs to one of them.
fn shared(address: IpAddr) -> IkeFailure {
    IkeFailure::new(
        "assigned-address-refused",
        FailureSide::Both,
        format!(
            "the peer assigned the address {address}, which another run of this agent has in its \
             tunnel to this peer: start this run with an agent of its own (`tacit run --policy`), \
             or configure the peer to assign an address of its own to each connection"
        ),
    )
}

/// The peer has assigned no address of an IP version of the tunnel.
pub(super) fn missing() -> IkeFailure {
    IkeFailure::new(
        "no-address-assigned",
        FailureSide::Both,
        "the peer assigned no address of the IP version that the rules need: add an address \
             pool of this IP version to the configuration of the peer, or set the address with \
             `inner`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = r#"version = 1
[ike.branch]
peer = "192.0.2.1"
psk-file = "psk"
local-id = "branch.example"
remote-id = "gw.example"
inner = "gateway"
[ike.other]
peer = "192.0.2.2"
psk-file = "psk"
local-id = "branch.example"
remote-id = "gw2.example"
inner = "gateway"
[ike.fixed]
peer = "gw3.example"
psk-file = "psk"
local-id = "branch.example"
inner = "10.7.0.1"
[[rule]]
name = "web"
direction = "outbound"
remote = "10.2.0.0/24"
ipsec = { ike = "branch" }
[[rule]]
name = "far"
direction = "outbound"
remote = "10.3.0.0/24"
ipsec = { ike = "other" }
[[rule]]
name = "database"
direction = "outbound"
remote = ["10.4.0.9", "10.5.0.0/16"]
permit = true
[[rule]]
name = "by-name"
direction = "outbound"
remote = "db.example"
permit = true
[[rule]]
name = "of-another-run"
direction = "outbound"
run = "other"
remote = "10.6.0.0/16"
permit = true
[[rule]]
name = "all"
direction = "outbound"
remote = "0.0.0.0/0"
permit = true
"#;

    /// `db.example` and another name.
    #[derive(Debug)]
    struct KnownNames;

    impl RunNames for KnownNames {
        fn count(&self) -> u64 {
            2
        }

        fn of(&self, address: IpAddr) -> Vec<String> {
            let name = match address.to_string().as_str() {
                "10.7.0.9" => "db.example",
                "10.7.0.8" => "other.example",
                _ => return Vec::new(),
            };
            vec![name.to_owned()]
        }
    }

    fn usable(assigned: &[&str]) -> Result<Vec<IpAddr>, IkeFailure> {
        let policy = IkePolicy::of_text(POLICY);
        let own = ["10.9.0.1".parse().unwrap()];
        let others = ["10.8.0.1".parse().unwrap()];
        let routes = TunnelRoutes::of(&policy.policy, "run", &own).unwrap();
        let wanted = WantedAddresses {
            policy: &policy,
            run: "run",
            ike: "branch",
            routes: &routes,
            own: &own,
            others: &others,
            other_runs: &["10.8.0.2".parse().unwrap()],
            names: &KnownNames,
        };
        let assigned: Vec<IpAddr> = assigned.iter().map(|one| one.parse().unwrap()).collect();
        wanted.usable(&assigned)
    }

    #[test]
    fn an_assigned_address_must_not_stand_for_something_else() {
        for (address, what) in [
            ("10.9.0.1", "an address of this host"),
            ("198.18.0.7", "an address in `alias-ranges`"),
            ("10.8.0.1", "in another tunnel"),
            ("10.8.0.2", "another run of this agent"),
            ("192.0.2.2", "the peer in [ike.other]"),
            ("10.3.0.7", "`remote` of rule `far`"),
            ("10.4.0.9", "rule `database`"),
            ("10.5.6.7", "rule `database`"),
            ("10.7.0.1", "the `inner` address of [ike.fixed]"),
            ("10.7.0.9", "rule `by-name`"),
        ] {
            let failure = usable(&[address]).unwrap_err();
            assert_eq!(failure.kind, "assigned-address-refused", "{address}");
            assert!(failure.message.contains(what), "{}", failure.message);
        }
        for address in ["10.1.0.1", "10.2.0.7", "10.4.0.8", "10.6.0.1", "10.7.0.8"] {
            assert_eq!(usable(&[address]), Ok(vec![address.parse().unwrap()]), "{address}");
        }
    }

    #[test]
    fn only_addresses_of_the_ip_versions_of_the_tunnel_are_used() {
        assert_eq!(usable(&["10.1.0.1", "fd01::1"]), Ok(vec!["10.1.0.1".parse().unwrap()]));
        for assigned in [&["fd01::1"][..], &[]] {
            assert_eq!(usable(assigned).unwrap_err().kind, "no-address-assigned");
        }
    }
}
