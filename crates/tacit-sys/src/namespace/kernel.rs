//! Checks whether the kernel supports IPv6.

use std::path::Path;

use crate::ip_version::IpSupport;

/// Whether this kernel has IPv6, even if it has no route for IPv6.
#[must_use]
pub fn kernel_has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

pub(crate) fn ip_support() -> IpSupport {
    if kernel_has_ipv6() { IpSupport::V4AndV6 } else { IpSupport::V4Only }
}
