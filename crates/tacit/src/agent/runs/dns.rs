//! DNS of a run: forwarded to the host's resolvers, and remembered.
//!
//! Only names that some rule can match are asked for. What the resolvers say is remembered, and
//! captured, before the program hears it: its connect can never be faster than we are.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tacit_core::dns::{self, Question, Refusal};
use tacit_core::flow::Protocol;
use tacit_core::policy::can_match_name;
use tacit_sys::transparent;
use tacit_sys::watch::watch;
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;

use crate::clock;
use crate::live::Live;
use crate::log::{Event, Log};

use super::capture::Capture;

/// How long one resolver may take before the next is asked.
const RESOLVER_WAIT: Duration = Duration::from_secs(3);
/// Questions of one run that may be open; more wait in the socket.
const QUESTIONS_MAX: usize = 256;
/// Where DNS is spoken.
const PORT: u16 = 53;
/// A datagram at most: EDNS allows no more in practice.
const DATAGRAM_BYTES_MAX: usize = 8192;

/// Whom to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) struct Resolvers(pub(in crate::agent) Arc<[SocketAddr]>);

impl Resolvers {
    /// The resolvers that were given, or else those of the host.
    pub(in crate::agent) fn new(given: &[SocketAddr]) -> Self {
        if !given.is_empty() {
            return Self(given.into());
        }
        let text = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
        let addresses = servers.filter_map(|server| server.trim().parse().ok());
        Self(addresses.map(|ip| SocketAddr::new(ip, PORT)).collect())
    }
}

/// What answering needs.
#[derive(Clone)]
pub(super) struct Forwarder {
    pub(super) live: Arc<ArcSwap<Live>>,
    pub(super) capture: Arc<Capture>,
    pub(super) resolvers: Resolvers,
    pub(super) log: Log,
}

/// Answers everything that arrives on a captured datagram socket, for ever.
pub(super) async fn answer_all(forwarder: Forwarder, socket: Arc<OwnedFd>) {
    let log = forwarder.log.clone();
    if let Err(error) = receive_all(forwarder, socket).await {
        log.error(Event::new("dns-failed").field("error", &error));
    }
}

async fn receive_all(forwarder: Forwarder, socket: Arc<OwnedFd>) -> io::Result<()> {
    let watched = watch(socket, Interest::READABLE)?;
    let open = Arc::new(Semaphore::new(QUESTIONS_MAX));
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let mut ready = watched.readable().await?;
        let Ok(place) = Arc::clone(&open).acquire_owned().await else { return Ok(()) };
        match transparent::receive(watched.get_ref().as_fd(), &mut buffer) {
            Ok(datagram) if datagram.is_cut || datagram.destination.port() != PORT => {}
            Ok(datagram) => {
                let query = buffer[..datagram.bytes].to_vec();
                let (program, asked) = (datagram.source, datagram.destination);
                let forwarder = forwarder.clone();
                tokio::task::spawn_local(async move {
                    let _place = place;
                    if let Err(error) = forwarder.answer(&query, program, asked).await {
                        forwarder.log.warn(Event::new("dns-failed").field("error", &error));
                    }
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => return Err(error),
        }
    }
}

impl Forwarder {
    /// Answers one query in the name of the server that the program asked.
    async fn answer(
        &self,
        query: &[u8],
        program: SocketAddr,
        asked: SocketAddr,
    ) -> Result<(), io::Error> {
        let bad = |error: dns::DnsError| io::Error::new(io::ErrorKind::InvalidData, error);
        let question = dns::question(query).map_err(bad)?;
        let now = clock::now_unix_s();
        let response = if can_match_name(&self.live.load().policy, &question.name, now) {
            match self.ask(query, &question).await {
                Some(response) => response,
                None => dns::refuse(query, Refusal::ServerFailure).map_err(bad)?,
            }
        } else {
            dns::refuse(query, Refusal::Refused).map_err(bad)?
        };
        let line = &self.capture.run.line;
        let socket = line.socket(Protocol::Udp, asked.is_ipv6()).await?;
        transparent::answer_as(socket.as_fd(), asked, &response, program)
    }

    /// Asks the resolvers one after the other, and learns from the first answer.
    async fn ask(&self, query: &[u8], question: &Question) -> Option<Vec<u8>> {
        for resolver in self.resolvers.0.iter() {
            let asked = tokio::time::timeout(RESOLVER_WAIT, ask_one(*resolver, query, question));
            match asked.await {
                Ok(Ok(response)) => {
                    if let Err(error) = self.learn(&response, question).await {
                        self.log.error(Event::new("capture-failed").field("error", &error));
                        return None;
                    }
                    return Some(response);
                }
                Ok(Err(error)) => self.log.warn(
                    Event::new("resolver-failed")
                        .field("resolver", resolver)
                        .field("error", &error),
                ),
                Err(_) => self.log.warn(
                    Event::new("resolver-failed")
                        .field("resolver", resolver)
                        .field("error", "no answer in time"),
                ),
            }
        }
        None
    }

    async fn learn(&self, response: &[u8], question: &Question) -> io::Result<()> {
        let Ok(answers) = dns::answers(response, question) else { return Ok(()) };
        let mut news = false;
        for answer in answers {
            news |= self.capture.run.learn(&question.name, answer.address, answer.ttl);
        }
        if news { self.capture.follow().await } else { Ok(()) }
    }
}

/// Asks one resolver; answers to other questions are passed over.
async fn ask_one(resolver: SocketAddr, query: &[u8], question: &Question) -> io::Result<Vec<u8>> {
    let any: SocketAddr = match resolver {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(resolver).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let count = socket.recv(&mut buffer).await?;
        let response = &buffer[..count];
        let same_id = response.get(..2) == query.get(..2);
        if same_id && dns::answers(response, question).is_ok() {
            return Ok(response.to_vec());
        }
    }
}
