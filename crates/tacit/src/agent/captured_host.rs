//! Starts and ends the capture of the host's own traffic in the agent. The agent treats the host as
//! a run that has no launcher.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::SystemTime;

use tacit_core::flow::Address;
use tacit_core::policy::Policy;
use tacit_sys::netlink::nft::host::HostMarks;
use tacit_sys::{IpVersion, mark, process, socket, transparent};
use tokio::sync::oneshot;

use super::lanes::Workers;
use super::runs::Runs;
use super::services::{self, Candidate};
use crate::address;
use crate::host::{HostError, HostHelper};
use crate::run::channel::{HelperChannel, adopt};
use crate::run::handover::HeldAddress;
use crate::run::launchers::{self, Followed, Launcher, RunSockets};
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

impl Runs {
    /// Captures the host as the installed policy says.
    ///
    /// # Errors
    /// The helper or the kernel refuses.
    pub(super) async fn begin_host(
        &mut self,
        helper: HostHelper,
        workers: &Workers,
    ) -> Result<(), HostError> {
        self.try_begin_host(helper, workers).await.map_err(HostError::Helper)
    }

    async fn try_begin_host(&mut self, helper: HostHelper, workers: &Workers) -> io::Result<()> {
        let HostHelper { channel, pid } = helper;
        let live = self.shared.live.load();
        let mark = live.policy.host.as_ref().ok_or(io::ErrorKind::InvalidInput)?.mark;
        let copy = channel.as_fd().try_clone_to_owned()?;
        let channel = HelperChannel::open(channel.into())?;
        let mut sockets = channel.host_sockets(mark).await?;
        let clients = sockets.split_off(clients_at(sockets.len()));
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
        };
        let run = Run::new(identity, channel, None, self.host(), SocketSet::Host);
        let sockets = RunSockets::of_host(copy, sockets)?;
        let candidate = Candidate { run, sockets, launcher, before: None };
        let enrolled = services::enrol(candidate, &self.context()).await?;
        let id = self.take(enrolled, held(clients)?, workers).await;
        let log = self.shared.log.clone();
        let followed = Followed { stream, until, id };
        tokio::task::spawn_local(launchers::follow(followed, self.events.clone(), log));
        Ok(())
    }

    /// Ends the capture of the host: what was there before is there again.
    ///
    /// # Errors
    /// A description for the operator.
    pub(super) async fn end_capture(&self) -> Result<(), String> {
        let Some(host) = self.registry.host() else { return Ok(()) };
        host.run.helper.end_capture().await.map_err(|error| {
            format!(
                "the capture of the host cannot end: {error}; fix: stop the agent, then run \
                 `tacit agent --host --remove`"
            )
        })
    }

    /// Changes the capture of the host for a policy that will be installed next.
    ///
    /// # Errors
    /// A description for the operator.
    pub(super) async fn lead_host(&self, policy: &Policy) -> Result<(), String> {
        if self.has_lost_host {
            let reason = "the policy was not installed: the helper that captured the host has \
                          ended\n    fix: restart the agent";
            return Err(reason.to_owned());
        }
        let Some(host) = self.registry.host() else { return Ok(()) };
        host.capture.lead(policy).await.map_err(|error| {
            format!(
                "the policy was not installed: the packet rules of the host cannot be changed: \
                     {error}"
            )
        })
    }
}

/// Returns the index of the first listener for clients among the sockets of a host. There is one
/// for each IP version.
fn clients_at(sockets: usize) -> usize {
    // One socket for the log; for each IP version, five sockets for programs of the host and one
    // for clients.
    let versions = sockets.saturating_sub(1) / 6;
    sockets.saturating_sub(versions)
}

fn held(sockets: Vec<OwnedFd>) -> io::Result<Vec<HeldAddress>> {
    let held = sockets.into_iter().map(|socket| {
        let address: Address = address::from_socket(&socket::local_address(socket.as_fd())?);
        Ok(HeldAddress { address, socket })
    });
    held.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listeners_for_clients_come_last() {
        assert_eq!([clients_at(7), clients_at(13)], [6, 11]);
    }
}
