//! Performs the TLS handshake of a stream between two hosts.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tacit_core::policy::Rekey;
use tacit_sys::socket;
use tacit_tls::recheck::TrustedPeer;
use tacit_tls::verify::{self, MappedIdentity};
use tacit_tls::{
    CertificateFacts, ClientSettings, CompletedHandshake, FinishError, Handshake, HandshakeFailure,
    HandshakeProgress, HotKeys, INCOMING_BYTES_MAX, PeerCheck, ServerSettings,
};

use super::{LinkStream, TlsState};
use crate::clock;
use crate::net::Security;
use crate::net::stream_socket::{Outgoing, StreamSocket};

/// How long a handshake may take.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(10);
/// Bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// The other side, as its certificate identifies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::link) struct PeerCertificate {
    /// Its identity in the map of the policy, or its first name.
    pub(in crate::link) name: String,
    /// The SHA-256 hash of the certificate, in hexadecimal.
    pub(in crate::link) sha256: String,
    /// What is needed to check it again.
    pub(in crate::link) trusted: Option<TrustedPeer>,
}

/// Performs the handshake as server, and calls `answer` before it answers the client.
///
/// # Errors
/// The handshake failed: the text names the reason.
pub(in crate::link) async fn accept(
    socket: OwnedFd,
    settings: &Arc<ServerSettings>,
    answer: impl Fn(),
) -> io::Result<(LinkStream, PeerCertificate)> {
    let peer = socket::peer_address(socket.as_fd())?;
    let address = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let socket = StreamSocket::new(socket, Security::Tls)?;
    let handshake = Handshake::server(settings).map_err(failed)?;
    let handshake = handshake.with_peer_address(address.map(|address| address.ip()));
    let (stream, completed) = run(socket, handshake, answer).await?;
    Ok((stream, certificate(&completed)?))
}

/// Performs the handshake as client.
///
/// # Errors
/// The handshake failed: the text names the reason.
pub(in crate::link) async fn connect(
    socket: StreamSocket,
    settings: &Arc<ClientSettings>,
    host: &str,
) -> io::Result<LinkStream> {
    let handshake = Handshake::client(settings, &[host.to_owned()]).map_err(failed)?;
    Ok(run(socket, handshake, || ()).await?.0)
}

/// The identity of a client. The policy requires a valid certificate, so there is one.
fn certificate(completed: &PeerFacts) -> io::Result<PeerCertificate> {
    let PeerFacts { check, mapped, peer, trusted } = completed;
    let Some(peer) = peer else {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer has no certificate"));
    };
    let name = verify::identity(check, mapped, Some(peer)).identity;
    Ok(PeerCertificate {
        name: name.unwrap_or_else(|| peer.subject.clone()),
        sha256: peer.sha256.clone(),
        trusted: trusted.clone(),
    })
}

/// What a handshake finds out about the other side.
struct PeerFacts {
    check: PeerCheck,
    mapped: MappedIdentity,
    peer: Option<Arc<CertificateFacts>>,
    trusted: Option<TrustedPeer>,
}

async fn run(
    socket: StreamSocket,
    handshake: Handshake,
    answer: impl Fn(),
) -> io::Result<(LinkStream, PeerFacts)> {
    let work = exchange(socket, handshake, answer);
    tokio::time::timeout(HANDSHAKE_WAIT_MAX, work).await.unwrap_or_else(|_| {
        Err(io::Error::new(io::ErrorKind::TimedOut, "the peer did not complete the TLS handshake"))
    })
}

async fn exchange(
    socket: StreamSocket,
    mut handshake: Handshake,
    answer: impl Fn(),
) -> io::Result<(LinkStream, PeerFacts)> {
    let mut incoming = Vec::new();
    let mut outgoing = Vec::new();
    loop {
        let progress = handshake.advance(&mut incoming, &mut outgoing);
        if matches!(progress, Ok(HandshakeProgress::Done)) {
            break;
        }
        if !outgoing.is_empty() {
            answer();
        }
        let flushed = Outgoing::new(std::mem::take(&mut outgoing)).flush(&socket).await;
        progress.map_err(failed)?;
        flushed?;
        incoming.reserve(READ_BYTES);
        if socket.read_onto(&mut incoming).await? == 0 {
            return Err(failed(handshake.cut_off()));
        }
        if incoming.len() > INCOMING_BYTES_MAX {
            let failure = handshake.too_long(&mut incoming, &mut outgoing);
            Outgoing::new(outgoing).flush(&socket).await?;
            return Err(failed(failure));
        }
    }
    match handshake.finish(Rekey::default(), Instant::now(), clock::now()) {
        Ok(CompletedHandshake { session, check, mapped, peer, trusted, .. }) => {
            let facts = PeerFacts { check, mapped, peer, trusted };
            let tls = TlsState {
                session,
                keys: HotKeys::default(),
                unexamined: !incoming.is_empty(),
                records: incoming,
                payloads: Vec::new(),
            };
            Ok((LinkStream::new(socket, Some(Box::new(tls)), Vec::new(), outgoing), facts))
        }
        Err(FinishError { failure, mut alert }) => {
            outgoing.append(&mut alert);
            Outgoing::new(outgoing).flush(&socket).await?;
            Err(failed(failure))
        }
    }
}

fn failed(failure: HandshakeFailure) -> io::Error {
    io::Error::other(failure)
}
