use std::cell::Cell;
use std::rc::Rc;

use tokio::net::UnixListener;

use super::*;
use crate::log::{Format, LogDestination, LogLevel, Settings};
use crate::run::link::protocol::REQUEST_BYTES_MAX;

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
        let link = LinkClient::open(chosen, "shop", no_log()).await.unwrap();
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

fn no_log() -> Log {
    Log::start(Settings {
        format: Format::Text,
        level: LogLevel::Warn,
        destination: LogDestination::None,
        launcher: None,
        audit: None,
    })
    .unwrap()
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
