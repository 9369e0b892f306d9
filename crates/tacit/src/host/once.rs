//! Changes the host once, without a running agent: `--guard` installs the packet rules before the
//! network is up, and `--remove` removes them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tacit_core::policy::{
    CaptureRange, HostPlan, HostRange, HostSection, HostSettings, HostVerdict, Policy, Senders,
    Unmatched, host_plan,
};
use tacit_sys::host::{self, HostCapture};
use tacit_sys::netlink;
use tacit_sys::sandbox::{self, CapabilitySet};

use super::{HostError, TableContents, marks_of, senders};
use crate::clock;
use crate::run::capture::passing_user;

/// Installs the packet rules of a policy. What they capture is refused until an agent takes it.
///
/// # Errors
/// The policy has no `[host]`, or the kernel refuses.
pub fn guard(policy: &Policy) -> Result<(), HostError> {
    let settings = policy.host.ok_or(HostError::NoSettings)?;
    let plan = host_plan(policy, settings.unmatched, clock::now_unix_s());
    let open = || HostCapture::open(marks_of(settings.mark)?).map_err(io::Error::other);
    let mut capture = open().map_err(HostError::Helper)?;
    let senders = senders::resolve(&plan).map_err(HostError::Helper)?;
    let contents = TableContents::of(&plan, &senders);
    let sections = contents.sections();
    let table = contents.table(&sections, capture.marks(), passing_user());
    capture.install(&table).map_err(refused)
}

/// Installs the packet rules that any policy needs, in the namespace of the calling thread.
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
    let captured = ports.map(|to| HostRange { to, verdict: HostVerdict::Capture });
    let section = HostSection { senders: Senders::default(), outbound: captured.to_vec() };
    let plan =
        HostPlan { sections: vec![section], unmatched: Unmatched::Deny, inbound: ports.to_vec() };
    let marks = marks_of(HostSettings::MARK_DEFAULT)?;
    let mut capture = HostCapture::open(marks).map_err(io::Error::other)?;
    let contents = TableContents::of(&plan, &senders::resolve(&plan)?);
    let sections = contents.sections();
    capture.install(&contents.table(&sections, marks, None)).map_err(io::Error::other)
}

/// Removes packet rules and routing rules.
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
