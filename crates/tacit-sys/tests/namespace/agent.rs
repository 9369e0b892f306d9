//! Acts as the agent in the namespace tests. This agent treats every captured destination and every
//! DNS server as reachable. For these destinations, it releases the SYN that an nftables rule has
//! held. It refuses all other SYNs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tacit_core::held::Syn;
use tacit_sys::datagram::send_packet;
use tacit_sys::namespace::NamespaceSockets;
use tacit_sys::netlink::nft::Element;
use tacit_sys::netlink::{IpProtocol, nflog};
use tacit_sys::syn_log::{Copies, SynLog};

pub(crate) struct Agent {
    captured: Arc<Mutex<Vec<Element>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Copies of the sockets that the agent needs.
struct Own {
    log: SynLog,
    release: [Option<OwnedFd>; 2],
    raw: [Option<OwnedFd>; 2],
}

impl Agent {
    pub(crate) fn start(sockets: &NamespaceSockets) -> Self {
        let copy = |socket: &OwnedFd| socket.try_clone().unwrap();
        let own = Own {
            log: SynLog::adopt(copy(&sockets.syn_log)).unwrap(),
            release: [Some(copy(&sockets.release4)), sockets.release6.as_ref().map(copy)],
            raw: [Some(copy(&sockets.raw4)), sockets.raw6.as_ref().map(copy)],
        };
        let captured = Arc::default();
        let ends = Arc::default();
        let theirs = Arc::clone(&captured);
        let stop = Arc::clone(&ends);
        let thread = Some(std::thread::spawn(move || serve(&own, &theirs, &stop)));
        Self { captured, ends, thread }
    }

    pub(crate) fn change(&self, remove: &[Element], add: &[Element]) {
        let mut captured = self.captured.lock().unwrap();
        captured.retain(|element| !remove.contains(element));
        captured.extend_from_slice(add);
    }

    pub(crate) fn replace_all(&self, all: &[Element]) {
        *self.captured.lock().unwrap() = all.to_vec();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        drop(self.thread.take().unwrap().join());
    }
}

fn serve(own: &Own, captured: &Mutex<Vec<Element>>, ends: &AtomicBool) {
    let patience = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !ends.load(Ordering::Relaxed) {
        let mut polled = [PollFd::new(&own.log, PollFlags::IN)];
        if poll(&mut polled, Some(&patience)) != Ok(1) {
            continue;
        }
        let mut report = [0; nflog::REPORT_BYTES_MAX];
        let Ok(Some(copied)) = own.log.receive(&mut report) else { continue };
        // Packets that the kernel refuses are reported too.
        let Some(syn) =
            Syn::parse(copied.packet).filter(|_| copied.cause == nflog::LogCause::Opens)
        else {
            continue;
        };
        // The interface also delivers the SYNs of programs to themselves.
        let is_own = syn.key.destination.ip().is_loopback();
        if own.log.copies() == Copies::OfRule || !is_own {
            answer(own, &syn, &captured.lock().unwrap());
        }
    }
}

fn answer(own: &Own, syn: &Syn, captured: &[Element]) {
    let to = syn.key.destination;
    let is_captured = captured.iter().any(|one| {
        one.protocol == IpProtocol::Tcp
            && one.first.is_ipv4() == to.is_ipv4()
            && (one.first..=one.last).contains(&to.ip())
            && (one.first_port..=one.last_port).contains(&to.port())
    });
    let family = usize::from(to.is_ipv6());
    let (socket, packet, receiver) = if is_captured || to.port() == 53 {
        (&own.release[family], syn.released(), to.ip())
    } else {
        (&own.raw[family], syn.reset(), syn.key.program.ip())
    };
    send_packet(socket.as_ref().unwrap().as_fd(), &packet, receiver).unwrap();
}
