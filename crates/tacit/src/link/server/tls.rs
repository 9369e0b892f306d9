//! Accepts TLS streams from other hosts, and builds the TLS settings of links.
//!
//! ```text
//!   accept ──> permit for a handshake ──> handshake ──> slot for a request ──> request
//! ```
//!
//! A stream is a TLS connection, on which the other host sends requests. Each handshake needs a
//! permit, and each request needs a slot. A host whose certificate is not accepted gets no slot.
//! [`HandshakeLimiter`] limits the permits of each source address.
//!
//! Limits of each link: [`STREAMS_MAX`] requests in total, and [`STREAMS_OF_HOST_MAX`] for each
//! certificate; [`HANDSHAKES_MAX`] handshakes in total, and [`HANDSHAKES_OF_SOURCE_MAX`] for each
//! source address. At most [`HANDSHAKES_WAITING_MAX`] connections wait for a permit, each for at
//! most [`PERMIT_WAIT_MAX`]. A stream waits at most [`SLOT_WAIT_MAX`] for its first slot.
//!
//! A certificate may be revoked while its stream waits. So [`LinkTls::check`] checks the
//! certificate again before the server starts a session or opens a socket. `check` does nothing if
//! the TLS settings are still those of the handshake.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Limits, Link, LinkConnect, LinkTcp, Policy};
use tacit_sys::socket::{self, AcceptedSocket, StreamOptions};
use tacit_sys::watch::watch;
use tacit_tls::recheck::PeerRechecker;
use tacit_tls::signer::KeyProvider;
use tacit_tls::{ClientSettings, ServerSettings, SettingsError};
use tokio::io::Interest;
use tokio::sync::Semaphore;

use super::session::RequestPlace;
use super::state::OtherEnd;
use super::{ACCEPT_PAUSE, STREAMS_MAX, ServedLink, Server, framed};
use crate::clock;
use crate::link::wire::LinkStream;
use crate::link::wire::handshake::{self, PeerCertificate};
use crate::live::{Credentials, directory_of, link_credentials};
use crate::log::Event;
use crate::stream::limiter::{Displaced, HandshakeLimiter, Initiator};

/// The maximum number of requests of one host at the same time. The rest is for other hosts.
const STREAMS_OF_HOST_MAX: usize = STREAMS_MAX / 4 * 3;
/// The maximum number of handshakes at the same time. A quarter is reserved for sources that have
/// no other handshake.
const HANDSHAKES_MAX: usize = 1024;
/// The maximum number of handshakes of one source address (IPv6: one /64).
const HANDSHAKES_OF_SOURCE_MAX: usize = 256;
/// The maximum number of connections that wait for a permit.
const HANDSHAKES_WAITING_MAX: usize = 1024;
/// How long a connection waits for a permit.
const PERMIT_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a stream waits for the slot of its request, after its handshake.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(10);
/// Why a stream or session of another host is refused or ended.
pub(super) const NOT_TRUSTED: &str = "the certificate of the remote host is no longer trusted";

/// The TLS settings of a link.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkSettings {
    /// For servers that connect.
    pub(super) server: Option<Arc<ServerSettings>>,
    /// For the server to which this one connects.
    pub(super) client: Option<Arc<ClientSettings>>,
}

/// The TLS settings of a link for servers that connect, as installed last.
#[derive(Debug)]
pub(super) struct LinkTls {
    settings: RefCell<Option<Arc<ServerSettings>>>,
    /// The number of these settings, which identifies them for streams.
    generation: Cell<u64>,
}

impl LinkTls {
    pub(super) fn new(settings: Option<Arc<ServerSettings>>) -> Self {
        Self { settings: RefCell::new(settings), generation: Cell::new(0) }
    }

    /// Uses other settings from now on.
    pub(super) fn replace(&self, settings: Option<Arc<ServerSettings>>) {
        *self.settings.borrow_mut() = settings;
        self.generation.set(self.generation.get() + 1);
    }

    /// The settings, with their generation.
    fn current(&self) -> Option<(Arc<ServerSettings>, u64)> {
        Some((self.settings.borrow().clone()?, self.generation.get()))
    }

    /// Whether the other end of a stream is still accepted; otherwise the reason.
    pub(super) fn check(&self, end: &OtherEnd) -> Result<(), String> {
        match end {
            OtherEnd::Host { generation, .. } if *generation != self.generation.get() => {
                if self.rejects()(end) { Err(NOT_TRUSTED.to_owned()) } else { Ok(()) }
            }
            OtherEnd::Host { .. } | OtherEnd::Machine { .. } | OtherEnd::Process { .. } => Ok(()),
        }
    }

    /// Judges ends of streams by the current settings. Verifies each distinct certificate once.
    pub(super) fn rejects(&self) -> impl Fn(&OtherEnd) -> bool + use<> {
        let checks = self.settings.borrow().as_deref().and_then(PeerRechecker::clients);
        move |end| match end {
            OtherEnd::Process { .. } | OtherEnd::Machine { .. } => false,
            OtherEnd::Host { certificate, .. } => match (&checks, &certificate.trusted) {
                (Some(checks), Some(trusted)) => !checks.check(trusted, clock::now()).is_trusted(),
                // Settings of a link always check certificates.
                _ => true,
            },
        }
    }
}

/// Loads the certificates of all links, and builds their settings.
///
/// # Errors
/// All diagnostics, at least one of which is an error.
pub(super) fn load(
    policy: &Policy,
    file: &Path,
    keys: &KeyProvider,
) -> Result<(Credentials, BTreeMap<String, LinkSettings>), Vec<Diagnostic>> {
    let credentials = link_credentials(policy, &directory_of(file), keys)?;
    let settings = build_all(policy, &credentials)?;
    Ok((credentials, settings))
}

/// Builds the settings of all links.
///
/// # Errors
/// The first link whose credentials do not suit.
pub(super) fn build_all(
    policy: &Policy,
    credentials: &Credentials,
) -> Result<BTreeMap<String, LinkSettings>, Vec<Diagnostic>> {
    let of_link = |(name, link): (&String, &Link)| match build(policy, link, credentials) {
        Ok(settings) => Ok((name.clone(), settings)),
        Err(error) => {
            let message = format!("[link.{name}]: {error}");
            let id = MessageId("wrong-certificate-usage");
            Err(vec![Diagnostic::error(id, link.position, message)])
        }
    };
    policy.links.iter().map(of_link).collect()
}

fn build(
    policy: &Policy,
    link: &Link,
    credentials: &Credentials,
) -> Result<LinkSettings, SettingsError> {
    let trust = |name: Option<&str>| Some(&**credentials.trusts.get(name?)?);
    let mut settings = LinkSettings::default();
    if let Some(LinkTcp { tls, .. }) = &link.tcp {
        let names = tls.identities.iter();
        let identities: Vec<_> =
            names.filter_map(|name| credentials.identities.get(name)).cloned().collect();
        let map = tls.client_cert.map().and_then(|name| policy.maps.get(name));
        let trust = trust(tls.client_cert.trust());
        let server = ServerSettings::new(tls, &identities, trust, map, None)?;
        settings.server = Some(Arc::new(server));
    }
    if let Some(LinkConnect::Tcp { tls, .. }) = &link.connect {
        let identity = tls.identity.as_ref().and_then(|name| credentials.identities.get(name));
        let trust = trust(tls.verify.trust());
        let client = ClientSettings::new(tls, identity.map(Arc::as_ref), trust, None)?;
        settings.client = Some(Arc::new(client));
    }
    Ok(settings)
}

/// Opens the TCP socket of a link.
///
/// # Errors
/// The error of the kernel.
pub(super) fn listen(tcp: &LinkTcp) -> io::Result<OwnedFd> {
    let address = tcp.address.into();
    socket::listen(&address, &StreamOptions::default().for_address(&address))
}

/// What limits the streams of other hosts.
struct Admission {
    /// Limits handshakes, for each source.
    limiter: HandshakeLimiter,
    /// The handshakes in progress, as those of one rule.
    in_flight: Arc<AtomicUsize>,
    /// The requests of hosts with an accepted certificate.
    places: Arc<Semaphore>,
    /// The same for each certificate, by its hash.
    hosts: RefCell<HashMap<String, Weak<Semaphore>>>,
}

impl Admission {
    fn new() -> Self {
        let limits = Limits {
            handshakes: HANDSHAKES_MAX,
            handshakes_per_rule: HANDSHAKES_MAX,
            handshakes_per_source: HANDSHAKES_OF_SOURCE_MAX,
            ..Limits::default()
        };
        Self {
            // Half of the second number may wait.
            limiter: HandshakeLimiter::new(&limits, 2 * HANDSHAKES_WAITING_MAX),
            in_flight: Arc::default(),
            places: Arc::new(Semaphore::new(STREAMS_MAX)),
            hosts: RefCell::default(),
        }
    }

    /// Waits for a place for a request of a host, at most for `wait_max`.
    async fn place(
        &self,
        certificate: &PeerCertificate,
        wait_max: Duration,
    ) -> io::Result<RequestPlace> {
        let acquired = async {
            let of_host = self.places_of(&certificate.sha256).acquire_owned().await;
            let of_link = Arc::clone(&self.places).acquire_owned().await;
            let place = RequestPlace::new(
                of_link.map_err(io::Error::other)?,
                Some(of_host.map_err(io::Error::other)?),
            );
            Ok(place)
        };
        let all_used = "the limit of pending requests is reached, either for the remote host or \
                        for all remote hosts together";
        tokio::time::timeout(wait_max, acquired)
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, all_used)))
    }

    /// The places of a certificate. Its permits keep them.
    fn places_of(&self, sha256: &str) -> Arc<Semaphore> {
        let mut hosts = self.hosts.borrow_mut();
        if let Some(places) = hosts.get(sha256).and_then(Weak::upgrade) {
            return places;
        }
        hosts.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(STREAMS_OF_HOST_MAX));
        hosts.insert(sha256.to_owned(), Arc::downgrade(&places));
        places
    }

    /// Performs the handshake, and waits for a place for the request. A handshake that waits or is
    /// slow ends when another source needs its permit.
    async fn authenticate(
        &self,
        socket: OwnedFd,
        peer: Option<SocketAddr>,
        tls: &LinkTls,
    ) -> io::Result<(LinkStream, OtherEnd, RequestPlace)> {
        let source = peer.ok_or(io::ErrorKind::NotConnected)?.into();
        let acquired = self.limiter.acquire(&self.in_flight, &source, Initiator::Peer);
        let permit = tokio::time::timeout(PERMIT_WAIT_MAX, acquired).await;
        let permit = permit.map_err(|_| displaced())?.map_err(|Displaced| displaced())?;
        let work = async {
            let (settings, generation) = tls.current().ok_or(io::ErrorKind::NotConnected)?;
            let answer = || permit.note_answer();
            let (stream, certificate) = handshake::accept(socket, &settings, answer).await?;
            let place = self.place(&certificate, SLOT_WAIT_MAX).await?;
            Ok((stream, OtherEnd::Host { certificate, generation }, place))
        };
        tokio::select! {
            biased;
            done = work => done,
            Displaced = permit.displaced() => Err(displaced()),
        }
    }
}

fn displaced() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "too many handshakes are in progress, so the link server ended this handshake in favour of \
         another host",
    )
}

/// Accepts the streams of other hosts until the server ends.
pub(super) async fn accept(server: Rc<Server>, link: Rc<ServedLink>, listener: Arc<OwnedFd>) {
    let admission = Rc::new(Admission::new());
    let Ok(watched) = watch(listener, Interest::READABLE) else { return };
    loop {
        let Ok(mut ready) = watched.readable().await else { return };
        match socket::accept(watched.get_ref().as_fd()) {
            Ok(accepted) => {
                let guest = serve(&server, &link, &admission, accepted);
                let link = Rc::clone(&link);
                tokio::task::spawn_local(async move { link.switches.unless_stopped(guest).await });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
            Err(error) => {
                server.report_accept(&link, &error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one stream of another host.
fn serve(
    server: &Rc<Server>,
    link: &Rc<ServedLink>,
    admission: &Rc<Admission>,
    accepted: AcceptedSocket,
) -> impl Future<Output = ()> + use<> {
    let server = Rc::clone(server);
    let link = Rc::clone(link);
    let admission = Rc::clone(admission);
    async move {
        let AcceptedSocket { socket, peer } = accepted;
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        match admission.authenticate(socket, peer, &link.tls).await {
            Ok((stream, end, place)) => {
                framed::serve(&server, &link, stream, end, place).await;
            }
            Err(error) => {
                let event = Event::new("link-handshake-failed").field("link", &link.name);
                let peer = peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string());
                let event = event.field("peer", &peer).field("error", &error);
                let key = format!("link-handshake-failed {}", link.name);
                server.log.warn(event.limited(key));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than the test takes.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn one_host_leaves_places_for_requests_of_others() {
        let certificate = |sha256: &str| PeerCertificate {
            name: "guest".to_owned(),
            sha256: sha256.to_owned(),
            trusted: None,
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let admission = Admission::new();
            let one = certificate("aa");
            let other = certificate("bb");
            let mut held = Vec::new();
            for _ in 0..STREAMS_OF_HOST_MAX {
                held.push(admission.place(&one, LONG).await.unwrap());
            }
            let short = Duration::from_millis(1);
            let error = admission.place(&one, short).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            let further = admission.place(&one, LONG);
            tokio::pin!(further);
            tokio::select! {
                biased;
                _ = &mut further => panic!("a host has more places than its limit"),
                () = std::future::ready(()) => {}
            }
            held.push(admission.place(&other, LONG).await.unwrap());
            held.remove(0);
            further.await.unwrap();
            drop(held);
            drop(admission.place(&other, LONG).await);
            assert_eq!(admission.hosts.borrow().len(), 1);
        });
    }
}
