//! Accepts streams of other hosts, with TLS, and builds the TLS settings of links.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use tacit_core::message_id::MessageId;
use tacit_core::policy::{Diagnostic, Link, LinkConnect, LinkTcp, Policy};
use tacit_sys::socket::{self, AcceptedSocket, StreamOptions};
use tacit_sys::watch::watch;
use tacit_tls::signer::KeyProvider;
use tacit_tls::{ClientSettings, ServerSettings, SettingsError};
use tokio::io::Interest;
use tokio::sync::Semaphore;

use super::state::OtherEnd;
use super::{ACCEPT_PAUSE, STREAMS_MAX, ServedLink, Server, framed};
use crate::link::wire::handshake;
use crate::live::{Credentials, directory_of, link_credentials};
use crate::log::Event;

/// The TLS settings of a link.
#[derive(Clone, Debug, Default)]
pub(super) struct LinkSettings {
    /// For servers that connect.
    pub(super) server: Option<Arc<ServerSettings>>,
    /// For the server to which this one connects.
    pub(super) client: Option<Arc<ClientSettings>>,
}

/// Loads the certificates of all links, and builds their settings.
///
/// # Errors
/// All diagnostics, at least one of which is an error.
pub(super) fn settings(
    policy: &Policy,
    file: &Path,
    keys: &KeyProvider,
) -> Result<BTreeMap<String, LinkSettings>, Vec<Diagnostic>> {
    let credentials = link_credentials(policy, &directory_of(file), keys)?;
    let of_link = |(name, link): (&String, &Link)| match build(policy, link, &credentials) {
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

/// Accepts the streams of other hosts until the server ends.
pub(super) async fn accept(server: Rc<Server>, link: Rc<ServedLink>, listener: Arc<OwnedFd>) {
    let places = Arc::new(Semaphore::new(STREAMS_MAX));
    let Ok(watched) = watch(listener, Interest::READABLE) else { return };
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        let accepted = loop {
            let Ok(mut ready) = watched.readable().await else { return };
            match socket::accept(watched.get_ref().as_fd()) {
                Ok(accepted) => break accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => {
                    server.report_accept(&link, &error);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        };
        let AcceptedSocket { socket, peer } = accepted;
        let server = Rc::clone(&server);
        let link = Rc::clone(&link);
        let served = Rc::clone(&link);
        let serving = async move {
            let Some(settings) = link.tls.borrow().clone() else { return };
            match handshake::accept(socket, &settings).await {
                Ok((stream, certificate)) => {
                    let end = OtherEnd::Host(certificate);
                    framed::serve(&server, &link, stream, end, place).await;
                }
                Err(error) => {
                    let event = Event::new("link-handshake-failed").field("link", &link.name);
                    let peer = peer.and_then(|peer| std::net::SocketAddr::try_from(peer).ok());
                    let peer = peer.map_or_else(|| "-".to_owned(), |peer| peer.to_string());
                    let event = event.field("peer", &peer).field("error", &error);
                    let key = format!("link-handshake-failed {}", link.name);
                    server.log.warn(event.limited(key));
                }
            }
        };
        tokio::task::spawn_local(async move { served.switches.unless_stopped(serving).await });
    }
}
