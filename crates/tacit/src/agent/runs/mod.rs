//! Runs that are enrolled with this agent: their listeners, what is captured, and their DNS.
//!
//! A run lives as long as its launcher's connection. Everything that names learn about a run stays
//! with the run.

mod dns;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use serde_json::Value;
use tacit_core::policy::{Captured, captured};
use tacit_sys::netlink::{Netlink, Protocol, nft};
use tacit_sys::socket;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};

use crate::address;
use crate::control::Answer;
use crate::launch::enrol::{self, Enrolment, RunSockets};
use crate::live::Live;
use crate::log::{Event, Log};
use crate::run::Run;
use crate::stream::intercept::Listener;

pub(super) use dns::Resolvers;

/// Runs that may wait to be enrolled.
pub(super) const ENROLMENTS_MAX: usize = 64;

/// What enrolment tells the control thread.
pub(super) enum RunEvent {
    /// A launcher asks; the answer is the run's number.
    Begin { enrolment: Enrolment, sockets: RunSockets, user: String, back: oneshot::Sender<u64> },
    /// Its connection is closed.
    End(u64),
}

/// One run as the agent holds it.
pub(super) struct Enrolled {
    run: Arc<Run>,
    /// What workers accept on.
    pub(super) listeners: Vec<Arc<Listener>>,
    kernel: Rc<Kernel>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Enrolled {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// The run's side of the kernel: what is captured, and sockets on request.
pub(super) struct Kernel {
    run: Arc<Run>,
    netfilter: RefCell<Netlink>,
    /// What the kernel's sets hold.
    mirror: RefCell<BTreeSet<Captured>>,
    helper: RefCell<StdStream>,
}

impl Enrolled {
    /// Takes a run in: captures what the policy lets through, and answers its DNS.
    ///
    /// # Errors
    /// The kernel refuses the sets or a socket.
    pub(super) fn begin(
        run: Arc<Run>,
        sockets: RunSockets,
        live: &Arc<ArcSwap<Live>>,
        resolvers: &Resolvers,
        congestion_control: Option<&str>,
        log: &Log,
    ) -> io::Result<Self> {
        let RunSockets { tcp, udp, netfilter, helper } = sockets;
        let kernel = Rc::new(Kernel {
            run: Arc::clone(&run),
            netfilter: RefCell::new(Netlink::adopt(netfilter)),
            mirror: RefCell::default(),
            helper: RefCell::new(helper.into()),
        });
        kernel.capture(&live.load())?;
        let options = socket::StreamOptions {
            congestion_control: congestion_control.map(str::to_owned),
            reset_on_exit: true,
        };
        let mut listeners = Vec::new();
        for socket in tcp {
            socket::adopt_listener(socket.as_fd(), &options)?;
            let address = address::from_socket(&socket::local_address(socket.as_fd())?);
            let (socket, run) = (Arc::new(socket), Some(Arc::clone(&run)));
            listeners.push(Arc::new(Listener { address, socket, clear: true, run }));
        }
        let answer = |socket: OwnedFd| {
            let forwarder = dns::Forwarder {
                live: Arc::clone(live),
                kernel: Rc::clone(&kernel),
                resolvers: resolvers.clone(),
                log: log.clone(),
            };
            tokio::task::spawn_local(dns::answer_all(forwarder, socket))
        };
        let tasks = udp.into_iter().map(answer).collect();
        Ok(Self { run, listeners, kernel, tasks })
    }

    /// Follows a new policy.
    ///
    /// # Errors
    /// The kernel refuses the sets.
    pub(super) fn capture(&self, live: &Live) -> io::Result<()> {
        self.kernel.capture(live)
    }

    pub(super) fn run(&self) -> &Run {
        &self.run
    }
}

impl Kernel {
    /// Brings the kernel's sets to what the policy and the names known so far ask for.
    fn capture(&self, live: &Live) -> io::Result<()> {
        let learnt = self.run.learnt();
        let learnt = learnt.iter().map(|(address, name)| (*address, name.as_str()));
        let wanted: BTreeSet<Captured> = captured(&live.policy, learnt)
            .into_iter()
            // Datagrams other than DNS are not carried: they are refused by the kernel.
            .filter(|one| !one.udp)
            .collect();
        let mut mirror = self.mirror.borrow_mut();
        let gone: Vec<_> = mirror.difference(&wanted).map(element).collect();
        let new: Vec<_> = wanted.difference(&mirror).map(element).collect();
        let mut netfilter = self.netfilter.borrow_mut();
        let failed = |error: tacit_sys::netlink::Error| io::Error::other(error.to_string());
        nft::change(&mut netfilter, &gone, &new).map_err(failed)?;
        *mirror = wanted;
        Ok(())
    }
}

fn element(one: &Captured) -> nft::Element {
    let Captured { udp, first, last, first_port, last_port } = *one;
    let protocol = if udp { Protocol::Udp } else { Protocol::Tcp };
    nft::Element { protocol, first, last, first_port, last_port }
}

/// Accepts launchers for ever.
pub(super) async fn accept_launchers(
    listener: UnixListener,
    events: mpsc::Sender<RunEvent>,
    log: Log,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let (events, log) = (events.clone(), log.clone());
                tokio::task::spawn_local(async move {
                    if let Err(error) = follow(stream, events).await {
                        log.warn(Event::new("enrolment-failed").field("error", &error));
                    }
                });
            }
            Err(error) => {
                log.warn(Event::new("enrolment-failed").field("error", &error));
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// One launcher, from its enrolment to its end.
async fn follow(stream: UnixStream, events: mpsc::Sender<RunEvent>) -> io::Result<()> {
    let ending = || io::Error::other("the agent is ending");
    let user = socket::peer_credentials(stream.as_fd())?.uid.as_raw();
    let (enrolment, sockets) = loop {
        stream.readable().await?;
        match stream.try_io(tokio::io::Interest::READABLE, || enrol::receive::<Enrolment>(&stream))
        {
            Ok(Some(received)) => break received,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    };
    let sockets = RunSockets::from_order(sockets, enrolment.ipv6)?;
    let (back, begun) = oneshot::channel();
    let user = address::user_name(user);
    let begin = RunEvent::Begin { enrolment, sockets, user, back };
    events.send(begin).await.map_err(|_| ending())?;
    let Ok(id) = begun.await else {
        let refused = Answer::Error("the agent refuses the run; its log says why".into());
        return enrol::send(&stream, &refused, &[]);
    };
    enrol::send(&stream, &Answer::Ok(Value::Null), &[])?;
    // Nothing more is said on this line: what is read is its end.
    loop {
        stream.readable().await?;
        match stream.try_read(&mut [0; 64]) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
            Ok(_) | Err(_) => {}
        }
    }
    events.send(RunEvent::End(id)).await.map_err(|_| ending())
}

/// All runs of the agent, by number.
pub(super) type Runs = BTreeMap<u64, (Vec<u64>, Enrolled)>;
