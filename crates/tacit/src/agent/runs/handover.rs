//! A run on its way to a successor of the agent.
//!
//! The sockets are the same ones: what waits in them when this agent stops reading is the
//! successor's to take. The helper gives the successor a line of its own.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tacit_core::dns::GRACE;
use tacit_core::flow::Address;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use super::{Enrolled, Launcher, Reserved, RunSockets};
use crate::query::Service;
use crate::run::Run;
use crate::run::line::{Line, adopt};

/// A run in words; its sockets follow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::agent) struct RunState {
    pub(in crate::agent) id: u64,
    name: String,
    pid: u32,
    user: String,
    since: SystemTime,
    claimed: bool,
    /// The CPU that it shares with a worker.
    #[serde(default)]
    pub(in crate::agent) cpu: Option<usize>,
    /// Names, addresses, and for how many seconds more.
    names: Vec<(String, IpAddr, u64)>,
    /// Addresses held outside; their sockets come after all others but one.
    inbound: Vec<Address>,
    /// Whether the last socket leads to the agent before, to ask about what stays with it.
    #[serde(default)]
    asks_before: bool,
    /// How many sockets follow.
    pub(in crate::agent) sockets: usize,
}

impl Enrolled {
    /// What a successor needs to go on; the launcher's connection is the first socket.
    ///
    /// # Errors
    /// No descriptor is left, or the helper makes no line.
    pub(in crate::agent) async fn hand_over(&self) -> io::Result<(RunState, Vec<OwnedFd>)> {
        self.run.expect_no_more();
        let line = self.run.line.another().await?;
        let mut sockets = vec![self.launcher.connection.try_clone()?, line];
        let asked = self.query.as_ref().map(Service::hand_over).transpose()?;
        let (query, before) = asked.unzip();
        sockets.extend(query);
        for ((_, tcp), (_, udp)) in self.listeners.iter().zip(&self.receivers) {
            for socket in [&tcp.socket, &udp.socket, &udp.raw] {
                sockets.push(socket.as_fd().try_clone_to_owned()?);
            }
        }
        let (inbound, held): (Vec<_>, Vec<_>) = self.inbound.copies()?.into_iter().unzip();
        sockets.extend(held);
        let asks_before = before.is_some();
        sockets.extend(before);
        let Run { id, name, pid, user, since, claimed, .. } = &*self.run;
        let names = self.run.learnt();
        let state = RunState {
            id: *id,
            name: name.clone(),
            pid: *pid,
            user: user.clone(),
            since: *since,
            claimed: *claimed,
            cpu: self.run.cpu(),
            names: names.into_iter().map(|(name, ip, left)| (name, ip, left.as_secs())).collect(),
            inbound,
            asks_before,
            sockets: sockets.len(),
        };
        Ok((state, sockets))
    }

    /// A copy of the launcher's connection, to see when the run ends.
    pub(in crate::agent) fn connection(&self) -> Option<OwnedFd> {
        self.launcher.connection.try_clone().ok()
    }
}

impl RunState {
    /// The run as it was, with the launcher's connection and the sockets.
    ///
    /// # Errors
    /// Sockets are missing.
    pub(in crate::agent) fn resume(self, mut sockets: Vec<OwnedFd>) -> io::Result<Resumed> {
        let before = if self.asks_before { sockets.pop() } else { None };
        if sockets.len() <= self.inbound.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let held = sockets.split_off(sockets.len() - self.inbound.len());
        let inbound = self.inbound.into_iter().zip(held);
        let inbound = inbound.map(|(address, socket)| Reserved::from_predecessor(address, socket));
        let connection = sockets.remove(0);
        let stream = adopt(connection.try_clone()?)?;
        let (reading, until) = oneshot::channel();
        let launcher = Launcher { connection, _reading: reading };
        let sockets = RunSockets::from_order(sockets)?;
        let line = Line::open(sockets.line.try_clone()?)?;
        let mut run = Run::new(self.id, self.name, self.pid, self.user, self.claimed, line);
        run.since = self.since;
        for (name, address, seconds) in self.names {
            // What is left counts the grace that learning adds again.
            let left = Duration::from_secs(seconds).saturating_sub(GRACE);
            run.learn(&name, address, left);
        }
        Ok(Resumed { run, launcher, stream, until, sockets, inbound: inbound.collect(), before })
    }
}

/// A run as the agent before this one had it.
pub(in crate::agent) struct Resumed {
    pub(in crate::agent) run: Run,
    pub(in crate::agent) launcher: Launcher,
    /// To be followed until the run goes on to the next.
    pub(in crate::agent) stream: UnixStream,
    pub(in crate::agent) until: oneshot::Receiver<()>,
    pub(in crate::agent) sockets: RunSockets,
    pub(in crate::agent) inbound: Vec<Reserved>,
    /// To the agent before, which still has connections.
    pub(in crate::agent) before: Option<OwnedFd>,
}
