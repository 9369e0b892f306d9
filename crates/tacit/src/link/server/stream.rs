//! Serves one stream of a link: reads the request of the stream, and sends the answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::SystemTime;

use tacit_sys::{descriptor, handed, process, socket};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;

use super::open::Reached;
use super::state::RunState;
use super::{REQUEST_WAIT_MAX, RUNS_MAX, ServedLink, Server, open};
use crate::address;
use crate::clock::Rfc3339;
use crate::log::Event;
use crate::run::channel::read_frame;
use crate::run::link::protocol::{
    LinkAnswer, LinkHello, LinkRequest, LinkStatus, LinkWelcome, OpenRequest, REQUEST_BYTES_MAX,
    RUN_BYTES_MAX, VERSION,
};
use crate::run::protocol::encode;

/// The user and process at the other end, as the kernel reports them.
#[derive(Clone, Copy, Debug)]
struct OtherEnd {
    uid: u32,
    pid: u32,
}

/// Serves a stream to its end. `place` is its place among the streams that wait for an answer.
pub(super) async fn serve(
    server: Rc<Server>,
    link: Rc<ServedLink>,
    mut stream: UnixStream,
    place: OwnedSemaphorePermit,
) {
    // An error concerns this stream only, and its other side sees the end of the stream.
    let _ = answer(&server, &link, &mut stream, place).await;
}

async fn answer(
    server: &Server,
    link: &ServedLink,
    stream: &mut UnixStream,
    place: OwnedSemaphorePermit,
) -> io::Result<()> {
    let credentials = socket::peer_credentials(stream.as_fd())?;
    let pid = u32::try_from(credentials.pid.as_raw_nonzero().get()).unwrap_or_default();
    let end = OtherEnd { uid: credentials.uid.as_raw(), pid };
    let own = process::effective_user();
    if end.uid != own && end.uid != 0 {
        let reason = "the link belongs to another user\n    fix: run `tacit link serve` as the \
                      user of the run";
        return write(stream, &LinkAnswer::Refused(reason.to_owned()), None).await;
    }
    let request = read_frame::<LinkRequest>(stream, REQUEST_BYTES_MAX);
    let request = tokio::time::timeout(REQUEST_WAIT_MAX, request).await;
    let Some(frame) = request.map_err(|_| io::ErrorKind::TimedOut)?? else { return Ok(()) };
    match frame.message {
        LinkRequest::Hello(hello) => {
            drop(place);
            serve_run(server, link, stream, end, hello).await
        }
        LinkRequest::Open(request) => serve_socket(server, link, stream, end, request).await,
        LinkRequest::Status => write(stream, &LinkAnswer::Status(status(server, link)), None).await,
    }
}

/// Serves a run: its session lasts as long as the stream.
async fn serve_run(
    server: &Server,
    link: &ServedLink,
    stream: &mut UnixStream,
    end: OtherEnd,
    hello: LinkHello,
) -> io::Result<()> {
    if let Err(reason) = check_hello(link, &hello) {
        return write(stream, &LinkAnswer::Refused(reason), None).await;
    }
    let run = RunState {
        name: hello.run.clone(),
        uid: end.uid,
        pid: end.pid,
        user: address::user_name(end.uid),
        since: Rfc3339(SystemTime::now()),
        opened: 0,
        failed: 0,
        refused: 0,
    };
    let number = link.state.borrow_mut().begin(run);
    let session = Session { link, number };
    let about = |event: Event| {
        let event = event.field("link", &link.name).field("run", &hello.run);
        event.value("pid", end.pid).value("session", number)
    };
    let Reached { ipv4, ipv6 } = server.reached(&link.name);
    let welcome = LinkWelcome {
        version: VERSION,
        link: link.name.clone(),
        session: number,
        ipv4,
        ipv6,
        sockets_max: sockets_max(server, link),
        resolvers: server.offered_resolvers(&link.name),
    };
    write(stream, &LinkAnswer::Welcome(welcome), None).await?;
    server.log.info(about(Event::new("link-run-began")));
    ended(stream).await;
    drop(session);
    server.log.info(about(Event::new("link-run-ended")));
    Ok(())
}

fn check_hello(link: &ServedLink, hello: &LinkHello) -> Result<(), String> {
    if hello.version != VERSION {
        return Err(format!(
            "the run uses version {} of the protocol, and the server version {VERSION}\n    fix: \
             use the same version of tacit on both sides",
            hello.version
        ));
    }
    let name = &hello.run;
    if name.is_empty() || name.len() > RUN_BYTES_MAX || name.contains(char::is_control) {
        return Err(format!("the name of the run must have 1 to {RUN_BYTES_MAX} bytes"));
    }
    if link.state.borrow().runs() >= RUNS_MAX {
        return Err(format!("{RUNS_MAX} runs use the link already, the maximum: end a run first"));
    }
    Ok(())
}

/// A run that uses a link, until this is dropped.
struct Session<'a> {
    link: &'a ServedLink,
    number: u64,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.link.state.borrow_mut().leave(self.number);
    }
}

/// A request that may still become a socket, until this is dropped.
struct PendingRequest<'a>(&'a ServedLink);

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.0.state.borrow_mut().settle();
    }
}

/// Opens a socket, and passes it on.
async fn serve_socket(
    server: &Server,
    link: &ServedLink,
    stream: &mut UnixStream,
    end: OtherEnd,
    request: OpenRequest,
) -> io::Result<()> {
    let pending = match admit(server, link, end, &request) {
        Ok(pending) => pending,
        Err(reason) => return write(stream, &LinkAnswer::Refused(reason), None).await,
    };
    let opened = tokio::select! {
        opened = open::open(&request) => opened,
        // The other side has given up, and does not need the socket.
        () = ended(stream) => return Ok(()),
    };
    let count = |add: fn(&mut RunState)| {
        if let Some(run) = link.state.borrow_mut().run(request.session) {
            add(run);
        }
    };
    match opened {
        Ok(socket) => {
            let cookie = handed::identity(socket.as_fd())?.cookie;
            link.state.borrow_mut().add(cookie, request.session);
            count(|run| run.opened += 1);
            drop(pending);
            write(stream, &LinkAnswer::Socket, Some(socket.as_fd())).await
        }
        Err(error) => {
            count(|run| run.failed += 1);
            let errno = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            write(stream, &LinkAnswer::Failed(errno), None).await
        }
    }
}

/// Whether the other side may have the socket; otherwise the reason.
fn admit<'a>(
    server: &Server,
    link: &'a ServedLink,
    end: OtherEnd,
    request: &OpenRequest,
) -> Result<PendingRequest<'a>, String> {
    let mut state = link.state.borrow_mut();
    let sockets = state.sockets();
    let Some(run) = state.run(request.session).filter(|run| run.uid == end.uid) else {
        return Err("the link has no such session".to_owned());
    };
    let sockets_max = sockets_max(server, link);
    let judged = server.judge(&link.name, request).and_then(|()| {
        if sockets >= sockets_max {
            let fix = format!("raise `sockets` in [link.{}]", link.name);
            return Err(format!("the link has {sockets} sockets already, the maximum: {fix}"));
        }
        Ok(())
    });
    if let Err(reason) = judged {
        run.refused += 1;
        let event = Event::new("link-refused").field("link", &link.name).field("run", &run.name);
        let key = format!("link-refused {}", link.name);
        server.log.warn(event.field("reason", &reason).limited(key));
        return Err(reason);
    }
    state.expect();
    Ok(PendingRequest(link))
}

fn sockets_max(server: &Server, link: &ServedLink) -> usize {
    server.policy.borrow().links.get(&link.name).map_or(0, |link| link.sockets_max)
}

fn status(server: &Server, link: &ServedLink) -> LinkStatus {
    let Reached { ipv4, ipv6 } = server.reached(&link.name);
    let state = link.state.borrow();
    LinkStatus {
        name: link.name.clone(),
        path: link.path.clone(),
        pid: std::process::id(),
        policy: server.file.clone(),
        since: server.since,
        sockets_max: sockets_max(server, link),
        resolvers: server.offered_resolvers(&link.name),
        ipv4,
        ipv6,
        sockets: state.sockets(),
        runs: state.shown(),
    }
}

/// Writes an answer, with a socket.
async fn write(
    stream: &mut UnixStream,
    answer: &LinkAnswer,
    socket: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let bytes = encode(answer)?;
    let sockets: Vec<_> = socket.into_iter().collect();
    let send = || descriptor::send(&*stream, &bytes, &sockets);
    let sent = stream.async_io(Interest::WRITABLE, send).await?;
    stream.write_all(bytes.get(sent..).unwrap_or_default()).await
}

/// Waits until the other side closes the stream, or sends more than its request.
async fn ended(stream: &UnixStream) {
    loop {
        let ready = stream.readable().await;
        match stream.try_read(&mut [0]) {
            Err(error) if ready.is_ok() && error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return,
        }
    }
}
