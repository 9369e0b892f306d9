//! Runs the helper process of `tacit run`: creates the network namespace, and acts inside it for
//! the agent.
//!
//! Only the helper has rights over the namespace. The helper does not know the policy, and ends
//! when `tacit run` ends. The agent sends its requests through a UNIX socket, the *channel*. The
//! helper answers the requests one after the other. If the agent restarts, the new agent gets a
//! channel of its own.
//!
//! The kernel notifies the helper of refused system calls (`notices/`) and of `connect` calls
//! (`connects/`). The helper answers these notifications even while there is no agent.
//!
//! Limits: `CHANNELS_MAX` channels. The search for the owner of a socket takes at most
//! `OWNERS_TIME_MAX`.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use tacit_core::policy::CaptureRange;
use tacit_sys::namespace::{self, JoinedNamespaces, Namespace, Netlinks};
use tacit_sys::netlink::diag::{self, DiagSocket};
use tacit_sys::netlink::nft::{self, AGENT_PORT, HOLD_PORT, SocketMarks};
use tacit_sys::netlink::route::{self, Families, SourceAddresses};
use tacit_sys::netlink::{self, interfaces, tunnel};
use tacit_sys::tun::Tun;
use tacit_sys::{IpVersion, cpu, owner, process, transparent};

use super::connects::ConnectHandler;
use super::covers::Covers;
use super::notices::Notices;
use super::unix_sockets;
use crate::run::host::HostAddresses;
use crate::run::kernel_terms::{element, ip_protocol, spoofed_source_sockets};
use crate::run::protocol::{self, Frame, HelperReply, HelperRequest, SocketEnds, SocketOwner};

/// Maximum number of open channels.
const CHANNELS_MAX: usize = 8;
/// Time limit for finding the owner of a socket, because other requests wait meanwhile. Inspecting
/// a process takes time in proportion to its open files; an owner not found in time is unknown.
const OWNERS_TIME_MAX: Duration = Duration::from_millis(200);

/// The helper's message to the launcher after making the namespaces, or the reason it failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// The namespaces exist.
    Made {
        /// Whether there is a user namespace to join.
        has_own_user: bool,
        /// What was requested but is not available.
        missing: Vec<String>,
    },
    /// The namespaces cannot be made, for this reason.
    Failed(String),
}

/// Makes the namespaces and their sockets, sends them to the launcher, and serves until the end.
///
/// After [`Ready`], the helper sends the descriptors of [`namespace::NamespaceSockets`], then its
/// first channel, then an empty frame when it has closed its copies of the listening sockets. The
/// launcher answers with the listener of the system call filter.
///
/// # Errors
/// The launcher has ended.
/// The launcher has ended.
pub(super) fn run(launcher: &UnixStream, parent: u32, covers: Covers) -> io::Result<()> {
    let none = Families { v4: false, v6: false };
    let made = namespace::create(parent, none, None).and_then(|made| {
        let sockets = namespace::sockets(made.copies)?;
        Ok((made, sockets))
    });
    let (made, sockets) = match made {
        Ok(made) => made,
        Err(error) => return protocol::write(launcher, &Ready::Failed(error.to_string()), &[]),
    };
    let Namespace { has_own_user, missing, netlinks: kernel, .. } = made;
    let (channel, theirs) = UnixStream::pair()?;
    let mut all = sockets.descriptors();
    all.push(theirs.as_fd());
    protocol::write(launcher, &Ready::Made { has_own_user, missing }, &all)?;
    drop((sockets, theirs));
    protocol::write(launcher, &(), &[])?;
    let notices = Notices::awaited(launcher.try_clone()?);
    // The helper uses the descriptor numbers of programs. With a lower limit, some connections are
    // relayed.
    let _ = process::raise_descriptor_limit();
    let own = Some(BTreeSet::new());
    HelperServer { launcher: parent, kernel, covers, own }.serve(channel, notices)
}

/// Serves the namespaces that an earlier helper made. That helper has died.
///
/// # Errors
/// The namespaces cannot be joined, or the launcher has ended.
pub(super) fn run_again(
    channel: UnixStream,
    parent: u32,
    namespaces: JoinedNamespaces<'_>,
    covers: Covers,
) -> io::Result<()> {
    let JoinedNamespaces { network, user } = namespaces;
    let kernel = namespace::join(parent, network, user).map_err(io::Error::other)?;
    // The filter's listener was lost with the earlier helper: the kernel refuses without a report.
    HelperServer { launcher: parent, kernel, covers, own: None }.serve(channel, Notices::default())
}

/// The state of the helper: its rights over the namespace, and the program's processes.
struct HelperServer {
    /// The descendants of this process own the run's sockets.
    launcher: u32,
    kernel: Netlinks,
    covers: Covers,
    /// The addresses of the host in the kernel's sets; `None` if they are not known.
    own: Option<BTreeSet<IpAddr>>,
}

type Answer = (HelperReply, Vec<OwnedFd>);

impl HelperServer {
    /// Answers until neither an agent nor the kernel can send a request.
    fn serve(mut self, first: UnixStream, mut notices: Notices) -> io::Result<()> {
        let mut channels = vec![first];
        let mut connects = ConnectHandler::default();
        while !channels.is_empty() || notices.can_come() {
            let PendingEvents { channel, of_notices, of_connects, of_covers } =
                wait(&channels, &notices, &connects, &self.covers)?;
            self.covers.serve(&of_covers);
            if let Some(reason) = self.covers.take_failure() {
                notices.report_not_hidden(reason);
            }
            connects.serve(&of_connects, notices.listener());
            notices.serve(&of_notices, &mut connects);
            let Some(at) = channel else { continue };
            // An error on one channel affects only its agent.
            let kept = match protocol::read::<HelperRequest>(&channels[at]) {
                Ok(Some(Frame { message: HelperRequest::Channel, .. })) => {
                    self.add_channel(&mut channels, at).is_ok()
                }
                Ok(Some(Frame { message: HelperRequest::Reports, .. })) => {
                    notices.report_on(channels.remove(at));
                    continue;
                }
                Ok(Some(Frame { message: HelperRequest::Connects { outside }, .. })) => {
                    let ask = |ours| connects.ask(ours, outside, notices.listener());
                    begin_asking(&channels[at], ask).is_ok()
                }
                Ok(Some(Frame { message: request, .. })) => {
                    let (reply, sockets) = self.answer(request);
                    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                    protocol::write(&channels[at], &reply, &sockets).is_ok()
                }
                Ok(None) | Err(_) => false,
            };
            if !kept {
                channels.remove(at);
            }
        }
        Ok(())
    }

    fn add_channel(&self, channels: &mut Vec<UnixStream>, requesting: usize) -> io::Result<()> {
        if channels.len() >= CHANNELS_MAX {
            let refused =
                HelperReply::Refused("the helper has too many open channels to agents".into());
            return protocol::write(&channels[requesting], &refused, &[]);
        }
        let (ours, theirs) = UnixStream::pair()?;
        protocol::write(&channels[requesting], &HelperReply::Done, &[theirs.as_fd()])?;
        channels.push(ours);
        Ok(())
    }

    fn answer(&mut self, request: HelperRequest) -> Answer {
        let done = match request {
            HelperRequest::Families { v4, v6 } => {
                let sources = SourceAddresses::default();
                reply(route::allow(&mut self.kernel.route, Families { v4, v6 }, sources))
            }
            HelperRequest::Network { v4, v6, host } => {
                reply(self.network(Families { v4, v6 }, &host))
            }
            HelperRequest::Change { remove, add } => self.change(&remove, &add),
            HelperRequest::Replace(all) => {
                let all: Vec<_> = all.iter().map(element).collect();
                reply(nft::replace_all(&mut self.kernel.netfilter, &all))
            }
            HelperRequest::Socket { protocol, ipv6, count } => {
                let version = if ipv6 { IpVersion::V6 } else { IpVersion::V4 };
                let marks = SocketMarks::OF_RUNS;
                let wanted =
                    transparent::spoofed_source_spec(ip_protocol(protocol), version, marks);
                return match spoofed_source_sockets(wanted, count) {
                    Ok(sockets) => (HelperReply::Done, sockets),
                    Err(error) => (HelperReply::Refused(error.to_string()), Vec::new()),
                };
            }
            HelperRequest::Owners(ends) => {
                let until = Instant::now() + OWNERS_TIME_MAX;
                let in_time = |one| (Instant::now() < until).then_some(one);
                let owners = ends.iter().map(|one| self.owner(in_time(one)?)).collect();
                return (HelperReply::Owners(owners), Vec::new());
            }
            HelperRequest::Connecting(ends) => {
                Ok(HelperReply::Connecting(self.is_connecting(&ends)))
            }
            HelperRequest::Listening => self.listening().map(HelperReply::Listening),
            HelperRequest::UnixSockets => {
                let found = unix_sockets::find(&mut self.kernel.diagnosis, self.launcher);
                found.map(HelperReply::UnixSockets).map_err(|error| error.to_string())
            }
            HelperRequest::Cpu => Ok(HelperReply::Cpu(self.cpu_ns())),
            HelperRequest::Reset { inode } => {
                ConnectHandler::reset(self.launcher, inode).map(|()| HelperReply::Done)
            }
            HelperRequest::Hide(paths) => self.covers.replace(paths).map(|()| HelperReply::Done),
            HelperRequest::OpenTun => {
                return match open_tun() {
                    Ok(tun) => (HelperReply::Done, vec![tun.into()]),
                    Err(reason) => (HelperReply::Refused(reason), Vec::new()),
                };
            }
            HelperRequest::Tunnels(plan) => {
                let groups = plan.groups();
                reply(tunnel::replace(&mut self.kernel.route, plan.device().as_ref(), &groups))
            }
            HelperRequest::HostSockets { .. }
            | HelperRequest::HostPlan { .. }
            | HelperRequest::Learn { .. }
            | HelperRequest::Names { .. }
            | HelperRequest::Addresses { .. }
            | HelperRequest::Counts
            | HelperRequest::HostKeep
            | HelperRequest::HostEnd
            | HelperRequest::Sockets => Err(
                "the helper of a run received a request that only the helper of a captured host \
                 (`tacit agent --host`) can handle; this is a bug in tacit"
                    .to_owned(),
            ),
            // `serve` handles these requests, because it owns the channels.
            HelperRequest::Channel | HelperRequest::Reports | HelperRequest::Connects { .. } => {
                Ok(HelperReply::Done)
            }
        };
        (done.unwrap_or_else(HelperReply::Refused), Vec::new())
    }

    /// Adds addresses before the routes that use them as sources, and removes them afterwards.
    fn network(&mut self, families: Families, host: &HostAddresses) -> Result<(), netlink::Error> {
        let Netlinks { route, netfilter, .. } = &mut self.kernel;
        let wanted = host.interfaces();
        let own: BTreeSet<IpAddr> = host.all().collect();
        match self.own.take() {
            Some(before) => {
                let gone: Vec<_> = before.difference(&own).copied().collect();
                let new: Vec<_> = own.difference(&before).copied().collect();
                nft::change_own(netfilter, &gone, &new)?;
            }
            None => nft::set_own(netfilter, &own.iter().copied().collect::<Vec<_>>())?,
        }
        self.own = Some(own);
        interfaces::give(route, &wanted)?;
        route::allow(route, families, host.sources())?;
        interfaces::lead_to_lo(route, families, &wanted)?;
        interfaces::take_others(route, &wanted)
    }

    fn change(
        &mut self,
        remove: &[CaptureRange],
        add: &[CaptureRange],
    ) -> Result<HelperReply, String> {
        let remove: Vec<_> = remove.iter().map(element).collect();
        let add: Vec<_> = add.iter().map(element).collect();
        reply(nft::change(&mut self.kernel.netfilter, &remove, &add))
    }

    /// The process that holds a socket, or the listener that will accept the connection; `None` if
    /// it cannot be found.
    fn owner(&mut self, ends: &SocketEnds) -> Option<SocketOwner> {
        let socket = self.socket(ends)?;
        let inode = if socket.is_queued { self.listener_at(ends.program)? } else { socket.inode };
        let pid = owner::holder(self.launcher, inode)?;
        let program = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        Some(SocketOwner { pid: Some(pid), program, user: None, cgroup: None })
    }

    /// The socket with these ends; `None` if there is none. The kernel finds a socket that is bound
    /// to an interface only by the index of the interface.
    fn socket(&mut self, ends: &SocketEnds) -> Option<DiagSocket> {
        let SocketEnds { protocol, program, peer } = *ends;
        let protocol = ip_protocol(protocol);
        let Netlinks { route, diagnosis, .. } = &mut self.kernel;
        let unbound = diag::owner(diagnosis, protocol, program, peer).ok()?;
        unbound.or_else(|| {
            let interfaces = interfaces::with_address(route, program.ip()).ok()?;
            interfaces.into_iter().find_map(|interface| {
                diag::owner_on(diagnosis, interface, protocol, program, peer).ok().flatten()
            })
        })
    }

    /// The inode of the listening socket of an address. A socket that listens at this address is
    /// preferred to one that listens at all addresses.
    fn listener_at(&mut self, at: SocketAddr) -> Option<u32> {
        let ip = at.ip().to_canonical();
        let mut found = None;
        for version in IpVersion::ALL {
            let sockets = diag::listeners(&mut self.kernel.diagnosis, version).unwrap_or_default();
            for socket in sockets.into_iter().filter(|socket| socket.local.port() == at.port()) {
                let own = socket.local.ip();
                if own.to_canonical() == ip {
                    return Some(socket.inode);
                }
                if own.is_unspecified() && (own.is_ipv6() || ip.is_ipv4()) {
                    found = found.or(Some(socket.inode));
                }
            }
        }
        found
    }

    /// Whether a program has sent a SYN from this address and waits for the answer.
    fn is_connecting(&mut self, ends: &SocketEnds) -> bool {
        let peer = ends.peer;
        let own = self.listening().unwrap_or_default();
        let is_own = |at: &SocketAddr| {
            at.port() == peer.port() && (at.ip().is_unspecified() || at.ip() == peer.ip())
        };
        let found = self.socket(ends);
        found.is_some_and(|socket| socket.is_connecting) && !own.iter().any(is_own)
    }

    /// CPU time of all processes in this network namespace except the helper. Processes that were
    /// started elsewhere count after their parent here has waited for them.
    fn cpu_ns(&self) -> u64 {
        let own = std::process::id();
        let here = owner::network(own);
        let is_program = |pid: &u32| *pid != own && owner::network(*pid) == here;
        let programs = owner::descendants(self.launcher).into_iter().filter(is_program);
        let of = |pid| cpu::process_ns(pid).unwrap_or(0) + cpu::waited_for_ns(pid).unwrap_or(0);
        programs.map(of).sum()
    }

    /// The addresses where programs listen. The agent's own listeners are recognised by their port.
    fn listening(&mut self) -> Result<Vec<SocketAddr>, String> {
        let mut found = Vec::new();
        for version in IpVersion::ALL {
            match diag::listeners(&mut self.kernel.diagnosis, version) {
                Ok(sockets) => found.extend(sockets.into_iter().map(|socket| socket.local)),
                Err(_) if version == IpVersion::V6 => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        found.retain(|address| ![AGENT_PORT, HOLD_PORT].contains(&address.port()));
        Ok(found)
    }
}

/// Sends an agent one end of the socket for questions about connections, and uses the other.
fn begin_asking(channel: &UnixStream, ask: impl FnOnce(OwnedFd)) -> io::Result<()> {
    let (ours, theirs) = tacit_sys::query::pair()?;
    protocol::write(channel, &HelperReply::Done, &[theirs.as_fd()])?;
    ask(ours);
    Ok(())
}

/// The events to handle.
struct PendingEvents {
    /// The channel on which an agent sent a request.
    channel: Option<usize>,
    /// The events of [`Notices::descriptors`].
    of_notices: Vec<PollFlags>,
    /// The events of [`ConnectHandler::descriptors`].
    of_connects: Vec<PollFlags>,
    /// The events of [`Covers::descriptors`].
    of_covers: Vec<PollFlags>,
}

/// Waits for a request of an agent, the kernel or the launcher.
fn wait(
    channels: &[UnixStream],
    notices: &Notices,
    connects: &ConnectHandler,
    covers: &Covers,
) -> io::Result<PendingEvents> {
    let of_channels = channels.iter().map(AsFd::as_fd);
    let of_calls = notices.descriptors().chain(connects.descriptors());
    let all = of_channels.chain(of_calls).chain(covers.descriptors());
    let mut polled: Vec<_> = all.map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN)).collect();
    let timeouts = [notices.timeout(), connects.timeout(), covers.timeout()];
    let timeouts = timeouts.into_iter().flatten();
    let timeout = timeouts.min_by_key(|timeout| (timeout.tv_sec, timeout.tv_nsec));
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let (of_channels, others) = polled.split_at(channels.len());
    let (of_notices, others) = others.split_at(notices.descriptors().count());
    let (of_connects, of_covers) = others.split_at(connects.descriptors().count());
    let events = |polled: &[PollFd<'_>]| polled.iter().map(PollFd::revents).collect();
    Ok(PendingEvents {
        channel: of_channels.iter().position(|one| !one.revents().is_empty()),
        of_notices: events(of_notices),
        of_connects: events(of_connects),
        of_covers: events(of_covers),
    })
}

/// Makes a TUN device, with a name that no other interface has.
fn open_tun() -> Result<Tun, String> {
    Tun::open("tacit%d").map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            "/dev/net/tun is missing, so the programs of this run cannot use IPsec tunnels\n    \
             fix: load the kernel module tun; in a container, pass the device (--device \
             /dev/net/tun)"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "this user may not open /dev/net/tun, so the programs of this run cannot use IPsec \
             tunnels\n    fix: run `chmod 666 /dev/net/tun` (systemd sets the same mode); tacit \
             needs no other permission"
                .to_owned()
        }
        _ => format!("cannot create a TUN device: {error}"),
    })
}

fn reply(result: Result<(), netlink::Error>) -> Result<HelperReply, String> {
    result.map(|()| HelperReply::Done).map_err(|error| error.to_string())
}
