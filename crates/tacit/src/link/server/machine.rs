//! Accepts the streams of a virtual machine over AF_VSOCK. The kernel reports the context ID (CID)
//! of the machine at the other end of a stream. The key `listen` of the link contains the permitted
//! context ID. This module refuses streams from all other context IDs.
//!
//! Limit: at most [`STREAMS_MAX`] streams of a link wait for an answer. Further streams wait in the
//! queue of the listening socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use tacit_core::policy::LinkVsock;
use tacit_sys::socket;
use tacit_sys::vsock::{self, AcceptedVsock};
use tacit_sys::watch::watch;
use tokio::io::Interest;
use tokio::sync::Semaphore;

use super::session::{RequestPlace, log_refusal};
use super::state::OtherEnd;
use super::{ACCEPT_PAUSE, STREAMS_MAX, ServedLink, Server, framed};
use crate::link::wire::LinkStream;
use crate::net::Security;
use crate::net::stream_socket::StreamSocket;

/// Accepts streams until the server ends.
pub(super) async fn accept(
    server: Rc<Server>,
    link: Rc<ServedLink>,
    listener: Arc<OwnedFd>,
    at: LinkVsock,
) {
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    let Ok(watched) = watch(listener, Interest::READABLE) else { return };
    while let Ok(place) = Arc::clone(&streams).acquire_owned().await {
        let accepted = loop {
            let Ok(mut ready) = watched.readable().await else { return };
            match vsock::accept(watched.get_ref().as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                accepted => break accepted,
            }
        };
        match accepted {
            Ok(AcceptedVsock { socket, cid }) if cid == at.cid => {
                let place = RequestPlace::new(place, None);
                let server = Rc::clone(&server);
                let link = Rc::clone(&link);
                tokio::task::spawn_local(async move {
                    let Ok(socket) = StreamSocket::new(socket, Security::Tls) else { return };
                    let stream = LinkStream::clear(socket, Vec::new());
                    let end = OtherEnd::Machine { cid };
                    let work = framed::serve(&server, &link, stream, end, place);
                    link.switches.unless_stopped(work).await;
                });
            }
            Ok(AcceptedVsock { cid, .. }) => {
                let reason = format!(
                    "the connection comes from the vsock context ID {cid}, but the link is only \
                     for the context ID {}",
                    at.cid
                );
                log_refusal(&server, &link, "-", &reason);
            }
            Err(error) if socket::is_shortage(&error) => {
                server.report_accept(&link, &error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
            // The error concerns only this connection.
            Err(_) => {}
        }
    }
}
