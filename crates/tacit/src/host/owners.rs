//! Finds the owner of a socket of the host: its user and control group by socket diagnosis, and its
//! program if this process may inspect other processes (`CAP_SYS_PTRACE`).
//!
//! Socket diagnosis reports the same user and control group that the kernel's packet rules compare:
//! a socket has both from its creation on.
//!
//! Limit: [`OWNERS_TIME_MAX`] for the owners of one request.

use std::io;
use std::time::{Duration, Instant};

use tacit_sys::netlink::diag::{self, DiagSocket};
use tacit_sys::netlink::{Netlink, Subsystem};
use tacit_sys::owner;
use tacit_sys::sandbox::{self, CapabilitySet};

use crate::address;
use crate::cgroups::Cgroups;
use crate::run::kernel_terms::ip_protocol;
use crate::run::protocol::{SocketEnds, SocketOwner};

/// Time limit for the owners of one request, because other requests wait meanwhile. An owner that
/// is not found in time is unknown.
const OWNERS_TIME_MAX: Duration = Duration::from_millis(200);
/// The process from which all others descend.
const INIT: u32 = 1;

/// Looks up owners in the network namespace of this process.
#[derive(Debug)]
pub(super) struct Owners {
    diagnosis: Netlink,
    cgroups: Cgroups,
    sees_programs: bool,
}

impl Owners {
    /// # Errors
    /// The kernel has no socket diagnosis.
    pub(super) fn open() -> io::Result<Self> {
        let diagnosis = Netlink::open(Subsystem::SocketDiagnosis).map_err(io::Error::other)?;
        let sees_programs = sandbox::capabilities()?.contains(CapabilitySet::SYS_PTRACE);
        Ok(Self { diagnosis, cgroups: Cgroups::default(), sees_programs })
    }

    /// Returns the owners in the order of the request.
    pub(super) fn find(&mut self, all: &[SocketEnds]) -> Vec<Option<SocketOwner>> {
        let until = Instant::now() + OWNERS_TIME_MAX;
        let in_time = |ends| (Instant::now() < until).then_some(ends);
        all.iter().map(|ends| self.find_one(*in_time(ends)?)).collect()
    }

    fn find_one(&mut self, ends: SocketEnds) -> Option<SocketOwner> {
        let SocketEnds { protocol, program, peer } = ends;
        let found = diag::owner(&mut self.diagnosis, ip_protocol(protocol), program, peer);
        let DiagSocket { inode, uid, cgroup, .. } = found.ok().flatten()?;
        let pid = self.sees_programs.then(|| holder(inode)).flatten();
        let program = pid.and_then(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok());
        let cgroup = cgroup.and_then(|id| self.cgroups.path(id)).map(str::to_owned);
        let user = Some(address::user_name(uid));
        Some(SocketOwner { pid, program, user, group: None, cgroup })
    }
}

fn holder(inode: u32) -> Option<u32> {
    let is_init = inode != 0 && owner::holds(INIT, inode).unwrap_or(false);
    if is_init { Some(INIT) } else { owner::holder(INIT, inode) }
}
