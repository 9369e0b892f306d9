//! Converts the filter rules of the policy (key `filter`) to data types of `tacit_sys`. From this
//! data, `tacit_sys` builds and installs nftables rules.

use std::time::Duration;

use rustix::net::{AddressFamily, SocketType, netdevice};
use tacit_core::policy::filter::{
    Discard, FilterEffect, FilterElement, FilterField, FilterGate, FilterGroup, FilterPlan,
    FilterVerdict, LoggedRule,
};
use tacit_sys::netlink::nft::host::{
    HostFilters, KeyField, LoggedFilter, PacketElement, PacketGate, PacketGroup, PacketOutcome,
    WindowTime,
};

use crate::clock;

/// Filters in the data types of the kernel.
pub(super) struct FilterContents<'p> {
    groups: Vec<PacketGroup<'p>>,
    windows: Vec<WindowTime>,
    logged: Vec<LoggedFilter<'p>>,
}

impl<'p> FilterContents<'p> {
    pub(super) fn of(plan: &'p FilterPlan) -> Self {
        Self {
            groups: plan.groups.iter().map(group).collect(),
            windows: windows(plan, clock::now_unix_s()),
            logged: plan.logged.iter().map(logged).collect(),
        }
    }

    pub(super) fn filters(&self) -> HostFilters<'_> {
        HostFilters { groups: &self.groups, windows: &self.windows, logged: &self.logged }
    }
}

/// The schedules that are present at a time, in seconds since 1970.
pub(super) fn windows(plan: &FilterPlan, unix_s: i64) -> Vec<WindowTime> {
    let present = plan.present_at(unix_s);
    present.map(|(number, seconds)| (number, seconds.map(Duration::from_secs))).collect()
}

/// Whether an interface exists in the namespace of this process; if that is unknown, it does.
pub(super) fn has_interface(name: &str) -> bool {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None);
    let found = socket.and_then(|socket| netdevice::name_to_index(&socket, name));
    !matches!(found, Err(rustix::io::Errno::NODEV))
}

fn group(group: &FilterGroup) -> PacketGroup<'_> {
    PacketGroup {
        ipv6: group.ipv6,
        classes: group.classes.0,
        views: group.views.0,
        past_opening: group.past_opening,
        gate: group.gate.map(|gate| match gate {
            FilterGate::Present(number) => PacketGate::Present(number),
            FilterGate::Absent(number) => PacketGate::Absent(number),
        }),
        fields: group.fields.iter().copied().map(field).collect(),
        exact: group.exact,
        elements: group.elements.iter().map(element).collect(),
    }
}

fn field(field: FilterField) -> KeyField {
    match field {
        FilterField::Local => KeyField::Local,
        FilterField::Remote => KeyField::Remote,
        FilterField::LocalPort => KeyField::LocalPort,
        FilterField::RemotePort => KeyField::RemotePort,
        FilterField::IcmpType => KeyField::IcmpType,
        FilterField::IcmpCode => KeyField::IcmpCode,
        FilterField::Protocol => KeyField::Protocol,
        FilterField::Interface => KeyField::Interface,
    }
}

fn element(element: &FilterElement) -> PacketElement<'_> {
    let (outcome, logged) = match element.outcome {
        FilterEffect::Flow => (PacketOutcome::Return, false),
        FilterEffect::Decided { verdict, logged } => (outcome(verdict), logged),
    };
    let FilterElement { first, last, rule, .. } = element;
    PacketElement { first: &first.0, last: &last.0, outcome, number: *rule, logged }
}

fn logged(rule: &LoggedRule) -> LoggedFilter<'_> {
    LoggedFilter { number: rule.rule, name: &rule.name, outcome: outcome(rule.verdict) }
}

fn outcome(verdict: FilterVerdict) -> PacketOutcome {
    match verdict {
        FilterVerdict::Permit => PacketOutcome::Accept,
        FilterVerdict::Deny(Discard::Silent) => PacketOutcome::Drop,
        FilterVerdict::Deny(Discard::Icmp) => PacketOutcome::Icmp,
        FilterVerdict::Deny(Discard::Reset) => PacketOutcome::Reset,
    }
}
