//! What this kernel has.

use std::path::Path;

/// Whether this kernel has IPv6, whatever it can route.
#[must_use]
pub fn kernel_has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}
