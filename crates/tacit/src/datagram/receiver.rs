//! Receives the captured datagrams of a run (a program under `tacit run`). Passes each datagram to
//! its UDP flow, or starts a new flow.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use tacit_core::datagram::{DatagramFlows, DatagramKey, is_for_one};
use tacit_core::dns::NamedDestination;
use tacit_core::flow::{Direction, Flow, Protocol};
use tacit_core::icmp::IcmpError;
use tacit_core::meter::Component;
use tacit_core::policy::Deny;
use tacit_sys::datagram::{self, PAYLOAD_BYTES_MAX};
use tacit_sys::datagram_queue::DatagramQueue;
use tacit_sys::transparent;
use tacit_sys::watch::{Watched, watch};
use tokio::io::Interest;
use tokio::sync::OwnedSemaphorePermit;

use super::flow::{self, FlowHost, FlowRelay, NotDialled, answer_sources, target_of};
use super::icmp_errors::{cause_of, send_icmp_error};
use super::socket::{DatagramShared, Receiver};
use super::{BATCH_MAX, EARLY_BYTES_MAX, FLOWS_MAX};
use crate::clock;
use crate::dns::ResolverClient;
use crate::ledger::metered;
use crate::live::{Live, LiveAction};
use crate::log::Event;
use crate::net::Security;
use crate::run::Outside;
use crate::run::{Run, Scope};
use crate::session::{
    Connection, ConnectionPath, Failure, Opening, RefusedFlow, ScopeFacts, Unreached, account,
};

/// How often ended flows are removed and drops are logged.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How long the last datagrams of a run may wait for a decision.
const FINISH_WAIT_MAX: Duration = Duration::from_secs(2);
/// The interval between two checks of that.
const FINISH_POLL: Duration = Duration::from_millis(5);

/// A receiver on the worker that reads it, with its flows.
#[derive(Debug)]
pub struct Lane {
    shared: DatagramShared,
    receiver: Arc<Receiver>,
    watched: Watched,
    flows: RefCell<DatagramFlows<State>>,
    /// The receive buffer; not used across an `await`.
    scratch: RefCell<Vec<u8>>,
    /// The buffer of flows; not used across an `await`.
    queue: RefCell<DatagramQueue>,
    dropped: Cell<u64>,
    /// Answers queries to port 53.
    resolver: Rc<ResolverClient>,
    questions_dropped: Cell<u64>,
    /// Whether no more datagrams are received. Flows continue until they end.
    is_closed: Cell<bool>,
    /// Whether the run has ended. Then no flow begins.
    is_run_over: Cell<bool>,
}

/// A flow that a rule permits, and that has no socket outside yet.
#[derive(Debug)]
struct AdmittedFlow {
    key: DatagramKey,
    flow: Flow,
    connection: Connection,
    /// The generation of the policy that permits it.
    generation: u64,
}

/// The state of a flow.
#[derive(Debug)]
pub(super) enum State {
    /// The owner of the flow is being looked up, or its socket is being opened on the other side of
    /// a link. Its datagrams wait.
    Deciding(VecDeque<Vec<u8>>),
    /// The flow is relayed.
    Open(Rc<FlowRelay>),
    /// The policy of that generation rejects it.
    Refused { generation: u64, cause: IcmpError },
}

impl Lane {
    /// Registers a receiver with the calling thread.
    ///
    /// # Errors
    /// The socket cannot be watched.
    pub fn new(shared: DatagramShared, receiver: Arc<Receiver>) -> io::Result<Rc<Self>> {
        datagram::enlarge_buffers(receiver.socket.as_fd())?;
        let watched = watch(Arc::clone(&receiver.socket), Interest::READABLE)?;
        let raw = Some(Arc::clone(&receiver.raw));
        let resolver = ResolverClient::new(Arc::clone(&receiver.names), raw);
        Ok(Rc::new(Self {
            shared,
            receiver,
            watched,
            flows: RefCell::new(DatagramFlows::new(FLOWS_MAX)),
            scratch: RefCell::new(vec![0; PAYLOAD_BYTES_MAX]),
            queue: RefCell::default(),
            dropped: Cell::new(0),
            resolver,
            questions_dropped: Cell::new(0),
            is_closed: Cell::new(false),
            is_run_over: Cell::new(false),
        }))
    }

    /// Receives until the task is aborted. Flows continue without it to their end.
    pub async fn receive_all(self: Rc<Self>) {
        tokio::task::spawn_local(metered(Component::Control, sweep(Rc::clone(&self))));
        let _closed = CloseOnDrop(Rc::clone(&self));
        loop {
            let Ok(mut ready) = self.watched.readable().await else { return };
            match self.receive_some() {
                Ok(true) => ready.clear_ready(),
                Ok(false) => {}
                Err(error) => {
                    self.log_failure(Event::new("datagrams-failed"), &error);
                    ready.clear_ready();
                }
            }
            // Let other tasks of this worker run between two batches.
            tokio::task::yield_now().await;
        }
    }

    /// Sends the datagrams that have arrived, then ends all flows: the run is over.
    pub async fn finish(self: Rc<Self>) {
        self.close();
        self.resolver.end();
        let until = tokio::time::Instant::now() + FINISH_WAIT_MAX;
        let is_deciding = || {
            let flows = self.flows.borrow();
            flows.flows().any(|state| matches!(state, State::Deciding(_)))
        };
        while is_deciding() && tokio::time::Instant::now() < until {
            tokio::time::sleep(FINISH_POLL).await;
        }
        self.is_run_over.set(true);
        let all = self.flows.borrow_mut().take_all();
        for state in all {
            if let State::Open(relay) = &state {
                // Errors are not reported, because all programs have ended.
                relay.flush_sockets(&self);
            }
            self.end_state(state);
        }
        self.log_drops();
    }

    /// Stops receiving, because a successor receives now. Flows continue to their end.
    pub fn close(&self) {
        self.is_closed.set(true);
    }

    /// Reads all datagrams that have arrived, before a flow gets a socket of its own.
    pub fn drain(self: &Rc<Self>) {
        if self.is_closed.get() {
            return;
        }
        // Bounded by what the socket's buffer holds of the shortest datagrams.
        for _ in 0..BATCH_MAX {
            if !matches!(self.receive_some(), Ok(false)) {
                return;
            }
        }
    }

    /// Reads a batch; returns whether the socket is empty.
    fn receive_some(self: &Rc<Self>) -> io::Result<bool> {
        for _ in 0..BATCH_MAX {
            let mut scratch = std::mem::take(&mut *self.scratch.borrow_mut());
            let received = transparent::receive(self.receiver.socket.as_fd(), &mut scratch);
            if let Ok(datagram) = &received {
                let key =
                    DatagramKey { program: datagram.source, destination: datagram.destination };
                self.take(key, &scratch[..datagram.bytes]);
            }
            *self.scratch.borrow_mut() = scratch;
            match received {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Passes one datagram to its flow.
    fn take(self: &Rc<Self>, key: DatagramKey, payload: &[u8]) {
        let names = &self.receiver.names;
        if names.answers(Protocol::Udp, &key.program.into(), key.destination) {
            return self.take_query(key, payload);
        }
        if !is_for_one(key.destination.ip()) {
            let run = &self.receiver.run;
            let DatagramShared { log, refusals, .. } = &self.shared;
            account::refused_group(log, refusals, run, key.destination);
            return self.count_drop();
        }
        let mut flows = self.flows.borrow_mut();
        let now = self.generation();
        let refused = flows.flow(&key).and_then(|state| match state {
            State::Refused { generation, cause } if *generation == now => Some(*cause),
            State::Refused { .. } | State::Deciding(_) | State::Open(_) => None,
        });
        if let Some(cause) = refused {
            // This datagram does not extend the life of the decision, because a time window or a
            // name may soon change it.
            return send_icmp_error(&self.receiver, &key, cause, payload, None);
        }
        match flows.sent(&key, Instant::now()) {
            Some(State::Open(relay)) => {
                let relay = Rc::clone(relay);
                drop(flows);
                relay.send_early(self, payload);
            }
            Some(State::Deciding(early)) => {
                let bytes = early.iter().map(Vec::len).sum::<usize>() + payload.len();
                if bytes <= EARLY_BYTES_MAX {
                    early.push_back(payload.to_vec());
                } else {
                    self.count_drop();
                }
            }
            Some(State::Refused { .. }) | None => {
                drop(flows);
                self.begin(key, VecDeque::from([payload.to_vec()]));
            }
        }
    }

    fn take_query(&self, key: DatagramKey, query: &[u8]) {
        let taken = self.resolver.take_datagram(query, key.program, key.destination);
        if taken.is_err() {
            self.questions_dropped.set(self.questions_dropped.get() + 1);
        }
    }

    /// The first datagrams of a flow.
    fn begin(self: &Rc<Self>, key: DatagramKey, early: VecDeque<Vec<u8>>) {
        // Checked before the owner is looked up, because this also limits the look-ups.
        let Ok(place) = Arc::clone(&self.shared.places).try_acquire_owned() else {
            return early.iter().for_each(|_| self.count_drop());
        };
        let run = &self.receiver.run;
        let scope = Scope::of(Arc::clone(run));
        let found = run.destination(key.destination.ip());
        let NamedDestination { names, is_shared, address, alias } = found;
        let mut flow = Flow {
            direction: Direction::Outbound,
            protocol: Protocol::Udp,
            listen: None,
            local: key.program.into(),
            remote: SocketAddr::new(address, key.destination.port()).into(),
            remote_names: names,
            alias,
            is_shared,
            program: None,
            user: scope.user().map(str::to_owned),
            group: scope.group().map(str::to_owned),
            cgroup: None,
            run: Some(scope.name().to_owned()),
            to_own_host: run.host.has(address),
            at_unix_s: clock::now_unix_s(),
        };
        if !self.shared.live.load().needs_owner(&flow) {
            return self.decide(key, flow, early, place);
        }
        self.put(key, State::Deciding(early));
        let lane = Rc::clone(self);
        tokio::task::spawn_local(metered(Component::Policy, async move {
            let run = &lane.receiver.run;
            match run.helper.owner(Protocol::Udp, key.program, key.destination).await {
                Ok(owner) => scope.attribute(&mut flow, owner),
                Err(error) => lane.log_failure(Event::new("owner-unknown"), &error),
            }
            if let Some(early) = lane.take_early(&key) {
                lane.decide(key, flow, early, place);
            }
        }));
    }

    /// Takes the datagrams that wait for a flow's decision. `None`: the flow was replaced, even if
    /// it has started again since.
    fn take_early(&self, key: &DatagramKey) -> Option<VecDeque<Vec<u8>>> {
        let mut flows = self.flows.borrow_mut();
        let Some(State::Deciding(early)) = flows.sent(key, Instant::now()) else { return None };
        let early = std::mem::take(early);
        flows.end(key);
        Some(early)
    }

    /// Decides a flow by the policy, and relays or rejects its first datagrams.
    fn decide(
        self: &Rc<Self>,
        key: DatagramKey,
        mut flow: Flow,
        early: VecDeque<Vec<u8>>,
        place: OwnedSemaphorePermit,
    ) {
        let live = self.shared.live.load_full();
        let run = &self.receiver.run;
        let opened = self.admit(&live, &mut flow, run, place);
        match opened {
            Ok(connection) => {
                let flow = AdmittedFlow { key, flow, connection, generation: live.generation };
                self.open(flow, early);
            }
            Err(refused) => {
                account::refused(&self.shared.log, &self.shared.refusals, &refused);
                let cause = match refused.deny() {
                    Deny::Refused => IcmpError::PortUnreachable,
                    Deny::Prohibited => IcmpError::Prohibited,
                };
                self.put(key, State::Refused { generation: live.generation, cause });
                self.reject(&key, cause, early);
            }
        }
    }

    /// Opens the socket outside of a flow. On the other side of a link this takes a round trip, in
    /// which datagrams of the flow wait.
    fn open(self: &Rc<Self>, flow: AdmittedFlow, early: VecDeque<Vec<u8>>) {
        let target = target_of(&flow.key, &flow.flow);
        let sources = answer_sources(&flow.connection);
        match &self.receiver.run.outside {
            Outside::Host => {
                let socket = datagram::dial_unconnected(target, sources);
                self.begin_relay(flow, socket, &early);
            }
            Outside::Link(_) => {
                let key = flow.key;
                self.put(key, State::Deciding(early));
                let lane = Rc::clone(self);
                tokio::task::spawn_local(metered(Component::Policy, async move {
                    let socket = lane.receiver.run.outside.datagrams(target, sources).await;
                    if let Some(early) = lane.take_early(&key) {
                        lane.begin_relay(flow, socket, &early);
                    }
                }));
            }
        }
    }

    fn begin_relay(
        self: &Rc<Self>,
        flow: AdmittedFlow,
        socket: io::Result<OwnedFd>,
        early: &VecDeque<Vec<u8>>,
    ) {
        let AdmittedFlow { key, flow, connection, generation } = flow;
        let target = flow.remote.clone();
        match FlowRelay::new(key, flow, connection, generation, socket) {
            Ok(relay) => {
                let relay = Rc::new(relay);
                self.put(key, State::Open(Rc::clone(&relay)));
                for payload in early {
                    relay.send_early(self, payload);
                }
                tokio::task::spawn_local(flow::relay(Rc::clone(self), relay));
            }
            Err(NotDialled { connection, error }) => {
                let failure = Failure::Dial(Unreached::new(&target, &error));
                account::failed(&self.shared.log, &connection, &failure);
                self.reject(&key, cause_of(&error, None), early);
            }
        }
    }

    /// Sends the program an error about each datagram.
    fn reject(
        &self,
        key: &DatagramKey,
        cause: IcmpError,
        early: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) {
        for payload in early {
            send_icmp_error(&self.receiver, key, cause, payload.as_ref(), None);
        }
    }

    /// Finds the rule of a flow.
    fn admit(
        &self,
        live: &Live,
        flow: &mut Flow,
        run: &Arc<Run>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Connection, Box<RefusedFlow>> {
        let rule = match live.decide(flow) {
            Ok(rule) if matches!(rule.action, LiveAction::Permit) => Arc::clone(rule),
            found => {
                let scope = Some(Scope::of(Arc::clone(run)));
                let rule = found.map(Arc::clone);
                return Err(Box::new(RefusedFlow {
                    rule,
                    flow: flow.clone(),
                    scope,
                    exceeded: None,
                }));
            }
        };
        let facts = ScopeFacts {
            scope: Scope::of(Arc::clone(run)),
            is_inbound: false,
            names: flow.remote_names.clone(),
            alias: flow.alias,
            moves: AtomicU8::new(0),
            tls_control: None,
            path: ConnectionPath::Relay(None),
        };
        let opening = Opening {
            rule,
            protocol: flow.protocol,
            local: flow.local.clone(),
            remote: flow.remote.clone(),
            proxied: None,
            scope: Some(Box::new(facts)),
            parent: None,
        };
        let connection =
            Connection::open(&self.shared.table, opening, Security::Clear, permit, None);
        account::audited(&self.shared.log, connection.record(), flow.program.clone());
        Ok(connection)
    }

    fn put(&self, key: DatagramKey, state: State) {
        let gone = self.flows.borrow_mut().begin(key, state, Instant::now());
        if let Some(state) = gone {
            self.end_state(state);
        }
    }

    /// Ends a flow that was removed from the table.
    fn end_state(&self, state: State) {
        match state {
            State::Open(relay) => relay.end(),
            State::Deciding(early) => early.iter().for_each(|_| self.count_drop()),
            State::Refused { .. } => {}
        }
    }

    /// The number of the installed policy.
    fn generation(&self) -> u64 {
        self.shared.live.load().generation
    }

    fn log_drops(&self) {
        self.log_count(
            Event::new("datagrams-dropped"),
            self.dropped.take(),
            "possible causes: broadcast or multicast datagrams, a full buffer, or the agent's \
             limit of connections. If the agent has reached this limit, raise `connections` in \
             [limits], or LimitNOFILE",
        );
        self.log_count(
            Event::new("questions-dropped"),
            self.questions_dropped.take(),
            "too many DNS questions waited for the host's resolvers: see `questions-per-run` in \
             `tacit show limits`, and check the resolvers",
        );
    }

    fn log_count(&self, event: Event, count: u64, reason: &str) {
        if count > 0 {
            let event = event.field("run", &self.receiver.run.name);
            self.shared.log.warn(event.value("count", count).field("reason", reason));
        }
    }

    pub(super) fn log_failure(&self, event: Event, error: &impl std::fmt::Display) {
        let event = event.field("run", &self.receiver.run.name);
        self.shared.log.warn(event.field("error", error));
    }

    /// Ends the flows that are over. The names of the others stay in use: the kernel leads each
    /// datagram here only as long as its address has a name that a rule can match.
    fn end_silent(&self) {
        let ended = self.flows.borrow_mut().expire(Instant::now());
        ended.into_iter().for_each(|(_, state)| self.end_state(state));
        for key in self.flows.borrow().keys() {
            let _ = self.receiver.run.destination(key.destination.ip());
        }
    }
}

impl FlowHost for Lane {
    fn shared(&self) -> &DatagramShared {
        &self.shared
    }

    fn receiver(&self) -> &Receiver {
        &self.receiver
    }

    fn scratch(&self) -> RefMut<'_, Vec<u8>> {
        self.scratch.borrow_mut()
    }

    fn queue(&self) -> RefMut<'_, DatagramQueue> {
        self.queue.borrow_mut()
    }

    fn touch(&self, key: &DatagramKey) {
        self.flows.borrow_mut().sent(key, Instant::now());
    }

    fn note_answer(&self, key: &DatagramKey) {
        self.flows.borrow_mut().answered(key, Instant::now());
    }

    fn count_drop(&self) {
        self.dropped.set(self.dropped.get() + 1);
    }

    fn is_open(&self, key: &DatagramKey) -> bool {
        matches!(self.flows.borrow().flow(key), Some(State::Open(_)))
    }

    fn drain(self: &Rc<Self>) {
        Self::drain(self);
    }

    fn decide_again(self: &Rc<Self>, key: DatagramKey, payload: &[u8]) {
        if self.is_run_over.get() {
            return self.count_drop();
        }
        self.take(key, payload);
    }

    fn forget(&self, relay: &FlowRelay) {
        let mut flows = self.flows.borrow_mut();
        // Another flow may have the same ends now.
        let is_it = flows.flow(&relay.key).is_some_and(
            |state| matches!(state, State::Open(present) if std::ptr::eq(&**present, relay)),
        );
        if is_it {
            flows.end(&relay.key);
        }
    }
}

/// Ends flows that were silent for too long, as long as there may be any.
async fn sweep(lane: Rc<Lane>) {
    while !(lane.is_closed.get() && lane.flows.borrow().is_empty()) {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        lane.end_silent();
        lane.log_drops();
    }
}

/// Closes the lane when the receiving task is aborted.
struct CloseOnDrop(Rc<Lane>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
