//! Changes the nftables rules of the host without a running agent. `tacit agent --host --guard`
//! installs the nftables rules before the network is up. `tacit agent --host --remove` removes
//! these rules.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

use tacit_core::dns::{HostsEntry, KnownName};
use tacit_core::policy::{
    CaptureRange, CountedRange, HostMode, HostPlan, HostRange, HostSection, HostSettings,
    HostVerdict, NameRules, NamedAddress, NamedPorts, Policy, PolicyText, Senders, Unmatched,
    host_plan,
};
use tacit_sys::host::{self, HostCapture};
use tacit_sys::netlink;
use tacit_sys::sandbox::{self, CapabilitySet};

use super::stored::{StoredPolicyError, stored_policy};
use super::units::{self, FoundUnits};
use super::{HostError, TableContents, learnt, marks_of, senders};
use crate::clock;
use crate::live::check_rules_text;
use crate::run::capture::passing_user;
use crate::run::named::NamedCapture;

/// Installs the nftables rules of a policy; `hosts` are the names in `/etc/hosts`. What the rules
/// capture is refused until an agent takes it. In audit mode there are none. Returns the mode.
///
/// # Errors
/// The policy has no `[host]`, or the kernel refuses.
pub fn guard(policy: &Policy, hosts: &[HostsEntry]) -> Result<HostMode, HostError> {
    let settings = policy.host.as_ref().ok_or(HostError::NoSettings)?;
    let unix_s = clock::now_unix_s();
    let plan = host_plan(policy, settings.unmatched, unix_s);
    if plan.mode == HostMode::Audit {
        return Ok(plan.mode);
    }
    let open = || HostCapture::open(marks_of(settings.mark)?).map_err(io::Error::other);
    let mut capture = open().map_err(HostError::Helper)?;
    let senders = senders::resolve(&plan).map_err(HostError::Helper)?;
    let rules = NameRules::of(policy, unix_s);
    let addresses = rules.map(|rules| named_addresses(rules, hosts, &mut capture)).transpose();
    let addresses = addresses.map_err(HostError::Helper)?.unwrap_or_default();
    let contents = TableContents::of(&plan, &senders, &addresses);
    let sections = contents.sections();
    let table = contents.table(&sections, capture.marks(), passing_user());
    if let Some(wanted) = &plan.units {
        let installed = units::install(&mut capture, wanted, &FoundUnits::of(&plan));
        installed.map_err(HostError::Helper)?;
    }
    capture.install(&table).map_err(refused)?;
    Ok(plan.mode)
}

/// The nftables rules of a host whose policy cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardFallback {
    /// Those that it had, which were installed since it booted.
    Present,
    /// Those of the last policy that an agent has stored.
    Last,
    /// None is installed: the last policy is in audit mode.
    Audit,
    /// Those that refuse all flows but DHCP and clients of SSH, for this reason.
    Closed(String),
}

/// Installs nftables rules for a host whose policy cannot be used: those of the last policy, which
/// an agent has stored in this file, or else such that refuse all flows. Those that were installed
/// since the host booted stay.
///
/// # Errors
/// The kernel refuses.
pub fn guard_without_policy(last: &Path, hosts: &[HostsEntry]) -> Result<GuardFallback, HostError> {
    let marks = marks_of(HostSettings::MARK_DEFAULT).map_err(HostError::Helper)?;
    let capture = HostCapture::open(marks).map_err(io::Error::other);
    if capture.map_err(HostError::Helper)?.is_of_this_boot().map_err(refused)? {
        return Ok(GuardFallback::Present);
    }
    let reason = match last_policy(last) {
        Ok(policy) => match guard(&policy, hosts) {
            Ok(HostMode::Enforce) => return Ok(GuardFallback::Last),
            Ok(HostMode::Audit) => return Ok(GuardFallback::Audit),
            Err(error @ HostError::InUse) => return Err(error),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    let closed = check_rules_text(&PolicyText::new(CLOSED));
    let invalid = |_| HostError::Helper(io::ErrorKind::InvalidData.into());
    guard(&closed.map_err(invalid)?, hosts)?;
    Ok(GuardFallback::Closed(reason.lines().next().unwrap_or_default().to_owned()))
}

fn last_policy(file: &Path) -> Result<Policy, StoredPolicyError> {
    let text = PolicyText::new(stored_policy(file)?);
    check_rules_text(&text).map_err(StoredPolicyError::Invalid)
}

/// Returns how many flows and packets the installed nftables rules of a policy have counted, by
/// rule. An agent reads them itself; this is for nftables rules without one.
///
/// # Errors
/// The policy has no `[host]`, or the kernel refuses.
pub fn counted(policy: &Policy) -> Result<BTreeMap<String, u64>, HostError> {
    let settings = policy.host.as_ref().ok_or(HostError::NoSettings)?;
    let plan = host_plan(policy, settings.unmatched, clock::now_unix_s());
    let open = || HostCapture::open(marks_of(settings.mark)?).map_err(io::Error::other);
    let mut capture = open().map_err(HostError::Helper)?;
    let senders = senders::resolve(&plan).map_err(HostError::Helper)?;
    let contents = TableContents::of(&plan, &senders, &[]);
    let sections = contents.sections();
    let table = contents.table(&sections, capture.marks(), passing_user());
    let counts = capture.counts(&table).map_err(refused)?;
    let by_name = counts.into_iter().filter_map(|(number, count)| {
        let name = plan.counted_rules.get(usize::try_from(number).ok()?)?;
        Some((name.clone(), count))
    });
    Ok(by_name.collect())
}

/// The addresses of names with rules: those that the kernel keeps, and those of
/// `/etc/hosts`.
fn named_addresses(
    rules: NameRules,
    hosts: &[HostsEntry],
    capture: &mut HostCapture,
) -> io::Result<Vec<NamedAddress>> {
    let now = Instant::now();
    let kept = learnt::kept_names(capture)?.into_iter().map(|one| KnownName {
        name: one.name,
        address: one.address,
        alias: None,
        is_shared: false,
        remaining: Duration::from_secs(one.seconds),
    });
    Ok(NamedCapture::of(rules, &kept.collect::<Vec<_>>(), hosts, now).addresses(now))
}

/// Installs the nftables rules that any policy needs, in the namespace of the calling thread.
///
/// # Errors
/// The kernel lacks a feature.
pub fn probe() -> io::Result<()> {
    let port = |address: IpAddr| CaptureRange {
        udp: false,
        first: address,
        last: address,
        first_port: 1,
        last_port: 1,
    };
    let ports = [port(Ipv4Addr::LOCALHOST.into()), port(Ipv6Addr::LOCALHOST.into())];
    let named_port = |udp| NamedPorts { udp, first_port: 1, last_port: 1, part: 0 };
    let captured = ports.map(|to| HostRange { to, verdict: HostVerdict::Capture });
    let section = HostSection {
        senders: Senders::default(),
        outbound: captured.to_vec(),
        counted: ports.map(|to| CountedRange { to, rule: 0 }).to_vec(),
    };
    let plan = HostPlan {
        sections: vec![section],
        unmatched: Unmatched::Deny,
        inbound: ports.to_vec(),
        names: Some([false, true].map(named_port).to_vec()),
        mode: HostMode::Enforce,
        forwarded: vec!["lo".to_owned()],
        units: None,
        counted_rules: vec!["probe".to_owned()],
        filters: None,
    };
    let marks = marks_of(HostSettings::MARK_DEFAULT)?;
    let mut capture = HostCapture::open(marks).map_err(io::Error::other)?;
    let address = |address| NamedAddress { address, part: 0, seconds: Some(1) };
    let addresses = ports.map(|port| address(port.first));
    let contents = TableContents::of(&plan, &senders::resolve(&plan)?, &addresses);
    let sections = contents.sections();
    capture.install(&contents.table(&sections, marks, None)).map_err(io::Error::other)
}

/// Removes nftables rules and routing rules.
///
/// # Errors
/// The kernel refuses, or an agent still captures the host.
pub fn remove() -> Result<(), HostError> {
    host::remove().map_err(refused)
}

fn refused(error: netlink::Error) -> HostError {
    let kind = error.errno().map(|errno| io::Error::from_raw_os_error(errno).kind());
    let has_right = sandbox::capabilities()
        .is_ok_and(|capabilities| capabilities.contains(CapabilitySet::NET_ADMIN));
    if kind == Some(io::ErrorKind::PermissionDenied) && has_right {
        return HostError::InUse;
    }
    HostError::Helper(io::Error::other(error))
}

/// The policy of a host whose own policy is not known.
const CLOSED: &str = include_str!("closed.toml");

#[cfg(test)]
mod tests {
    use tacit_core::policy::parse;

    use super::*;

    #[test]
    fn the_policy_of_a_closed_host_has_no_errors_and_no_warnings() {
        let parsed = parse(CLOSED);
        assert_eq!(parsed.diagnostics, []);
        let plan = host_plan(&parsed.policy.unwrap(), Unmatched::Deny, 0);
        assert_eq!(plan.unmatched, Unmatched::Deny);
        assert!(plan.filters.is_some());
    }

    #[test]
    fn the_manual_shows_the_policy_of_a_closed_host() {
        let manual = include_str!("../../../../docs/host.md");
        assert!(manual.contains(CLOSED));
    }
}
