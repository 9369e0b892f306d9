//! Tests the order in which the agent establishes a connection of a run. The agent first connects
//! to the upstream server, and then accepts the downstream connection.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;

use arc_swap::ArcSwap;
use tacit_core::flow::Protocol;
use tacit_core::policy::parse;
use tokio::sync::Semaphore;

use super::*;
use crate::engine::{Thread, ThreadLoad};
use crate::live::{BuildContext, Credentials, build};
use crate::log::{Format, Log, LogDestination, LogLevel, Settings};
use crate::net::Security;
use crate::session::{ConnectionTable, Opening, Quotas};
use crate::stream::lane::Shared;
use crate::stream::limiter::HandshakeLimiter;

/// A lane with one rule, which permits connections to `target`.
pub(in crate::stream) fn lane(target: SocketAddr) -> Rc<StreamLane> {
    let text = format!(
        "version = 1\n[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:1\"\nconnect = \"{target}\"\n\
         permit = true\n"
    );
    let policy = parse(&text).policy.unwrap();
    let context = BuildContext { credentials: &Credentials::default(), chains: None };
    let live = Arc::new(build(policy, context).unwrap());
    let shared = Shared {
        limiter: Arc::new(HandshakeLimiter::new(live.limits(), 16)),
        quotas: Arc::new(Quotas::new(live.limits())),
        live: Arc::new(ArcSwap::new(live)),
        table: Arc::new(ConnectionTable::default()),
        places: Arc::new(Semaphore::new(1)),
        congestion_control: None,
        refusals: Arc::default(),
        starter: None,
        log: Log::start(Settings {
            format: Format::Text,
            level: LogLevel::Warn,
            destination: LogDestination::StandardError,
            launcher: None,
            audit: None,
        })
        .unwrap(),
    };
    let load = Arc::new(ThreadLoad::new("data-0".to_owned(), None, None));
    StreamLane::new(shared, Thread { load, engine: None, cpu_workers: None, binding: None }).0
}

/// A connection that has the rule of the lane.
pub(in crate::stream) fn connection(lane: &StreamLane) -> Connection {
    let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
    let opening = Opening {
        rule: Arc::clone(lane.shared.live.load().find("r").unwrap()),
        protocol: Protocol::Tcp,
        local: address.into(),
        remote: address.into(),
        proxied: None,
        scope: None,
        parent: None,
    };
    let permit = Arc::clone(&lane.shared.places).try_acquire_owned().unwrap();
    Connection::open(&lane.shared.table, opening, Security::Clear, permit, None)
}

fn establishing<'a>(lane: &'a StreamLane, connection: &'a Connection) -> Establishing<'a> {
    Establishing {
        lane,
        connection,
        downstream: None,
        held: None,
        verified: None,
        upstream: None,
        early: Vec::new(),
        driver: None,
    }
}

#[tokio::test]
async fn a_connection_is_dialled_before_it_is_accepted() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let lane = lane(server.local_addr().unwrap());
    let connection = connection(&lane);
    let rule = Arc::clone(&connection.record().rule);
    let plan = Plan::of_rule(&rule);

    let mut establishing = establishing(&lane, &connection);
    establishing.begin(&plan).await.unwrap();
    server.accept().unwrap();
    assert!(connection.record().sockets.get().is_none(), "the upstream is connected once");

    let client = TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = TcpStream::connect(client.local_addr().unwrap()).unwrap();
    let accepted = client.accept().unwrap().0;
    accepted.set_nonblocking(true).unwrap();
    establishing.downstream = Some(StreamSocket::new(accepted.into(), Security::Clear).unwrap());
    let relay = establishing.finish(&plan, None).await.unwrap();
    assert!(matches!(relay, RelayKind::Clear(_)));
    assert!(connection.record().sockets.get().is_some());
}

#[tokio::test]
async fn a_destination_that_refuses_is_known_before_the_connection_is_accepted() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let lane = lane(server.local_addr().unwrap());
    drop(server);
    let connection = connection(&lane);
    let rule = Arc::clone(&connection.record().rule);
    let plan = Plan::of_rule(&rule);
    let failure = establishing(&lane, &connection).begin(&plan).await.unwrap_err();
    assert!(matches!(failure, Failure::Dial(_)), "{failure}");
}

#[tokio::test]
async fn without_a_downstream_socket_nothing_is_relayed() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let lane = lane(server.local_addr().unwrap());
    let connection = connection(&lane);
    let rule = Arc::clone(&connection.record().rule);
    let failure = establishing(&lane, &connection).run(&rule, None).await.unwrap_err();
    assert!(matches!(failure, Failure::Broken(_)), "{failure}");
}
