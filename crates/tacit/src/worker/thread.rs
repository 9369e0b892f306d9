//! What runs on the thread of a data worker or an engine.

use std::collections::HashMap;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::{Arc, mpsc as blocking};

use tacit_core::meter::Component;
use tacit_core::policy::Class;
use tacit_sys::schedule;
use tokio::runtime::LocalRuntime;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::AbortHandle;

use super::Shared;
use crate::datagram::{Lane, Receiver};
use crate::dns;
use crate::engine::{Engine, Handed, Load, Turn};
use crate::ledger::{Account, meter, metered};
use crate::log::Event;
use crate::stream::intercept::{self, Arrival, Listener, Source};
use crate::stream::leg::Parked;
use crate::stream::relay::{Host, Scratch};
use crate::stream::{self, Place, Worker};

/// What `control` tells a worker.
#[derive(Debug)]
pub(super) enum Command {
    Listen(u64, Arc<Listener>),
    Receive(u64, Arc<Receiver>),
    /// Answered when nothing will be accepted or received any more.
    Unlisten(u64, oneshot::Sender<()>),
    /// Answered when what has arrived is sent on; flows are over soon after.
    Finish(u64, oneshot::Sender<()>),
    /// Answered when everything spent so far stands in the ledger.
    Publish(oneshot::Sender<()>),
}
/// What a thread is before it works.
pub(super) struct Post {
    pub(super) load: Arc<Load>,
    /// A class of its own, and a nice value.
    pub(super) class: Option<(Class, i32)>,
    pub(super) engine: Option<Engine>,
    pub(super) handed: Option<mpsc::Receiver<Handed>>,
}

impl Post {
    /// The calling thread takes it.
    fn take(&self) -> io::Result<()> {
        if let Some(cpu) = self.load.cpu() {
            schedule::pin_thread(&[cpu])?;
        }
        if let Some((class, nice)) = self.class {
            let class = match class {
                Class::Normal => schedule::Class::Normal,
                Class::Batch => schedule::Class::Batch,
            };
            schedule::set_own_class(class, nice).map_err(|error| {
                let text = format!(
                    "[engine] cannot have its class with nice = {nice}: {error}; choose a higher \
                     one, or give the agent CAP_SYS_NICE or a higher RLIMIT_NICE (LimitNICE=)"
                );
                io::Error::new(error.kind(), text)
            })?;
        }
        self.load.begin();
        Ok(())
    }
}

/// A thread from its beginning to its end.
pub(super) fn run(
    shared: Shared,
    post: Post,
    commands: mpsc::Receiver<Command>,
    tell: &blocking::SyncSender<io::Result<()>>,
) {
    let taken = post.take().and_then(|()| {
        meter::start(post.engine.is_some());
        tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .on_thread_park(meter::waits)
            .on_thread_unpark(meter::wakes)
            .build_local(tokio::runtime::LocalOptions::default())
    });
    match taken {
        Ok(runtime) => {
            // Who started the thread waits for this.
            let _ = tell.try_send(Ok(()));
            work(&runtime, shared, post, commands);
        }
        Err(error) => drop(tell.try_send(Err(error))),
    }
}

fn work(runtime: &LocalRuntime, shared: Shared, post: Post, mut commands: mpsc::Receiver<Command>) {
    let Post { load, engine, handed, .. } = post;
    let places = Arc::clone(&shared.places);
    let worker = worker(shared, load, engine);
    runtime.block_on(async {
        if let Some(handed) = handed {
            let taking = take_over(Rc::clone(&worker), handed);
            tokio::task::spawn_local(metered(Component::Accept, taking));
        }
        let mut tasks: HashMap<u64, AbortHandle> = HashMap::new();
        let mut lanes: HashMap<u64, Rc<Lane>> = HashMap::new();
        while let Some(command) = commands.recv().await {
            match command {
                Command::Listen(id, listener) => {
                    let places = Arc::clone(&places);
                    let task = accept(Rc::clone(&worker), listener, places);
                    let task = metered(Component::Accept, task);
                    tasks.insert(id, tokio::task::spawn_local(task).abort_handle());
                }
                Command::Receive(id, receiver) => {
                    let places = Arc::clone(&places);
                    match Lane::new(Rc::clone(&worker), places, receiver) {
                        Ok(lane) => {
                            let task = Rc::clone(&lane).receive_all();
                            let task = metered(Component::Receive, task);
                            tasks.insert(id, tokio::task::spawn_local(task).abort_handle());
                            lanes.insert(id, lane);
                        }
                        Err(error) => {
                            worker.log.error(Event::new("datagrams-failed").field("error", &error));
                        }
                    }
                }
                Command::Unlisten(id, done) => {
                    // It is not running: it would be on this thread.
                    tasks.remove(&id).as_ref().map(AbortHandle::abort);
                    lanes.remove(&id).inspect(|lane| lane.close());
                    // Who asked may be gone.
                    let _ = done.send(());
                }
                Command::Publish(done) => {
                    meter::publish();
                    let _ = done.send(());
                }
                Command::Finish(id, done) => {
                    tasks.remove(&id).as_ref().map(AbortHandle::abort);
                    if let Some(lane) = lanes.remove(&id) {
                        lane.drain();
                        tokio::task::spawn_local(metered(Component::Control, lane.finish()));
                    }
                    let _ = done.send(());
                }
            }
        }
    });
}

/// What the connections of this thread share.
fn worker(shared: Shared, load: Arc<Load>, engine: Option<Engine>) -> Rc<Worker> {
    Rc::new_cyclic(|worker: &Weak<Worker>| {
        let worker = Weak::clone(worker);
        let host = Host {
            scratch: Scratch::default(),
            places: shared.places,
            congestion_control: shared.congestion_control,
            log: shared.log.clone(),
            start: Box::new(move |job| {
                worker.upgrade().inspect(|worker| stream::start_data(worker, job));
            }),
        };
        Worker {
            live: shared.live,
            table: shared.table,
            gates: shared.gates,
            host,
            log: shared.log,
            load,
            engine,
        }
    })
}

async fn accept(worker: Rc<Worker>, listener: Arc<Listener>, places: Arc<Semaphore>) {
    let log = worker.log.clone();
    let address = listener.address.clone();
    let source = listener.source.clone();
    let is_question = |arrival: &Arrival<Parked>| {
        matches!(source, Source::Captured(..)) && arrival.flow.remote.port() == Some(dns::PORT)
    };
    let arrived = |mut arrival: Arrival<Parked>| {
        // It was spent here, whoever finds the rule.
        meter::charge(Account::agent(), Component::Accept, std::mem::take(&mut arrival.spent));
        Handed::Arrived(Box::new(arrival), source.clone())
    };
    let accepted = match &worker.engine {
        None => {
            let serve = async |arrival, ()| begin(&worker, &source, arrival, None);
            intercept::accept_all(listener, places, log.clone(), async || (), serve).await
        }
        Some(engine) => {
            let serve = async |arrival: Arrival<Parked>, turn| match turn {
                Turn::Own(place) if !is_question(&arrival) => {
                    begin(&worker, &source, arrival, Some(place));
                }
                // What is no connection of a rule's is none of an engine's.
                Turn::Own(_) => give(&worker, arrived(arrival), Engine::hand_over).await,
                Turn::Spill => give(&worker, arrived(arrival), Engine::spill).await,
            };
            intercept::accept_all(listener, places, log.clone(), || engine.turn(), serve).await
        }
    };
    if let Err(error) = accepted {
        log.error(Event::new("listener-failed").field("listen", &address).field("error", &error));
    }
}

/// Gives what has arrived to a worker, and waits for its room in a task apart: should nobody listen
/// here any more meanwhile, it is given all the same.
async fn give(worker: &Rc<Worker>, handed: Handed, by: impl AsyncFn(&Engine, Handed) + 'static) {
    let worker = Rc::clone(worker);
    let given = metered(Component::Accept, async move {
        if let Some(engine) = &worker.engine {
            by(engine, handed).await;
        }
    });
    // It ends early only with the thread.
    let _ = tokio::task::spawn_local(given).await;
}

/// Goes on with what engines hand over, for as long as there are any.
async fn take_over(worker: Rc<Worker>, mut handed: mpsc::Receiver<Handed>) {
    while let Some(handed) = handed.recv().await {
        worker.load.count_handed();
        match handed {
            Handed::Arrived(arrival, source) => begin(&worker, &source, *arrival, None),
            Handed::Begun(begun) => stream::go_on(&worker, begun),
        }
    }
}

/// Serves what has arrived: a connection, or a question to a run's resolver.
fn begin(worker: &Rc<Worker>, source: &Source, arrival: Arrival<Parked>, place: Place) {
    let arrival = match source {
        Source::Captured(run, _) => match run.hand_over(arrival) {
            Some(arrival) => arrival,
            None => return,
        },
        Source::Forward | Source::Inbound(_) => arrival,
    };
    match (arrival.watch(), source) {
        (Ok(arrival), Source::Captured(_, names))
            if arrival.flow.remote.port() == Some(dns::PORT) =>
        {
            let names = Arc::clone(names);
            let answer = async move { dns::stream::serve(&names, arrival).await };
            tokio::task::spawn_local(metered(Component::Control, answer));
        }
        (Ok(arrival), _) => stream::start(worker, arrival, place),
        (Err(error), _) => {
            worker.log.warn(Event::new("accept-failed").field("error", &error));
        }
    }
}
