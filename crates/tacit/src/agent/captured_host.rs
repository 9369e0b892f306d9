//! Starts and ends the capture of the host's own traffic (`tacit agent --host`). For the agent, the
//! captured host is a run, like a program under `tacit run`. The run of the captured host has no
//! launcher process.

use std::io;
use std::os::fd::AsFd;
use std::time::SystemTime;

use tacit_core::policy::Policy;
use tacit_sys::netlink::nft::host::HostMarks;
use tacit_sys::{IpVersion, mark, process, transparent};
use tokio::sync::oneshot;

use super::host_sockets;
use super::lanes::Workers;
use super::runs::Runs;
use super::services::{self, Candidate, Enrolled};
use crate::address;
use crate::host::{HostError, HostHelper};
use crate::run::Outside;
use crate::run::channel::{HelperChannel, adopt};
use crate::run::launchers::{self, Followed, Launcher};
use crate::run::protocol::SocketSet;
use crate::run::{Run, RunIdentity};

/// The name of the host in displays.
const NAME: &str = "host";

/// Marks every socket that the agent opens from now on.
///
/// # Errors
/// The policy has no `[host]`, or the process may not mark packets.
pub(super) fn mark_own_packets(policy: &Policy) -> Result<(), HostError> {
    let settings = policy.host.as_ref().ok_or(HostError::NoSettings)?;
    // The policy has checked that these are two bits.
    let marks = HostMarks::new(settings.mark).ok_or(HostError::NoSettings)?;
    may_mark(marks.agent()).map_err(HostError::NoRights)?;
    mark::set_own(marks.agent());
    Ok(())
}

/// Whether this process may mark packets.
///
/// # Errors
/// The error of the kernel.
pub(super) fn may_mark(value: u32) -> io::Result<()> {
    transparent::make(transparent::SocketSpec {
        kind: transparent::TransparentKind::Udp,
        version: IpVersion::V4,
        transparent: false,
        mark: Some(value),
    })
    .map(|_| ())
}

/// What the end of a capture leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CaptureEnd {
    /// Its nftables rules, which refuse what they capture.
    Rules,
    /// What was there before, unless the operator confirms the capture.
    AsBefore,
}

impl Runs {
    /// Captures the host as the installed policy says.
    ///
    /// # Errors
    /// The helper or the kernel refuses, or another agent captures the host.
    pub(super) async fn begin_host(
        &mut self,
        helper: HostHelper,
        workers: &Workers,
        end: CaptureEnd,
    ) -> Result<(), HostError> {
        self.try_begin_host(helper, workers, end).await.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => HostError::InUse,
            _ => HostError::Helper(error),
        })?;
        // A large policy needs far more memory to be read and installed than later.
        process::return_freed_memory();
        Ok(())
    }

    async fn try_begin_host(
        &mut self,
        helper: HostHelper,
        workers: &Workers,
        end: CaptureEnd,
    ) -> io::Result<()> {
        let HostHelper { channel, pid } = helper;
        let live = self.shared.live.load();
        let mark = live.policy.host.as_ref().ok_or(io::ErrorKind::InvalidInput)?.mark;
        let copy = channel.as_fd().try_clone_to_owned()?;
        let channel = HelperChannel::open(channel.into())?;
        let (sockets, clients) = host_sockets::sockets_of(&channel, copy, mark).await?;
        if end == CaptureEnd::AsBefore {
            channel.keep_rules().await?;
        }
        // The connection is closed when the helper ends; nothing else is read from it.
        let connection = channel.another().await?;
        let stream = adopt(connection.try_clone()?)?;
        let (reading, until) = oneshot::channel();
        let launcher = Launcher { connection, reading };
        let identity = RunIdentity {
            id: self.registry.next_id(),
            name: NAME.to_owned(),
            pid,
            user: address::user_name(process::effective_user()),
            since: SystemTime::now(),
            claimed: false,
            covers_files: false,
            lists_unix_sockets: false,
        };
        let run = Run::new(identity, channel, None, self.host(), SocketSet::Host, Outside::Host);
        let candidate = Candidate { run, sockets, launcher, tunnels: None, before: None };
        let enrolled = services::enrol(candidate, &self.context()).await?;
        let id = self.take(enrolled, clients, workers).await;
        let log = self.shared.log.clone();
        let followed = Followed { stream, until, id };
        tokio::task::spawn_local(launchers::follow(followed, self.events.clone(), log));
        Ok(())
    }

    /// Ends the capture of the host, and restores the earlier network settings.
    ///
    /// # Errors
    /// A description for the operator.
    pub(super) async fn end_capture(&self) -> Result<(), String> {
        if self.has_lost_host {
            let reason = "cannot stop capturing the traffic of the host: the helper that captured \
                          the host's traffic has ended\n    \
                          fix: stop the agent, then run `tacit agent --host --remove`";
            return Err(reason.to_owned());
        }
        let Some(host) = self.registry.host() else { return Ok(()) };
        host.run.helper.end_capture().await.map_err(|error| {
            format!(
                "cannot stop capturing the traffic of the host: {error}; fix: stop the agent, then \
                 run `tacit agent --host --remove`"
            )
        })
    }

    /// Changes the capture of the host, and of joined namespaces, for a policy that will be
    /// installed next. Helpers of other users could delay this change, so they get it later.
    ///
    /// # Errors
    /// A description for the operator.
    pub(super) async fn lead_host(&self, policy: &Policy) -> Result<(), String> {
        if self.has_lost_host {
            let reason = "the policy was not installed: the helper that captured the host's \
                          traffic has ended\n    fix: restart the agent";
            return Err(reason.to_owned());
        }
        if let Some(host) = self.registry.host() {
            host.capture.lead(policy).await.map_err(|error| {
                format!(
                    "the policy was not installed: cannot change the nftables rules of the host: \
                     {error}"
                )
            })?;
        }
        let joined = |enrolled: &&Enrolled| enrolled.run.is_joined() && !enrolled.run.claimed;
        for enrolled in self.registry.all().filter(joined) {
            enrolled.capture.lead(policy).await.map_err(|error| {
                format!(
                    "the policy was not installed: cannot change the nftables rules of the run \
                     `{run}`: {error}; fix: end the run with `kill {pid}`",
                    run = enrolled.run.name,
                    pid = enrolled.run.pid
                )
            })?;
        }
        Ok(())
    }
}
