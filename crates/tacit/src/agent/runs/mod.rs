//! Runs that are enrolled with this agent: their listeners, what is captured, and their DNS.
//!
//! ```text
//!   enrol     launchers come and go
//!   inbound   addresses outside are open while a program listens inside
//!   handover  a successor goes on with a run where this agent stopped
//! ```
//!
//! A run lives as long as its launcher's connection. Everything that is learnt about a run stays
//! with the run.

mod enrol;
mod handover;
mod inbound;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arc_swap::ArcSwap;
use tacit_core::policy::{Policy, TrustSource};
use tacit_sys::socket;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::address;
use crate::datagram::Receiver;
use crate::dns::{Forwarder, Resolvers};
use crate::live::Live;
use crate::log::{Event, Log};
use crate::query::Service;
use crate::run::Run;
use crate::run::capture::Capture;
use crate::session::Table;
use crate::stream::intercept::{Listener, Source};

use inbound::Inbound;

pub(super) use enrol::{
    EVENTS_MAX, Launcher, RunEvent, RunSockets, accept_launchers, follow, welcome,
};
pub(super) use handover::{Resumed, RunState};
pub(super) use inbound::{Reserved, reserve_missing};

/// One run as the agent holds it.
pub(super) struct Enrolled {
    pub(super) run: Arc<Run>,
    /// What workers accept on, by the number they know it by.
    pub(super) listeners: Vec<(u64, Arc<Listener>)>,
    /// Where a worker receives datagrams, likewise.
    pub(super) receivers: Vec<(u64, Arc<Receiver>)>,
    launcher: Launcher,
    /// The policy that was in force before its capture was made.
    pub(super) generation: u64,
    pub(super) capture: Arc<Capture>,
    pub(super) inbound: Inbound,
    /// Its programs ask here about their connections.
    query: Option<Service>,
    /// Follows the ports that programs listen on.
    watching: JoinHandle<()>,
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What of the agent its runs use.
pub(super) struct Surroundings<'a> {
    pub(super) live: &'a Arc<ArcSwap<Live>>,
    pub(super) table: &'a Arc<Table>,
    pub(super) resolvers: &'a Arc<Resolvers>,
    pub(super) hosts: &'a [(IpAddr, String)],
    pub(super) log: &'a Log,
    pub(super) events: &'a mpsc::Sender<RunEvent>,
}

impl Enrolled {
    /// Takes a run in: captures what the policy lets through. `before` leads to the agent that had
    /// it before, to ask about connections that stayed there.
    ///
    /// # Errors
    /// The kernel refuses the sets or a socket.
    pub(super) async fn begin(
        run: Arc<Run>,
        sockets: RunSockets,
        launcher: Launcher,
        before: Option<OwnedFd>,
        around: Surroundings<'_>,
    ) -> io::Result<Self> {
        let RunSockets { tcp, udp, raw, query, line: _ } = sockets;
        let query = query.zip(tcp.first()).and_then(|(query, network)| {
            let started = Service::start(query, network, before, &run, around.table, around.log);
            // A run is as well protected without: an old kernel does not tell networks apart.
            let told = |error: &io::Error| {
                let event = Event::new("query-unavailable").field("run", &run.name);
                around.log.warn(event.field("error", error));
            };
            started.inspect_err(told).ok()
        });
        let capture = Capture::new(Arc::clone(&run), Arc::clone(around.live), around.log.clone());
        let capture = Arc::new(capture);
        run.set_capture(&capture);
        let generation = around.live.load().generation;
        capture.take_hosts(around.hosts);
        capture.follow().await?;
        let names = Arc::new(Forwarder::new(
            Arc::clone(around.live),
            Arc::clone(&capture),
            Arc::clone(around.resolvers),
            around.log.clone(),
        ));
        // Towards the program the namespace's own, which is chosen for one machine.
        let options = socket::StreamOptions { congestion_control: None, reset_on_exit: true };
        let mut listeners = Vec::new();
        for socket in tcp {
            socket::adopt(socket.as_fd(), &options)?;
            let address = address::from_socket(&socket::local_address(socket.as_fd())?);
            let source = Source::Captured(Arc::clone(&run), Arc::clone(&names));
            let listener = Listener { address, socket: Arc::new(socket), clear: true, source };
            listeners.push((0, Arc::new(listener)));
        }
        let receiver = |(socket, raw): (OwnedFd, OwnedFd)| {
            let (socket, raw) = (Arc::new(socket), Arc::new(raw));
            let (run, names) = (Arc::clone(&run), Arc::clone(&names));
            (0, Arc::new(Receiver { socket, raw, run, names }))
        };
        let receivers = udp.into_iter().zip(raw).map(receiver).collect();
        let (live, events) = (Arc::clone(around.live), around.events.clone());
        let watching = tokio::task::spawn_local(inbound::watch(Arc::clone(&run), live, events));
        let inbound = Inbound::default();
        Ok(Self {
            run,
            listeners,
            receivers,
            launcher,
            generation,
            capture,
            inbound,
            query,
            watching,
        })
    }

    /// How many boxes of addresses and ports are captured.
    pub(super) fn captured(&self) -> Option<usize> {
        self.capture.count()
    }

    /// Stops following; what arrives waits in the sockets.
    pub(super) fn stop(&self) {
        self.watching.abort();
    }
}

/// Has a run's capture follow the policy, and what the host's file says of names, as they are now.
///
/// # Errors
/// The kernel refuses the sets, or nobody inside can be asked.
pub(super) async fn follow_with(capture: &Capture, hosts: &[(IpAddr, String)]) -> io::Result<()> {
    capture.take_hosts(hosts);
    capture.follow().await
}

/// Files that are none of a program's business: the policy, the keys and the anchors it names. What
/// the distribution gives to everybody stays readable.
pub(super) fn secret_files(policy: &Policy, file: &std::path::Path) -> Vec<std::path::PathBuf> {
    const EVERYBODYS: [&str; 4] =
        ["/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/usr/share/ca-certificates"];
    let base = super::directory_of(file);
    let keys = policy.identities.values().map(|identity| base.join(&identity.key));
    let anchors = policy.trusts.values().flat_map(|trust| match &trust.source {
        TrustSource::Files(files) => files.iter().map(|file| base.join(file)).collect(),
        TrustSource::System => Vec::new(),
    });
    let lists = policy.trusts.values().flat_map(|trust| &trust.crls).map(|file| base.join(file));
    let all = keys.chain(anchors).chain(lists).filter_map(|file| file.canonicalize().ok());
    let all = all.filter(|file| !EVERYBODYS.iter().any(|directory| file.starts_with(directory)));
    file.canonicalize().into_iter().chain(all).collect()
}

/// All runs of the agent, by number.
pub(super) type Runs = BTreeMap<u64, Enrolled>;
