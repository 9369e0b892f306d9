//! Runs the helper process of `tacit agent --host`. The helper installs nftables rules and routing
//! rules, and creates sockets for the agent. So the helper needs capabilities for these tasks, and
//! the agent does not need them. The helper does not know the policy.
//!
//! Before the agent reads any input, it starts the helper. When a successor replaces the agent, the
//! same helper serves the successor. The helper ends when no agent has a channel to the helper. The
//! nftables rules remain after the helper ends. Without an agent, they refuse captured flows.
//!
//! The helper checks at intervals whether another program has removed these rules, and installs
//! missing rules again (`watched/mod.rs`).
//!
//! Limit: at most `CHANNELS_MAX` channels to agents.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tacit_core::flow;
use tacit_core::message_id::MessageId;
use tacit_core::policy::{HostName, HostPlan, NamedAddress};
use tacit_sys::host::{HostCapture, is_taken};
use tacit_sys::netlink::nft::host::RuleChanges;
use tacit_sys::process::{self, StandardError};
use tacit_sys::sandbox::{self, CapabilitySet};
use tacit_sys::{IpVersion, transparent};

use super::owners::Owners;
use super::units::{self, FoundUnits};
use super::watched::{Installed, Watched};
use super::{learnt, marks_of, senders};
use crate::exit::{EXIT_FAILURE, EXIT_OK, complain_of};
use crate::run::kernel_terms::{ip_protocol, spoofed_source_sockets};
use crate::run::protocol::{self, Frame, HelperReply, HelperRequest, NAMES_PER_REPLY_MAX};

/// The maximum number of channels.
const CHANNELS_MAX: usize = 8;
/// The name of the process in lists such as `ps`.
const NAME: &str = "tacit-host";
/// The capabilities for nftables rules and routing rules, for raw sockets and, if the systemd unit
/// grants it, for inspecting programs.
pub(super) const RIGHTS: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::SYS_PTRACE);

/// The agent's channel to the helper.
#[derive(Debug)]
pub struct HostHelper {
    /// The channel for requests.
    pub channel: UnixStream,
    /// The process of the helper.
    pub pid: u32,
}

impl HostHelper {
    /// Ends a helper that is not needed.
    pub fn dismiss(self) {
        let Self { channel, pid } = self;
        drop(channel);
        // The helper has no other channel.
        let _ = process::wait(pid);
    }
}

/// Starts the helper. The process must have one thread.
///
/// # Errors
/// The error of `fork` or `socketpair`.
pub fn start() -> io::Result<HostHelper> {
    let (ours, theirs) = UnixStream::pair()?;
    // Each of the two processes takes one end.
    let theirs = Cell::new(Some(theirs));
    let pid = process::fork(|| {
        let Some(channel) = theirs.take() else { return EXIT_FAILURE };
        match serve(channel) {
            Ok(()) => EXIT_OK,
            Err(error) => {
                complain_of(
                    MessageId("host-helper-failed"),
                    format_args!("the helper process of the captured host has ended: {error}"),
                );
                EXIT_FAILURE
            }
        }
    })?;
    Ok(HostHelper { channel: ours, pid })
}

fn serve(channel: UnixStream) -> io::Result<()> {
    process::keep_only(&[channel.as_fd()], StandardError::Kept)?;
    process::lead_process_group()?;
    process::name_thread(NAME);
    sandbox::keep_capabilities(RIGHTS & sandbox::capabilities()?)?;
    serve_requests(channel)
}

/// Serves in the network namespace of this process until no agent has a channel.
pub(super) fn serve_requests(channel: UnixStream) -> io::Result<()> {
    let mut server = HostHelperServer::default();
    let mut channels = vec![channel];
    let changes = RuleChanges::open()?;
    while !channels.is_empty() {
        let left = server.watched.look(server.capture.as_mut(), Instant::now());
        let Woken { request, has_report } = wait(&channels, &changes, left)?;
        if has_report && changes.read() {
            server.watched.look_soon(Instant::now());
        }
        if let Some(at) = request {
            server.answer_on(&mut channels, at);
        }
    }
    server.watched.end_audit(server.capture.as_mut())
}

/// Why the helper continues; neither: the time is over.
struct Woken {
    /// The channel with a request.
    request: Option<usize>,
    /// A program has changed nftables rules.
    has_report: bool,
}

/// Waits for a request, for a change of nftables rules, or for this time.
fn wait(
    channels: &[UnixStream],
    changes: &RuleChanges,
    time: Option<Duration>,
) -> io::Result<Woken> {
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    let channels = channels.iter().map(AsFd::as_fd);
    let all = channels.chain([changes.as_fd()]);
    let mut polled: Vec<_> = all.map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN)).collect();
    match poll(&mut polled, time.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(errno) => return Err(errno.into()),
    }
    let report = polled.pop();
    Ok(Woken {
        request: polled.iter().position(|one| !one.revents().is_empty()),
        has_report: report.is_some_and(|one| !one.revents().is_empty()),
    })
}

/// The state of the helper.
#[derive(Default)]
struct HostHelperServer {
    capture: Option<HostCapture>,
    owners: Option<Owners>,
    watched: Watched,
    /// The names that are being reported.
    names: Vec<HostName>,
    /// The addresses that are being reported.
    addresses: Vec<NamedAddress>,
}

type Answer = (HelperReply, Vec<OwnedFd>);

impl HostHelperServer {
    fn answer_on(&mut self, channels: &mut Vec<UnixStream>, at: usize) {
        let kept = match protocol::read::<HelperRequest>(&channels[at]) {
            Ok(Some(Frame { message: HelperRequest::Channel, .. })) => {
                add_channel(channels, at).is_ok()
            }
            Ok(Some(Frame { message: HelperRequest::Reports, .. })) => false,
            Ok(Some(Frame { message: request, .. })) => {
                let (reply, sockets) = self.answer(request).unwrap_or_else(refusal);
                let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
                protocol::write(&channels[at], &reply, &sockets).is_ok()
            }
            Ok(None) | Err(_) => false,
        };
        if !kept {
            channels.remove(at);
        }
    }

    fn answer(&mut self, request: HelperRequest) -> io::Result<Answer> {
        let reply = match request {
            HelperRequest::HostSockets { mark } => {
                let capture = self.capture(mark)?;
                let made = match capture.sockets() {
                    Err(error) if is_taken(&error) => return Ok((HelperReply::InUse, Vec::new())),
                    made => made?,
                };
                // The helper's own copies are closed with `made`. Otherwise the kernel would accept
                // connections at the listeners after the agent has ended.
                let copies = made.descriptors().into_iter();
                let copies = copies.map(|one| one.try_clone_to_owned());
                return Ok((HelperReply::Done, copies.collect::<io::Result<_>>()?));
            }
            HelperRequest::HostPlan { mark, plan, addresses, user } => {
                let counts = !plan.counted_rules.is_empty();
                self.install(mark, *plan, &addresses, user)?;
                if counts { HelperReply::Counts(Vec::new()) } else { HelperReply::Done }
            }
            HelperRequest::Counts => {
                let capture = self.capture.as_mut().ok_or(io::ErrorKind::NotConnected)?;
                HelperReply::Counts(self.watched.counts(capture)?)
            }
            HelperRequest::Learn { addresses, names } => {
                let capture = self.capture.as_mut().ok_or(io::ErrorKind::NotConnected)?;
                self.watched.learn(capture, &addresses, &names, Instant::now())?;
                HelperReply::Done
            }
            HelperRequest::Names { from } => HelperReply::Names(self.kept_names(from)?),
            HelperRequest::Addresses { from } => HelperReply::Addresses(self.addresses(from)?),
            HelperRequest::HostKeep => {
                self.watched.keep(self.capture.as_mut().ok_or(io::ErrorKind::NotConnected)?)?;
                HelperReply::Done
            }
            HelperRequest::HostEnd => {
                self.watched.end(self.capture.as_mut().ok_or(io::ErrorKind::NotConnected)?)?;
                HelperReply::Done
            }
            HelperRequest::Socket { protocol, ipv6, count } => {
                let version = if ipv6 { IpVersion::V6 } else { IpVersion::V4 };
                return Ok((HelperReply::Done, self.sockets(protocol, version, count)?));
            }
            HelperRequest::Owners(ends) => {
                let forwarded = self.watched.forwarded().to_vec();
                HelperReply::Owners(self.owners()?.find(&ends, &forwarded))
            }
            HelperRequest::Sockets => {
                let capture = self.capture.as_ref().ok_or(io::ErrorKind::NotConnected)?;
                let agent = capture.marks().agent();
                HelperReply::Sockets(self.owners()?.list(agent)?)
            }
            HelperRequest::Connecting(_) => HelperReply::Connecting(true),
            HelperRequest::Listening => HelperReply::Listening(Vec::new()),
            HelperRequest::Cpu => HelperReply::Cpu(0),
            // Programs of the host belong to no run, so no file is hidden from them.
            HelperRequest::Hide(_) => HelperReply::Done,
            HelperRequest::Reset { .. } | HelperRequest::Connects { .. } => HelperReply::Refused(
                "the helper of a captured host creates no sockets for programs".to_owned(),
            ),
            HelperRequest::Families { .. }
            | HelperRequest::Network { .. }
            | HelperRequest::Change { .. }
            | HelperRequest::Replace(_)
            | HelperRequest::OpenTun
            | HelperRequest::Tunnels(_)
            | HelperRequest::UnixSockets
            | HelperRequest::Channel
            | HelperRequest::Reports => {
                return Err(io::Error::other(
                    "the helper of a captured host does not support this request",
                ));
            }
        };
        Ok((reply, Vec::new()))
    }

    fn capture(&mut self, mark: u32) -> io::Result<&mut HostCapture> {
        let marks = marks_of(mark)?;
        if self.capture.as_ref().is_none_or(|capture| capture.marks() != marks) {
            self.capture = Some(HostCapture::open(marks).map_err(io::Error::other)?);
        }
        self.capture.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn install(
        &mut self,
        mark: u32,
        plan: HostPlan,
        addresses: &[NamedAddress],
        user: Option<u32>,
    ) -> io::Result<()> {
        units::refuse_aliases(&plan)?;
        let senders = senders::resolve(&plan)?;
        let units = FoundUnits::of(&plan);
        units.drop_ins.report();
        let installed = Installed { marks: marks_of(mark)?, plan, senders, user, units };
        self.capture(mark)?;
        let capture = self.capture.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        self.watched.install(capture, installed, addresses, Instant::now())
    }

    /// The next names that the kernel keeps.
    fn kept_names(&mut self, from: usize) -> io::Result<Vec<HostName>> {
        if from == 0 {
            let capture = self.capture.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            self.names = learnt::kept_names(capture)?;
            self.watched.note_kept(&self.names, Instant::now());
        }
        Ok(next_page(&mut self.names, from))
    }

    /// The next addresses with names that the kernel captures.
    fn addresses(&mut self, from: usize) -> io::Result<Vec<NamedAddress>> {
        if from == 0 {
            let capture = self.capture.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            self.addresses = learnt::captured_addresses(capture)?;
        }
        Ok(next_page(&mut self.addresses, from))
    }

    fn owners(&mut self) -> io::Result<&mut Owners> {
        if self.owners.is_none() {
            self.owners = Some(Owners::open()?);
        }
        self.owners.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Sockets that send from any address.
    fn sockets(
        &mut self,
        protocol: flow::Protocol,
        version: IpVersion,
        count: usize,
    ) -> io::Result<Vec<OwnedFd>> {
        let capture = self.capture.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let protocol = ip_protocol(protocol);
        let wanted = transparent::spoofed_source_spec(protocol, version, capture.socket_marks());
        spoofed_source_sockets(wanted, count)
    }
}

/// What is reported after so many; all is dropped when nothing is left.
fn next_page<T: Clone>(all: &mut Vec<T>, from: usize) -> Vec<T> {
    let page: Vec<T> = all.iter().skip(from).take(NAMES_PER_REPLY_MAX).cloned().collect();
    if page.is_empty() {
        *all = Vec::new();
    }
    page
}

fn refusal(error: io::Error) -> Answer {
    (HelperReply::Refused(error.to_string()), Vec::new())
}

fn add_channel(channels: &mut Vec<UnixStream>, requested: usize) -> io::Result<()> {
    if channels.len() >= CHANNELS_MAX {
        let refused = HelperReply::Refused(
            "the helper of the captured host has too many open channels to agents".into(),
        );
        return protocol::write(&channels[requested], &refused, &[]);
    }
    let (ours, theirs) = UnixStream::pair()?;
    protocol::write(&channels[requested], &HelperReply::Done, &[theirs.as_fd()])?;
    channels.push(ours);
    Ok(())
}
