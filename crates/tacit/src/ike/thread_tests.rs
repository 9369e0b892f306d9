//! Tests the IKE thread. The gateways and the unauthenticated senders are on loopback.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tacit_ipsec::TrafficSelector;
use tacit_ipsec::ike::{
    IkeConfig, IkeConnection, IkeEvent, IkePath, IkeTransmit, InnerAddresses, InnerConfig,
    UNANSWERED,
};

use super::connection::Pair;
use super::driven_run::DrivenRun;
use super::kernel::KernelRandom;
use super::runs::NAMES_CHECK_INTERVAL;
use super::thread::IkeContext;
use super::*;
use crate::clock::boottime;
use crate::log::{Format, LogDestination, LogLevel, Settings};
use crate::packet::{IkeDatagram, TunId};

const RUN: u64 = 1;

/// Names that programs of the run have looked up.
#[derive(Debug, Default)]
struct Names(Arc<Mutex<Vec<(IpAddr, String)>>>);

impl RunNames for Names {
    fn count(&self) -> u64 {
        u64::try_from(self.0.lock().unwrap().len()).unwrap()
    }

    fn of(&self, address: IpAddr) -> Vec<String> {
        let names = self.0.lock().unwrap();
        names.iter().filter(|(one, _)| *one == address).map(|(_, name)| name.clone()).collect()
    }
}

/// A thread that does not run, with a run. The tests call what the thread would call.
struct Scene {
    thread: IkeThread,
    /// The socket at the address of the peer in the policy.
    peer: UdpSocket,
    log: Log,
    audit: PathBuf,
    names: Arc<Mutex<Vec<(IpAddr, String)>>>,
}

/// A side that communicates with the thread.
struct Sender {
    connection: IkeConnection,
    socket: UdpSocket,
    events: Vec<IkeEvent>,
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.2:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    socket
}

/// A policy with a peer at this address, and further rules.
fn policy(peer: SocketAddr, inner: &str, rules: &str) -> IkePolicy {
    IkePolicy::of_text(&format!(
        "version = 1\n[ike.branch]\npeer = \"{}\"\nport = {}\npsk-file = \"psk\"\n\
         local-id = \"branch.example\"\nremote-id = \"gw.example\"\ninner = \"{inner}\"\n\
         [[rule]]\nname = \"web\"\ndirection = \"outbound\"\nremote = \"10.2.0.0/24\"\n\
         ipsec = {{ ike = \"branch\" }}\n{rules}",
        peer.ip(),
        peer.port()
    ))
}

impl Scene {
    fn new(test: &str, inner: &str) -> Self {
        let peer = socket();
        let audit =
            std::env::temp_dir().join(format!("tacit-ike-{test}-{}.audit", std::process::id()));
        let log = Log::start(Settings {
            format: Format::Text,
            level: LogLevel::Info,
            destination: LogDestination::File(audit.with_extension("main")),
            launcher: None,
            audit: Some(audit.clone()),
        })
        .unwrap();
        let underlay = Underlay::bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let locals = underlay.local_addresses().unwrap();
        let inputs = Arc::<Inputs>::default();
        let threads = PacketThreads::default();
        let worker = PacketWorker::start(underlay, Arc::clone(&inputs), threads).unwrap();
        let (notices, _) = mpsc::channel(16);
        let context = IkeContext {
            inputs,
            worker: Arc::new(worker),
            statuses: Arc::default(),
            manual: Arc::default(),
            refused: Arc::default(),
            locals,
            notices,
            log: log.clone(),
            refusals: Box::new(|_, _| {}),
            traces: Arc::new(NoTraces),
        };
        let policy = policy(peer.local_addr().unwrap(), inner, "");
        let mut thread = IkeThread::new(policy, context).unwrap();
        let names = Names::default();
        let known = Arc::clone(&names.0);
        let (lease, _) = TunLease::new(std::fs::File::open("/dev/null").unwrap().into());
        let own = vec!["10.9.0.1".parse().unwrap()];
        let name = "run".to_owned();
        let run = DrivenRun::new(name, TunId::numbered(1), own, Box::new(names), lease);
        thread.drive(RUN, run);
        Self { thread, peer, log, audit, names: known }
    }

    fn pair() -> Pair {
        Pair { run: RUN, ike: "branch".to_owned() }
    }

    /// The configuration of the gateway.
    fn gateway_config(&self) -> IkeConfig {
        let own = self.thread.candidate(&Self::pair()).unwrap().settings.config;
        let own = IkeConfig::clone(&own);
        let mut config = IkeConfig {
            local: own.remote.clone(),
            remote: own.local.clone(),
            local_auth: own.local_auth.clone(),
            ..own
        };
        std::mem::swap(&mut config.child.local, &mut config.child.remote);
        config
    }

    fn initiator(&self, socket: UdpSocket) -> Sender {
        let config = Arc::new(self.gateway_config());
        let path =
            IkePath { local: socket.local_addr().unwrap(), remote: self.thread.context.locals[0] };
        let now = boottime();
        let connection = IkeConnection::initiate(config, path, Box::new(KernelRandom), now);
        Sender { connection, socket, events: Vec::new() }
    }

    fn deliver(&mut self, from: SocketAddr, message: Vec<u8>) {
        self.thread.receive(&IkeDatagram { from, message });
        self.thread.pass_time();
    }

    /// Lets a side communicate with the thread until nothing more happens.
    fn settle(&mut self, sender: &mut Sender) {
        loop {
            let from = sender.socket.local_addr().unwrap();
            for message in sender.messages() {
                self.deliver(from, message);
            }
            let Some(message) = received(&sender.socket) else { break };
            sender.connection.handle_datagram(boottime(), self.thread.context.locals[0], &message);
        }
    }

    /// The lines of the audit log with this text.
    fn lines(&self, text: &str) -> usize {
        self.lines_in(&self.audit, text)
    }

    fn lines_in(&self, file: &Path, text: &str) -> usize {
        self.log.flush();
        let all = std::fs::read_to_string(file).unwrap();
        all.lines().filter(|line| line.contains(text)).count()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.audit);
        let _ = std::fs::remove_file(self.audit.with_extension("main"));
    }
}

impl Sender {
    fn messages(&mut self) -> Vec<Vec<u8>> {
        self.events.extend(std::iter::from_fn(|| self.connection.poll_event()));
        let transmits = std::iter::from_fn(|| self.connection.poll_transmit());
        let messages = transmits.filter_map(|one| match one {
            IkeTransmit::Message(message) => Some(message),
            IkeTransmit::Keepalive => None,
        });
        messages.collect()
    }

    fn is_established(&self) -> bool {
        self.events.iter().any(|event| matches!(event, IkeEvent::Established { .. }))
    }

    /// Sends what is due within this time.
    fn wait(&mut self, time: Duration) {
        self.connection.handle_timeout(boottime() + time);
    }
}

struct NoTraces;

impl KeyTraces for NoTraces {
    fn are_of(&self, _: &str) -> bool {
        false
    }

    fn give(&self, _: &str, _: &[KeyLogLine]) {}
}

/// A message without its marker.
fn received(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 65_535];
    let length = socket.recv(&mut bytes).ok()?;
    Some(bytes[4..length].to_vec())
}

/// The time in which a side repeats its request with a cookie.
const COOKIE_WAIT: Duration = Duration::from_millis(300);

#[test]
fn a_gateway_connects_after_a_forged_first_request_with_its_spi() {
    let mut scene = Scene::new("spi", "10.1.0.1");
    let mut gateway = scene.initiator(scene.peer.try_clone().unwrap());
    let from = scene.peer.local_addr().unwrap();
    let request = gateway.messages().remove(0);
    let mut other = scene.initiator(socket());
    let mut forged = other.messages().remove(0);
    forged[..8].copy_from_slice(&request[..8]);
    scene.deliver(from, forged);
    // The same request, as someone has seen it, from another address.
    scene.deliver(other.socket.local_addr().unwrap(), request.clone());
    scene.deliver(from, request);
    scene.settle(&mut gateway);
    assert!(gateway.is_established(), "{:?}", gateway.events);
}

#[test]
fn unauthenticated_senders_at_the_address_of_a_gateway_do_not_replace_it() {
    let mut scene = Scene::new("places", "10.1.0.1");
    for _ in 0..30 {
        let mut stranger = scene.initiator(socket());
        let from = stranger.socket.local_addr().unwrap();
        let first = stranger.messages().remove(0);
        scene.deliver(from, first);
        // It returns its cookie, and sends no AUTH.
        if let Some(message) = received(&stranger.socket) {
            stranger.connection.handle_datagram(
                boottime(),
                scene.thread.context.locals[0],
                &message,
            );
            stranger.wait(COOKIE_WAIT);
            let second = stranger.messages().remove(0);
            if second[16] != 46 {
                scene.deliver(from, second);
            }
        }
    }
    let strangers = scene.thread.connections.iter().filter(|one| one.stranger.is_some()).count();
    assert!(strangers >= 8, "only {strangers} connections from unknown peers");
    let mut gateway = scene.initiator(scene.peer.try_clone().unwrap());
    scene.settle(&mut gateway);
    gateway.wait(COOKIE_WAIT);
    scene.settle(&mut gateway);
    assert!(gateway.is_established(), "{:?}", gateway.events);
}

#[test]
fn forged_first_requests_that_are_refused_lead_to_cookies_and_to_one_line() {
    let mut scene = Scene::new("refused", "10.1.0.1");
    let from = scene.peer.local_addr().unwrap();
    let mut cookies = 0;
    for _ in 0..50 {
        let mut sender = scene.initiator(scene.peer.try_clone().unwrap());
        let mut request = sender.messages().remove(0);
        // Its groups have a type of transform that does not exist.
        for at in 28..request.len() - 4 {
            if request[at..at + 2] == [4, 0] && request[at + 2] == 0 {
                request[at] = 240;
            }
        }
        scene.deliver(from, request);
        let answer = received(&scene.peer).unwrap();
        // The notification behind the header of IKE and that of its payload.
        match u16::from_be_bytes([answer[34], answer[35]]) {
            14 | 17 => {}
            16390 => cookies += 1,
            other => panic!("notification {other}"),
        }
    }
    assert!(cookies >= 40, "{cookies} cookies");
    assert_eq!(scene.lines("ike-failed"), 1);
}

/// A gateway that has received the first request for a run with the address 10.1.0.1.
fn accepted(scene: &mut Scene) -> Sender {
    scene.thread.connect(&Scene::pair());
    let config = Arc::new(scene.gateway_config());
    let local = scene.peer.local_addr().unwrap();
    let request = received(&scene.peer).unwrap();
    let path = IkePath { local, remote: scene.thread.context.locals[0] };
    let random = Box::new(KernelRandom);
    let connection = IkeConnection::accept(&[config], path, random, boottime(), &request).unwrap();
    let socket = scene.peer.try_clone().unwrap();
    Sender { connection, socket, events: Vec::new() }
}

/// A gateway with an established connection for this run.
fn connected(scene: &mut Scene) -> Sender {
    let mut gateway = accepted(scene);
    scene.settle(&mut gateway);
    assert!(gateway.is_established(), "{:?}", gateway.events);
    gateway
}

#[test]
fn a_peer_gets_a_message_at_once_when_this_host_sends_from_another_address() {
    let mut scene = Scene::new("source", "10.1.0.1");
    let mut gateway = connected(&mut scene);
    let other: SocketAddr = "127.0.0.9:4500".parse().unwrap();
    let none: SocketAddr = "0.0.0.0:4500".parse().unwrap();
    scene.thread.follow_sources(boottime(), |_| none);
    assert_eq!(received(&scene.peer), None, "no route");
    scene.thread.follow_sources(boottime(), |_| other);
    let request = received(&scene.peer).expect("a request");
    gateway.connection.handle_datagram(boottime(), other, &request);
    gateway.messages();
    assert!(gateway.events.contains(&IkeEvent::PeerMoved(other)), "{:?}", gateway.events);
    scene.thread.follow_sources(boottime(), |_| other);
    assert_eq!(received(&scene.peer), None, "the same address");
}

#[test]
fn a_peer_gets_a_message_when_another_route_to_it_has_another_source_address() {
    let mut scene = Scene::new("route", "10.1.0.1");
    let mut gateway = connected(&mut scene);
    let source = scene.thread.connections[0].open.as_ref().unwrap().local();
    // The address of an earlier route.
    let earlier: SocketAddr = "127.0.0.9:4500".parse().unwrap();
    scene.thread.follow_sources(boottime(), |_| earlier);
    let request = received(&scene.peer).expect("a request");
    gateway.connection.handle_datagram(boottime(), earlier, &request);
    scene.settle(&mut gateway);
    scene.thread.pass_time();
    assert_eq!(received(&scene.peer), None, "no change of the routes");
    scene.thread.obey(Order::CompareSources);
    scene.thread.pass_time();
    assert!(received(&scene.peer).is_some(), "a request");
    let open = scene.thread.connections[0].open.as_ref().unwrap();
    assert_eq!(open.local(), source);
}

#[test]
fn a_peer_that_answers_nothing_is_logged_and_shown_before_the_attempt_fails() {
    let mut scene = Scene::new("silent", "10.1.0.1");
    scene.thread.connect(&Scene::pair());
    let open = scene.thread.connections[0].open.as_mut().unwrap();
    open.handle_timeout(boottime() + UNANSWERED);
    scene.thread.drain(0);
    let wanted = format!("listens on UDP port {}", scene.peer.local_addr().unwrap().port());
    let main = scene.audit.with_extension("main");
    assert_eq!(scene.lines_in(&main, "ike-unanswered"), 1);
    assert_eq!(scene.lines_in(&main, &wanted), 1);
    assert_eq!((scene.lines("ike-unanswered"), scene.lines("ike-failed")), (1, 0));
    let status = scene.thread.connections[0].status(0);
    assert_eq!(status.state, IkeState::Opening);
    assert!(status.failure.unwrap().contains(&wanted));
}

#[test]
fn a_peer_that_does_not_answer_auth_is_logged_and_shown_before_the_attempt_fails() {
    let mut scene = Scene::new("half", "10.1.0.1");
    let mut gateway = accepted(&mut scene);
    let from = scene.peer.local_addr().unwrap();
    let answer = gateway.messages().remove(0);
    scene.deliver(from, answer);
    let auth = received(&scene.peer).expect("IKE_AUTH");
    let open = scene.thread.connections[0].open.as_mut().unwrap();
    open.handle_timeout(boottime() + UNANSWERED);
    scene.thread.drain(0);
    let wanted =
        format!("drops UDP datagrams of {} bytes to or from port {}", auth.len(), from.port());
    let main = scene.audit.with_extension("main");
    assert_eq!(scene.lines_in(&main, "request=IKE_AUTH"), 1);
    assert_eq!(scene.lines_in(&main, &wanted), 1);
    assert_eq!((scene.lines("ike-unanswered"), scene.lines("ike-failed")), (1, 0));
    let status = scene.thread.connections[0].status(0);
    assert_eq!(status.state, IkeState::Opening);
    assert!(status.failure.unwrap().contains(&wanted));
}

#[test]
fn a_connection_that_the_peer_has_dropped_without_a_message_is_logged() {
    let mut scene = Scene::new("dropped", "10.1.0.1");
    connected(&mut scene);
    let open = scene.thread.connections[0].open.as_mut().unwrap();
    let mut now = boottime();
    while !open.has_ended() {
        now = now.max(open.poll_timeout().unwrap());
        open.handle_timeout(now);
    }
    scene.thread.drain(0);
    assert!(scene.thread.connections[0].failure().unwrap().contains("the same identity"));
    while received(&scene.peer).is_some() {}
    // The next attempt waits for a second.
    std::thread::sleep(Duration::from_millis(1100));
    let main = scene.audit.with_extension("main");
    assert_eq!(scene.lines_in(&main, "ike-dropped-by-peer"), 0);
    connected(&mut scene);
    assert_eq!(scene.lines_in(&main, "ike-dropped-by-peer"), 1);
}

/// A run with the address 10.1.0.1 that the gateway has assigned.
fn assigned(test: &str) -> Scene {
    let mut scene = Scene::new(test, "gateway");
    let own = TrafficSelector::of_addresses([10, 1, 0, 1].into(), [10, 1, 0, 1].into()).unwrap();
    let mut config = scene.gateway_config();
    let addresses = vec!["10.1.0.1".parse().unwrap()];
    config.inner = InnerConfig::Assign(InnerAddresses { addresses, resolvers: Vec::new() });
    config.child.remote = vec![own];
    let local = scene.peer.local_addr().unwrap();
    let request = received(&scene.peer).unwrap();
    let path = IkePath { local, remote: scene.thread.context.locals[0] };
    let random = Box::new(KernelRandom);
    let gateway =
        IkeConnection::accept(&[Arc::new(config)], path, random, boottime(), &request).unwrap();
    let socket = scene.peer.try_clone().unwrap();
    let mut gateway = Sender { connection: gateway, socket, events: Vec::new() };
    scene.settle(&mut gateway);
    assert_eq!(scene.thread.assigned[&Scene::pair()], Ok(vec!["10.1.0.1".parse().unwrap()]));
    scene.thread.assigned.clear();
    assert_eq!(scene.ending(), None);
    scene
}

impl Scene {
    /// Why the run does not keep its address.
    fn ending(&self) -> Option<String> {
        let ending = self.thread.connections[0].ending.as_ref();
        let failure = ending.map(|failure| failure.message.clone());
        let reported = self.thread.assigned.get(&Self::pair());
        assert_eq!(reported.map(|one| one.clone().unwrap_err()), failure);
        failure
    }
}

#[test]
fn an_assigned_address_is_taken_back_when_another_rule_names_it() {
    let mut scene = assigned("rule");
    let peer = scene.peer.local_addr().unwrap();
    let rule = |remote: &str| {
        format!(
            "[[rule]]\nname = \"database\"\ndirection = \"outbound\"\nremote = \"{remote}\"\n\
             permit = true\n"
        )
    };
    scene.thread.follow(policy(peer, "gateway", &rule("10.1.0.2")));
    assert_eq!(scene.ending(), None);
    scene.thread.follow(policy(peer, "gateway", &rule("10.1.0.0/24")));
    assert!(scene.ending().unwrap().contains("an address in `remote` of rule `database`"));
}

#[test]
fn an_assigned_address_is_taken_back_when_the_host_has_it() {
    let mut scene = assigned("own");
    scene.thread.follow_own(&["10.9.0.2".parse().unwrap()]);
    assert_eq!(scene.ending(), None);
    scene.thread.follow_own(&["10.9.0.2".parse().unwrap(), "10.1.0.1".parse().unwrap()]);
    assert!(scene.ending().unwrap().contains("an address of this host"));
}

#[test]
fn an_assigned_address_is_taken_back_when_a_name_of_a_rule_has_it() {
    let mut scene = assigned("name");
    let peer = scene.peer.local_addr().unwrap();
    let rule = "[[rule]]\nname = \"database\"\ndirection = \"outbound\"\nremote = \"db.example\"\n\
                permit = true\n";
    scene.thread.follow(policy(peer, "gateway", rule));
    let later: Instant = boottime() + NAMES_CHECK_INTERVAL;
    for (name, is_taken_back) in [("other.example", false), ("db.example", true)] {
        scene.names.lock().unwrap().push(("10.1.0.1".parse().unwrap(), name.to_owned()));
        scene.thread.names_check_at = later;
        scene.thread.check_names(later);
        assert_eq!(scene.ending().is_some(), is_taken_back, "{name}");
    }
}

#[test]
fn the_end_of_the_sequence_numbers_of_manual_sas_is_logged_once_each() {
    let mut scene = Scene::new("ends", "10.1.0.1");
    scene.thread.follow(IkePolicy::of_text(
        "version = 1\n[sa.far]\npeer = \"192.0.2.1\"\nencryption = \"aes256-cbc\"\nintegrity = \
         \"sha256\"\nspi-in = 257\nspi-out = 258\nkeys-in = \"in\"\nkeys-out = \"out\"\ninner = \
         \"10.1.0.1\"\n[[rule]]\nname = \"web\"\ndirection = \"outbound\"\nremote = \
         \"10.2.0.0/24\"\nipsec = { sa = \"far\" }\n",
    ));
    let spi = scene.thread.manual[0].spi;
    let main = scene.audit.with_extension("main");
    let numbers = u64::from(u32::MAX);
    for (sent, ending, ended) in [
        (numbers / 16 * 15 + 1, 1, 0),
        (numbers - 1, 1, 0),
        (numbers, 1, 1),
        (numbers, 1, 1),
        (numbers - 1, 1, 1),
    ] {
        scene.thread.note_manual_sent(spi, sent);
        let lines = |name| scene.lines_in(&main, name);
        assert_eq!((lines("sa-ending"), lines("sa-ended")), (ending, ended), "{sent}");
        assert_eq!(scene.lines("sa-ended"), ended, "{sent}");
    }
    let next = scene.thread.manual_next(&Pair { run: RUN, ike: "far".to_owned() });
    assert!(next.contains("has no sequence number left"), "{next}");
}
