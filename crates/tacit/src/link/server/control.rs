//! Carries out two commands of operators: `stop` ends a link, and `trace` logs each request on a
//! link.

use std::cell::{Cell, RefCell};
use std::io;

use tokio::sync::Notify;

use super::socket_file::SocketFile;
use super::{ServedLink, Server};
use crate::log::Event;
use crate::run::link::protocol::{LinkControl, OpenKind, OpenRequest};

/// What operators can change on a link.
#[derive(Debug, Default)]
pub(super) struct LinkSwitches {
    /// Whether each request is logged.
    is_traced: Cell<bool>,
    is_stopped: Cell<bool>,
    stop: Notify,
    /// The socket file, while the link is served.
    pub(super) file: RefCell<Option<SocketFile>>,
}

impl LinkSwitches {
    /// Whether each request is logged.
    pub(super) fn is_traced(&self) -> bool {
        self.is_traced.get()
    }

    /// Whether the link is no longer served.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.get()
    }

    /// Waits until the link is no longer served.
    pub(super) async fn stopped(&self) {
        while !self.is_stopped() {
            self.stop.notified().await;
        }
    }

    /// Runs a task of the link until it ends or the link is no longer served.
    pub(super) async fn unless_stopped(&self, work: impl Future<Output = ()>) {
        tokio::select! {
            () = work => {}
            () = self.stopped() => {}
        }
    }

    /// Ends all streams of the link, and removes its socket. Sockets that runs have stay open.
    fn stop(&self) {
        self.is_stopped.set(true);
        self.stop.notify_waiters();
        drop(self.file.take());
    }
}

/// Does what an operator requests before the answer is written.
pub(super) fn obey(link: &ServedLink, request: LinkControl) {
    match request {
        LinkControl::TraceOn => link.switches.is_traced.set(true),
        LinkControl::TraceOff => link.switches.is_traced.set(false),
        LinkControl::Sockets | LinkControl::Stop => {}
    }
}

/// Does what an operator requests after the answer was written, which ends all streams.
pub(super) fn conclude(server: &Server, link: &ServedLink, request: LinkControl) {
    if request == LinkControl::Stop {
        server.log.info(Event::new("link-stopped").field("link", &link.name));
        link.switches.stop();
        server.link_stopped.notify_one();
    }
}

/// Logs a request and its result, if the link is traced.
pub(super) fn trace(
    server: &Server,
    link: &ServedLink,
    request: &OpenRequest,
    result: Result<(), &io::Error>,
) {
    if !link.switches.is_traced() {
        return;
    }
    let OpenRequest { session, kind, address } = request;
    let number = link.state.borrow().number(*session);
    let event = Event::new("link-request").field("link", &link.name);
    let event = event.value("session", number).field("kind", &kind.word());
    let event = event.field("address", address);
    server.log.info(match result {
        // The program connects it.
        Ok(()) if *kind == OpenKind::Handed => event.field("result", "handed"),
        Ok(()) => event.field("result", "opened"),
        Err(error) => event.field("result", error),
    });
}
