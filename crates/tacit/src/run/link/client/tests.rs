use std::cell::Cell;
use std::rc::Rc;

use tokio::net::UnixListener;

use super::*;
use tacit_sys::netlink::usage::UsageSockets;
use tacit_sys::{handed, query};

use crate::run::link::protocol::REQUEST_BYTES_MAX;
use crate::run::protocol::{ToConnects, receive_packet, send_packet, write};

/// How often a program asks for a socket.
const ASKED: usize = 5;
const REFUSAL: i32 = 111;

/// A server that refuses every socket with [`REFUSAL`].
#[derive(Clone, Default)]
struct RefusingServer {
    streams: Rc<Cell<usize>>,
    requests: Rc<Cell<usize>>,
    /// Whether it closes each stream after one answer.
    closes: bool,
}

impl RefusingServer {
    async fn accept(self, listener: UnixListener) {
        while let Ok((stream, _)) = listener.accept().await {
            self.streams.set(self.streams.get() + 1);
            tokio::task::spawn_local(self.clone().answer(stream));
        }
    }

    async fn answer(self, mut stream: UnixStream) {
        while let Ok(Some(frame)) = read_frame::<LinkRequest>(&mut stream, REQUEST_BYTES_MAX).await
        {
            let answer = match frame.message {
                LinkRequest::Hello(_) => LinkAnswer::Welcome(welcome()),
                LinkRequest::Usage(_) => LinkAnswer::Refused("no usage".to_owned()),
                _ => {
                    self.requests.set(self.requests.get() + 1);
                    LinkAnswer::Failed(REFUSAL)
                }
            };
            let is_last = self.closes && matches!(answer, LinkAnswer::Failed(_));
            if write_frame(&mut stream, &answer).await.is_err() || is_last {
                return;
            }
        }
    }
}

fn welcome() -> LinkWelcome {
    LinkWelcome {
        version: VERSION,
        link: "outside".to_owned(),
        session: 7,
        ipv4: true,
        ipv6: true,
        sockets_max: 10,
        resolvers: Vec::new(),
        remote: false,
        hands: false,
        passes: false,
        share: false,
        instance: 1,
        host: "host".to_owned(),
        addresses: Vec::new(),
    }
}

/// Requests [`ASKED`] sockets, one after the other. Returns the number of streams that the server
/// accepted for them.
fn streams_for(server: RefusingServer, kind: OpenKind) -> usize {
    let name = format!("tacit-link-{kind:?}-{}-{}", server.closes, std::process::id());
    let path = std::env::temp_dir().join(name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let streams = tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = UnixListener::bind(&path).unwrap();
        tokio::task::spawn_local(server.clone().accept(listener));
        let chosen = ChosenLink { path: path.clone(), level: LinkLevel::Option };
        let link = LinkClient::open(chosen, "shop", Log::without_lines()).await.unwrap();
        let before = server.streams.get();
        for _ in 0..ASKED {
            let error = link.socket(kind, "192.0.2.1:80".parse().unwrap()).await.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(REFUSAL));
            // The server closes its stream now, if it does.
            tokio::task::yield_now().await;
        }
        assert_eq!(server.requests.get(), ASKED, "each request is answered once");
        server.streams.get() - before
    });
    std::fs::remove_file(path).unwrap();
    streams
}

#[test]
fn handed_sockets_are_requested_on_one_stream() {
    assert_eq!(streams_for(RefusingServer::default(), OpenKind::Handed), 1);
}

#[test]
fn each_request_gets_a_new_stream_if_the_server_closes_streams() {
    let server = RefusingServer { closes: true, ..RefusingServer::default() };
    assert_eq!(streams_for(server, OpenKind::Handed), ASKED);
}

#[test]
fn other_sockets_are_requested_on_streams_of_their_own() {
    assert_eq!(streams_for(RefusingServer::default(), OpenKind::Connected), ASKED);
}

const PASSED: SocketIdentity = SocketIdentity { inode: 3, cookie: 4 };

/// Who gets a socket from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    Helper,
    Agent,
}

/// Answers requests like a server that passes each socket to this process.
async fn pass_to(receiver: Receiver, listener: UnixListener) {
    let offer = LinkWelcome { hands: true, passes: true, ..welcome() };
    while let Ok((mut stream, _)) = listener.accept().await {
        let frame = read_frame::<LinkRequest>(&mut stream, REQUEST_BYTES_MAX).await;
        let Frame { message, descriptors } = frame.unwrap().unwrap();
        let own = UsageSockets::open().unwrap();
        let socket = own.destroyed.as_fd();
        let answer = match message {
            LinkRequest::Hello(_) => LinkAnswer::Welcome(offer.clone()),
            LinkRequest::Usage(_) => LinkAnswer::Usage,
            LinkRequest::Pass(request) if receiver == Receiver::Helper => {
                assert_eq!(request.namespace, handed::namespace_cookie(socket).unwrap());
                let answer = ToConnects::Answer(request.answer);
                send_packet(&descriptors[0], &answer, &[socket]).unwrap();
                let SocketIdentity { inode, cookie } = PASSED;
                LinkAnswer::Passed { inode, cookie }
            }
            LinkRequest::Pass(_) => LinkAnswer::Socket,
            other => panic!("{other:?}"),
        };
        let mut sockets = vec![socket, own.diagnosis.as_fd()];
        sockets.truncate(match answer {
            LinkAnswer::Usage => 2,
            LinkAnswer::Socket => 1,
            _ => 0,
        });
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        write(&stream, &answer, &sockets).unwrap();
        // The stream of the Hello message ends with the session.
        if matches!(answer, LinkAnswer::Welcome(_)) {
            std::mem::forget(stream);
        }
    }
}

/// Requests a socket for the question 9 on a channel. Returns what the agent gets, and what the
/// helper gets.
fn passed(receiver: Receiver) -> (PassedSocket, Option<Frame<ToConnects>>) {
    let name = format!("tacit-link-passes-{receiver:?}-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let passed = tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = UnixListener::bind(&path).unwrap();
        tokio::task::spawn_local(pass_to(receiver, listener));
        let chosen = ChosenLink { path: path.clone(), level: LinkLevel::Option };
        let link = LinkClient::open(chosen, "shop", Log::without_lines()).await.unwrap();
        assert!(link.passes());
        let (near, far) = query::pair().unwrap();
        let to: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let answer = ConnectAnswer { number: 9, to: Some(to), error: None, socket_first: false };
        let socket = link.pass(to, None, answer, near.as_fd()).await.unwrap();
        drop(near);
        (socket, receive_packet::<ToConnects>(&far, &mut [0; 1024]).unwrap())
    });
    std::fs::remove_file(path).unwrap();
    passed
}

#[test]
fn a_server_passes_a_socket_to_the_helper_and_closes_the_channel() {
    let (socket, answer) = passed(Receiver::Helper);
    assert!(matches!(socket, PassedSocket::ToHelper(PASSED)), "{socket:?}");
    let Frame { message, descriptors } = answer.unwrap();
    let ToConnects::Answer(answer) = message else { panic!("{message:?}") };
    assert_eq!((answer.number, answer.error, descriptors.len()), (9, None, 1));
}

#[test]
fn a_server_that_cannot_pass_a_socket_to_the_helper_gives_it_to_the_agent() {
    let (socket, answer) = passed(Receiver::Agent);
    assert!(matches!(socket, PassedSocket::ToAgent(_)), "{socket:?}");
    assert!(answer.is_none(), "the helper gets nothing, and sees the end of the channel");
}
