//! Tests the DNS client with simulated programs and servers in virtual time.

use super::super::message::question_end;
use super::super::testing::{query, record, response};
use super::super::{ResponseCode, for_program};
use super::*;
use proptest::prelude::*;
use simple_dns::TYPE;
use simple_dns::rdata::{A, RData};

/// The behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    /// It answers after this number of milliseconds.
    After(u64),
    /// It never answers.
    Silent,
    /// Its host has no open port 53.
    Closed,
    /// It answers with a refusal.
    Refuses,
    /// It repeats questions in lower case.
    Folds,
    /// It rejects EDNS.
    IsOld,
    /// Its datagrams are truncated; over TCP it answers completely.
    Cuts,
    /// Its datagrams are truncated, and it does not support TCP.
    CutsOnly,
}

use Behaviour::{After, Closed, Cuts, CutsOnly, Folds, IsOld, Refuses, Silent};

struct World {
    client: DnsClient<u32>,
    health: Health,
    now: Instant,
    start: Instant,
    random: u64,
    behaviours: Vec<Behaviour>,
    options: ResolverOptions,
    sockets: HashMap<u64, SocketAddr>,
    /// The messages on their way to the client.
    flying: Vec<(Instant, u64, Vec<u8>)>,
    streams: Vec<(Instant, u64, Option<Vec<u8>>)>,
    failing: Vec<u64>,
    sent: Vec<SocketAddr>,
    opened: usize,
    finished: Vec<(Duration, FinishedQuery<u32>)>,
}

fn server(number: usize) -> SocketAddr {
    ([192, 0, 2, u8::try_from(number).unwrap()], 53).into()
}

fn waiter(name: &str, from: u32) -> QueryWaiter<u32> {
    QueryWaiter { query: Query::read(&query(name, TYPE::A)).unwrap(), bytes_max: 512, from }
}

fn reply(message: &[u8], behaviour: Behaviour) -> Vec<u8> {
    let end = question_end(message).unwrap();
    let mut reply = message[..end].to_vec();
    let has_edns = message[11] == 1;
    (reply[2], reply[3]) = (0x81, 0x80);
    reply[11] = 0;
    match behaviour {
        Refuses => reply[3] |= 5,
        Folds => reply[12..end - 4].make_ascii_lowercase(),
        IsOld if has_edns => {
            reply[3] |= 1;
            reply[5] = 0;
            reply.truncate(12);
        }
        Cuts | CutsOnly => reply[2] |= 2,
        _ => {}
    }
    reply
}

impl World {
    fn new(behaviours: &[Behaviour]) -> Self {
        let now = Instant::now();
        Self {
            client: DnsClient::new(),
            health: Health::default(),
            now,
            start: now,
            random: 1,
            behaviours: behaviours.to_vec(),
            options: ResolverOptions::default(),
            sockets: HashMap::new(),
            flying: Vec::new(),
            streams: Vec::new(),
            failing: Vec::new(),
            sent: Vec::new(),
            opened: 0,
            finished: Vec::new(),
        }
    }

    fn with<R>(&mut self, act: impl FnOnce(&mut DnsClient<u32>, &mut QueryContext<'_>) -> R) -> R {
        let Self { client, health, now, random, .. } = self;
        let mut next = || {
            // SplitMix64: the quality of the numbers does not matter.
            *random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (*random ^ (*random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed ^ (mixed >> 27)
        };
        act(client, &mut QueryContext { now: *now, health, random: &mut next })
    }

    fn ask(&mut self, waiter: QueryWaiter<u32>, to: SocketAddr) -> Result<(), TooMany> {
        let addresses = (0..self.behaviours.len()).map(server).collect();
        let servers = ServerList { addresses, options: self.options };
        let taken = self.with(|client, cx| client.ask(waiter, to, Servers::AnyOf(&servers), cx));
        self.act();
        taken
    }

    fn act(&mut self) {
        while let Some(action) = self.client.next_action() {
            match action {
                ClientAction::Open { socket, server } => {
                    assert!(self.sockets.insert(socket, server).is_none());
                    self.opened += 1;
                }
                ClientAction::Send { socket, message } => self.send(socket, &message),
                ClientAction::Close { socket } => assert!(self.sockets.remove(&socket).is_some()),
                ClientAction::Stream { number, server, message, time } => {
                    let behaviour = self.behaviour(server);
                    let (after, answer) = match behaviour {
                        CutsOnly => (time, None),
                        _ => (Duration::from_millis(2), Some(reply(&message, After(0)))),
                    };
                    self.streams.push((self.now + after, number, answer));
                }
                ClientAction::Finish(finished) => {
                    self.finished.push((self.now - self.start, finished));
                }
            }
        }
        while let Some(socket) = self.failing.pop() {
            self.with(|client, cx| client.socket_failed(socket, "connection refused", cx));
            self.act();
        }
    }

    fn send(&mut self, socket: u64, message: &[u8]) {
        let server = self.sockets[&socket];
        self.sent.push(server);
        let after = match self.behaviour(server) {
            Silent => return,
            Closed => return self.failing.push(socket),
            After(ms) => Duration::from_millis(ms),
            _ => Duration::from_millis(1),
        };
        let reply = reply(message, self.behaviour(server));
        self.flying.push((self.now + after, socket, reply));
    }

    fn behaviour(&self, server: SocketAddr) -> Behaviour {
        let SocketAddr::V4(v4) = server else { panic!("{server}") };
        self.behaviours[usize::from(v4.ip().octets()[3])]
    }

    /// Advances the time until nothing is left to do, or until the given time.
    fn run(&mut self, until: Duration) {
        let until = self.start + until;
        loop {
            let arrivals = self.flying.iter().map(|(at, ..)| *at);
            let streams = self.streams.iter().map(|(at, ..)| *at);
            let next = arrivals.chain(streams).chain(self.client.next_wake()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            let now = self.now;
            for (_, socket, message) in
                self.flying.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>()
            {
                self.with(|client, cx| client.received(socket, &message, cx));
                self.act();
            }
            for (_, number, message) in
                self.streams.extract_if(.., |(at, ..)| *at <= now).collect::<Vec<_>>()
            {
                self.with(|client, cx| client.streamed(number, message, cx));
                self.act();
            }
            self.with(|client, cx| client.tick(cx));
            self.act();
        }
        self.now = until.max(self.now);
    }

    /// Sends one query to the first server. Returns how long the answer takes, and its code.
    fn look_up(&mut self, name: &str) -> (u128, Option<u8>) {
        let before = self.now - self.start;
        self.ask(waiter(name, 1), server(0)).unwrap();
        let done = self.finished.len();
        if done == 0 || self.finished[done - 1].0 < before {
            self.run(before + Duration::from_secs(60));
        }
        let (at, finished) = self.finished.last().unwrap();
        let code = finished.response.as_ref().map(|response| response[3] & 15);
        let took = (*at - before).as_millis();
        self.finished.clear();
        (took, code)
    }
}

#[test]
fn two_dead_servers_cost_half_a_second_once_and_little_afterwards() {
    let mut world = World::new(&[Silent, Silent, After(3)]);
    assert_eq!(world.look_up("a.example"), (503, Some(0)));
    assert_eq!(world.look_up("b.example").0, 503, "60 s later it is forgotten");
    let mut world = World::new(&[Silent, Silent, After(3)]);
    for (number, expected) in [503, 53, 53, 53].into_iter().enumerate() {
        world.ask(waiter(&format!("n{number}.example"), 1), server(0)).unwrap();
        let asked = world.now - world.start;
        world.run(asked + Duration::from_secs(1));
        assert_eq!((world.finished.pop().unwrap().0 - asked).as_millis(), expected);
    }
    assert_eq!(world.client.exchanges.len(), 0);
}

#[test]
fn on_a_host_only_the_chosen_server_is_queried_and_no_other_answers_for_it() {
    let mut world = World::new(&[Refuses, After(3), Silent]);
    for chosen in [0, 1, 1, 2] {
        let options = world.options;
        let from = u32::try_from(chosen).unwrap();
        let asked = world.with(|client, cx| {
            let waiter = waiter("a.example", from);
            client.ask(waiter, server(chosen), Servers::Chosen(options), cx)
        });
        asked.unwrap();
        world.act();
    }
    world.run(Duration::from_secs(60));
    let mut codes: Vec<_> = world
        .finished
        .iter()
        .map(|(_, one)| {
            (one.waiters[0].from, one.response.as_ref().map(|response| response[3] & 15))
        })
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [(0, Some(5)), (1, Some(0)), (2, None)]);
    let once = world.sent.iter().filter(|to| **to == server(1)).count();
    assert_eq!(once, 1, "a repeated question is not sent again at once");
}

#[test]
fn a_server_that_is_closed_is_queried_in_each_round_from_another_port() {
    let mut world = World::new(&[Closed]);
    world.options.attempts = 3;
    assert_eq!(world.look_up("a.example"), (0, None));
    assert_eq!(world.sent, [server(0); 3]);
    assert_eq!(world.opened, 3);
}

#[test]
fn a_dead_server_is_reported_once_and_again_when_it_answers() {
    let mut world = World::new(&[Silent, After(1)]);
    for name in ["a.example", "b.example", "c.example"] {
        world.look_up(name);
    }
    let error = Some("the DNS server did not answer in time".to_owned());
    assert_eq!(
        world.health.take_changes(),
        [super::super::ServerChange { server: server(0), error }]
    );
    world.behaviours[0] = After(1);
    world.look_up("d.example");
    let back = super::super::ServerChange { server: server(0), error: None };
    assert_eq!(world.health.take_changes(), [back]);
}

#[test]
fn a_question_that_takes_long_is_no_sign_of_a_dead_server() {
    let mut world = World::new(&[After(700), After(900)]);
    assert_eq!(world.look_up("a.example"), (700, Some(0)));
    assert!(world.health.take_changes().is_empty());
    assert!(!world.health.is_suspected(server(0), world.now));
}

#[test]
fn each_server_has_its_time_and_all_are_asked_as_often_as_the_file_says() {
    let mut world = World::new(&[Silent]);
    assert_eq!(world.look_up("a.example"), (10_000, None));
    world.options = ResolverOptions { timeout: Duration::from_secs(1), attempts: 3, rotate: false };
    assert_eq!(world.look_up("a.example"), (3000, None));
    assert_eq!(world.sent.len(), 5);
    assert_eq!(World::new(&[]).look_up("a.example"), (0, None), "without servers at once");
}

#[test]
fn errors_and_refusals_lead_to_the_next_server_at_once() {
    for first in [Closed, Refuses] {
        assert_eq!(World::new(&[first, After(4)]).look_up("a.example").1, Some(0));
        let (ms, _) = World::new(&[first, After(4)]).look_up("a.example");
        assert!(ms <= 5, "{first:?}: {ms}");
    }
    assert_eq!(World::new(&[Refuses, Refuses]).look_up("a.example"), (2, Some(5)));
    assert_eq!(World::new(&[Closed, Closed]).look_up("a.example"), (0, None));
    assert_eq!(World::new(&[Closed, Refuses]).look_up("a.example"), (1, Some(5)));
}

#[test]
fn a_server_that_folds_case_or_has_no_edns_is_asked_twice() {
    for odd in [Folds, IsOld] {
        let mut world = World::new(&[odd]);
        assert_eq!(world.look_up("a-long-name.with-many-letters.example"), (2, Some(0)));
        assert_eq!(world.sent.len(), 2, "{odd:?}");
    }
}

#[test]
fn what_does_not_fit_a_datagram_is_asked_by_tcp_for_those_that_can_take_it() {
    let whole = |behaviour: Behaviour, bytes_max: usize| {
        let mut world = World::new(&[behaviour]);
        let one = QueryWaiter { bytes_max, ..waiter("a.example", 1) };
        world.ask(one, server(0)).unwrap();
        world.run(Duration::from_secs(60));
        let (at, finished) = world.finished.pop().unwrap();
        (at.as_millis(), is_truncated(&finished.response.unwrap()))
    };
    assert_eq!(whole(Cuts, 512), (1, true));
    assert_eq!(whole(Cuts, 65_535), (3, false));
    assert_eq!(whole(CutsOnly, 65_535), (5001, true));
}

#[test]
fn equal_questions_are_one_and_all_that_asked_get_the_answer() {
    let mut world = World::new(&[After(20)]);
    for from in 0..300 {
        world.ask(waiter("a.example", from), server(0)).unwrap();
    }
    world.ask(waiter("A.Example", 300), server(0)).unwrap();
    let checking = query("a.example", TYPE::A);
    let mut other = waiter("a.example", 301);
    other.query = Query::read(&[&checking[..3], &[0x10], &checking[4..]].concat()).unwrap();
    world.ask(other, server(0)).unwrap();
    world.run(Duration::from_secs(1));
    assert_eq!(world.sent.len(), 2, "with another flag it is another question");
    let waiters: Vec<_> = world.finished.iter().map(|(_, one)| one.waiters.len()).collect();
    assert_eq!(waiters, [301, 1]);
    let (_, finished) = &world.finished[0];
    let written = finished.waiters.last().unwrap();
    let answer = for_program(finished.response.as_ref().unwrap(), &written.query, 512).unwrap();
    assert_eq!(&answer[12..23], b"\x01A\x07Example\0");
    assert_eq!(world.client.waiting, 0);
}

#[test]
fn a_query_that_is_sent_again_goes_to_the_server_again() {
    let mut world = World::new(&[Silent, Silent]);
    world.ask(waiter("a.example", 1), server(0)).unwrap();
    world.ask(waiter("a.example", 1), server(0)).unwrap();
    assert_eq!(world.sent, [server(0)], "not at once");
    world.ask(waiter("a.example", 2), server(1)).unwrap();
    assert_eq!(world.sent, [server(0), server(1)], "another server is asked at once");
    world.run(Duration::from_millis(600));
    let before = world.sent.len();
    world.behaviours[0] = After(1);
    world.ask(waiter("a.example", 1), server(0)).unwrap();
    assert_eq!(world.sent.len(), before + 1);
    world.run(Duration::from_secs(1));
    assert_eq!(world.finished[0].1.waiters.len(), 2, "it waits once");
    assert!(world.finished[0].0 < Duration::from_millis(602));
}

#[test]
fn messages_for_one_question_are_limited() {
    let mut world = World::new(&[Silent]);
    for _ in 0..100 {
        world.ask(waiter("a.example", 1), server(0)).unwrap();
        world.now += Duration::from_millis(60);
    }
    assert_eq!(world.sent.len(), usize::try_from(TRIES_MAX).unwrap());
}

#[test]
fn what_is_too_many_is_not_taken() {
    let mut world = World::new(&[Silent]);
    for number in 0..WAITING_MAX {
        let number = u32::try_from(number).unwrap();
        world.ask(waiter(&format!("n{}.example", number / 2), number), server(0)).unwrap();
    }
    for name in ["more.example", "n7.example"] {
        assert_eq!(world.ask(waiter(name, u32::MAX), server(0)), Err(TooMany));
    }
    world.run(Duration::from_secs(60));
    world.ask(waiter("more.example", 1), server(0)).unwrap();
}

#[test]
fn sockets_change_and_none_stays_open() {
    let mut world = World::new(&[After(1)]);
    let mut seen = std::collections::HashSet::new();
    let questions = QUERIES_PER_SOCKET_MAX * 4;
    for number in 0..questions {
        world.ask(waiter(&format!("n{number}.example"), 1), server(0)).unwrap();
        seen.extend(world.sockets.keys().copied());
        if number % 100 == 99 {
            world.run(world.now - world.start + Duration::from_millis(2));
        }
    }
    assert_eq!(world.finished.len(), usize::try_from(questions).unwrap());
    assert!((3..=6).contains(&seen.len()), "{}", seen.len());
    world.run(Duration::from_secs(60));
    assert!(world.sockets.is_empty());
    assert_eq!(world.client.next_wake(), None, "nothing is left to do");
}

#[test]
fn only_the_right_answer_by_the_right_socket_ends_a_question() {
    let mut world = World::new(&[Silent]);
    world.ask(waiter("a.example", 1), server(0)).unwrap();
    let socket = *world.sockets.keys().next().unwrap();
    let id = (0..=u16::MAX)
        .find(|id| world.client.sockets.get(SocketSlot { socket, id: *id }).is_some());
    let sent =
        world.client.sockets.get(SocketSlot { socket, id: id.unwrap() }).unwrap().message.clone();
    let forged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut message = reply(&sent, After(0));
        change(&mut message);
        message
    };
    let wrong = [
        forged(&|message| message[1] ^= 1),
        forged(&|message| message[13] = b'b'),
        forged(&|message| message[2] = 0x01),
        forged(&|message| *message.last_mut().unwrap() = 3),
        forged(&|message| message[5] = 0),
        response("other.example", vec![record("a.example", 60, RData::A(A { address: 1 }))]),
    ];
    for message in wrong {
        world.with(|client, cx| client.received(socket, &message, cx));
        world.with(|client, cx| client.received(socket + 1, &forged(&|_| {}), cx));
        assert!(world.client.next_action().is_none(), "{message:?}");
    }
    world.with(|client, cx| client.received(socket, &forged(&|_| {}), cx));
    assert!(matches!(world.client.next_action(), Some(ClientAction::Finish(_))));
}

#[test]
fn the_program_gets_the_refusal_if_all_refuse() {
    let mut world = World::new(&[Refuses]);
    assert_eq!(world.look_up("a.example").1, Some(ResponseCode::Refused as u8));
}

proptest! {
    #[test]
    fn every_question_ends_whatever_servers_do(
        kinds in prop::collection::vec(0..8_usize, 0..5),
        names in prop::collection::vec(0..20_u32, 1..40),
        pause_ms in 0..400_u64,
    ) {
        let all = [After(5), After(600), Silent, Closed, Refuses, Folds, IsOld, CutsOnly];
        let behaviours: Vec<_> = kinds.iter().map(|kind| all[*kind]).collect();
        let mut world = World::new(&behaviours);
        for (from, name) in (0..).zip(&names) {
            let one = waiter(&format!("n{name}.example"), from);
            let one = QueryWaiter { bytes_max: 65_535, ..one };
            world.ask(one, server(from as usize % 5)).unwrap();
            world.run(world.now - world.start + Duration::from_millis(pause_ms));
        }
        world.run(Duration::from_secs(200));
        let ended: usize = world.finished.iter().map(|(_, one)| one.waiters.len()).sum();
        prop_assert_eq!(ended, names.len());
        prop_assert_eq!(world.client.waiting, 0);
        prop_assert!(world.sockets.is_empty() && world.client.next_wake().is_none());
        prop_assert!(world.client.late.is_empty() && world.client.by_question.is_empty());
    }
}
