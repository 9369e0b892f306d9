//! Creates a network namespace for a link server. In this namespace, every address is local, and no
//! program runs.
//!
//! Over a *link*, a program uses sockets of another kernel. For each of these sockets, the link
//! server on the program's kernel opens a pair of sockets in this namespace. The two sockets of a
//! pair are connected to each other. The program gets the first socket. The first socket has the
//! same address as the socket on the other kernel. The packets between the two sockets do not leave
//! the namespace.

use super::{
    LOW_PORTS_START, choose_congestion_control, end_with, ip_support, lead_session, own_user, set,
    unshare,
};
use crate::IpSupport;
use crate::namespace::{NamespaceError, NamespaceStep};
use crate::netlink::route::{self, Families, SourceAddresses};
use crate::netlink::{Netlink, Subsystem};

/// Moves the calling process into such a namespace. `parent` has the same meaning as in
/// [`create`](super::create).
///
/// # Errors
/// The step that failed.
pub fn create_mirror(parent: u32) -> Result<(), NamespaceError> {
    lead_session().map_err(NamespaceStep::Session.failed())?;
    end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    if rustix::process::geteuid().is_root() {
        unshare(libc::CLONE_NEWNET).map_err(NamespaceStep::Unshare.failed())?;
    } else {
        own_user()?;
        // A change of credentials clears the signal for the death of the parent.
        end_with(parent).map_err(NamespaceStep::ParentDeath.failed())?;
    }
    let families = Families { v4: true, v6: ip_support() == IpSupport::V4AndV6 };
    let mut route = Netlink::open(Subsystem::Route).map_err(NamespaceStep::Network.failed())?;
    route::bring_up(&mut route).map_err(NamespaceStep::Network.refused())?;
    route::allow(&mut route, families, SourceAddresses::default())
        .map_err(NamespaceStep::Network.refused())?;
    // Large segments only save CPU time. Without the low ports, sockets have other ports.
    let _ = route::allow_large_segments(&mut route);
    let _ = set("net/ipv4/ip_unprivileged_port_start", LOW_PORTS_START);
    // The congestion control of the host may pace, which costs CPU time.
    let _ = choose_congestion_control();
    Ok(())
}
