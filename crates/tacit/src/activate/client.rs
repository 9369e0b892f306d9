//! Starts the *starter*: the process that starts programs for the agent. For each connection, asks
//! the starter to start a program, or to connect to a program that serves all connections.
//!
//! Limits: at most `REQUESTS_MAX` requests wait to be sent. Each request waits at most
//! `START_WAIT_MAX` for its answer. A program has at most `max` processes, and at most
//! `max-per-source` processes for one client address. Further connections of this program wait in
//! the order of their arrival.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tacit_core::flow::Address;
use tacit_core::policy::{Activation, Policy, ProcessFor};
use tacit_sys::process;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::VERB;
use super::protocol::{FromStarter, Program, REPLY_BYTES_MAX, StartRequest, ToStarter};
use crate::address::Source;
use crate::log::{Event, Log};
use crate::run::channel::{adopt, read_frame, write_frame};
use crate::run::protocol::Frame;

/// The maximum number of requests in the queue to the starter. While the queue is full, further
/// connections wait before they add their requests.
const REQUESTS_MAX: usize = 1024;
/// How long the agent waits for the starter to start a program.
const START_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often the agent checks whether the process of the starter has exited, after the starter has
/// closed its socket.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// The agent's access to its starter.
#[derive(Debug)]
pub struct Starter {
    /// The permits for processes, by program. `None`: one process of the program serves all
    /// connections, and needs no permit.
    processes: BTreeMap<String, Option<ProcessPermits>>,
    requests: mpsc::Sender<PendingStart>,
}

/// A request that has no answer yet.
#[derive(Debug)]
struct PendingStart {
    program: String,
    remote: Option<SocketAddr>,
    /// The permit for the process, which is held until the process ends.
    permit: Option<ProcessPermit>,
    back: oneshot::Sender<Result<ActivatedProgram, String>>,
}

/// The program of a connection.
#[derive(Debug)]
pub struct ActivatedProgram {
    /// The agent's end of the socket to the program.
    pub socket: OwnedFd,
    /// The process ID of the program.
    pub pid: u32,
}

/// Why an agent with `[activate.NAME]` tables cannot start.
#[derive(Debug)]
pub enum StarterError {
    /// The starter process cannot be started, or has ended.
    Process(io::Error),
    /// The starter cannot start a program of the policy.
    Unusable(String),
}

impl fmt::Display for StarterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(error) => {
                write!(
                    f,
                    "cannot start the process that starts programs of [activate] tables: {error}"
                )
            }
            Self::Unusable(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for StarterError {}

impl From<io::Error> for StarterError {
    fn from(error: io::Error) -> Self {
        Self::Process(error)
    }
}

/// The state that the sending task and the receiving task share.
#[derive(Debug, Default)]
struct Answers {
    last_number: u64,
    pending: HashMap<u64, PendingStart>,
    /// The permits of running processes.
    running: HashMap<u32, ProcessPermit>,
}

impl Starter {
    /// Starts the starter process, and sends it the programs of a policy. Call this function before
    /// the agent enters its sandbox.
    ///
    /// # Errors
    /// See [`StarterError`].
    pub async fn start(policy: &Policy, log: Log) -> Result<Arc<Self>, StarterError> {
        let (ours, theirs) = StdStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("tacit").arg(VERB).stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = process::own_process_group(&mut command).stdout(Stdio::null()).spawn()?;
        let reader = ours.try_clone()?;
        let mut reader = adopt(reader)?;
        let mut writer = adopt(ours)?;
        let Policy { activations, host, .. } = policy;
        let program = |(name, one): (&String, &Activation)| Program::of(name, one, host.as_ref());
        let programs = activations.iter().map(program).collect();
        write_frame(&mut writer, &ToStarter::Programs(programs)).await?;
        let first = tokio::time::timeout(START_WAIT_MAX, read_frame(&mut reader, REPLY_BYTES_MAX));
        let first = first.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        match first.map(|Frame { message, .. }| message) {
            Some(FromStarter::Ready) => {}
            Some(FromStarter::Unusable(reason)) => return Err(StarterError::Unusable(reason)),
            _ => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        }
        let (requests, received) = mpsc::channel(REQUESTS_MAX);
        let answers = Rc::new(RefCell::new(Answers::default()));
        let sending = tokio::task::spawn_local(send_all(writer, received, Rc::clone(&answers)));
        tokio::task::spawn_local(async move {
            receive_all(reader, &answers, &log).await;
            // Requests fail from now on.
            sending.abort();
            answers.borrow_mut().pending.clear();
            report_end(child, &log).await;
        });
        let processes = activations.iter().map(|(name, one)| {
            let permits = || ProcessPermits::new(one);
            (name.clone(), (one.process == ProcessFor::Each).then(permits))
        });
        Ok(Arc::new(Self { processes: processes.collect(), requests }))
    }

    /// Starts a program for a connection, or connects to the program that serves all connections.
    /// Waits while the program has its maximum number of processes.
    ///
    /// # Errors
    /// The reason why the starter cannot start the program or connect to it.
    pub async fn activate(
        &self,
        program: &str,
        remote: Option<SocketAddr>,
    ) -> Result<ActivatedProgram, String> {
        let permits = self
            .processes
            .get(program)
            .ok_or("this agent has no [activate] table with this name")?;
        let permit = match permits {
            Some(permits) => permits.acquire(remote).await,
            None => None,
        };
        let (back, answer) = oneshot::channel();
        let pending = PendingStart { program: program.to_owned(), remote, permit, back };
        let ended = || {
            "the process that starts programs of [activate] tables has ended\n    \
             fix: run `tacit restart`"
                .to_owned()
        };
        self.requests.send(pending).await.map_err(|_| ended())?;
        match tokio::time::timeout(START_WAIT_MAX, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ended()),
            Err(_) => {
                let message = "the process that starts programs of [activate] tables did not \
                               answer in time";
                Err(message.to_owned())
            }
        }
    }
}

/// The permits for processes of one program.
#[derive(Debug)]
struct ProcessPermits {
    all: Arc<Semaphore>,
    per_source: Option<usize>,
    /// The permits of each client address that has a process or waits for a process.
    sources: Mutex<HashMap<Source, Weak<Semaphore>>>,
}

/// The permit for a process.
#[derive(Debug)]
struct ProcessPermit {
    _of_program: OwnedSemaphorePermit,
    _of_source: Option<OwnedSemaphorePermit>,
}

impl ProcessPermits {
    fn new(activation: &Activation) -> Self {
        Self {
            all: Arc::new(Semaphore::new(activation.processes_max)),
            per_source: activation.processes_per_source,
            sources: Mutex::default(),
        }
    }

    /// Waits for a permit to start a process for a client. If a client has reached its own limit,
    /// only this client waits, and other clients continue. Returns `None` only if a semaphore is
    /// closed, which does not happen.
    async fn acquire(&self, remote: Option<SocketAddr>) -> Option<ProcessPermit> {
        let of_source = match self.per_source {
            Some(max) => Some(self.of_source(remote, max).acquire_owned().await.ok()?),
            None => None,
        };
        let of_program = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(ProcessPermit { _of_program: of_program, _of_source: of_source })
    }

    fn of_source(&self, remote: Option<SocketAddr>, max: usize) -> Arc<Semaphore> {
        let source = Source::of(&remote.map_or(Address::Unnamed, Address::Inet));
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(permits) = sources.get(&source).and_then(Weak::upgrade) {
            return permits;
        }
        sources.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Semaphore::new(max));
        sources.insert(source, Arc::downgrade(&permits));
        permits
    }
}

/// Sends requests to the starter.
async fn send_all(
    mut writer: UnixStream,
    mut requests: mpsc::Receiver<PendingStart>,
    answers: Rc<RefCell<Answers>>,
) {
    while let Some(pending) = requests.recv().await {
        if pending.back.is_closed() {
            continue;
        }
        let number = {
            let mut answers = answers.borrow_mut();
            answers.last_number += 1;
            answers.last_number
        };
        let PendingStart { program, remote, .. } = &pending;
        let request = StartRequest { number, program: program.clone(), remote: *remote };
        answers.borrow_mut().pending.insert(number, pending);
        if write_frame(&mut writer, &ToStarter::Start(request)).await.is_err() {
            return;
        }
    }
}

/// Receives answers to requests, and messages about processes that have ended, until the starter
/// ends.
async fn receive_all(mut reader: UnixStream, answers: &RefCell<Answers>, log: &Log) {
    while let Ok(Some(Frame { message, mut descriptors })) =
        read_frame::<FromStarter>(&mut reader, REPLY_BYTES_MAX).await
    {
        match message {
            FromStarter::Started { number, pid } => {
                let mut answers = answers.borrow_mut();
                let Some(PendingStart { permit, back, .. }) = answers.pending.remove(&number)
                else {
                    continue;
                };
                if let Some(permit) = permit {
                    answers.running.insert(pid, permit);
                }
                let socket = descriptors.pop().ok_or_else(|| {
                    "the agent did not receive the socket of the started program".to_owned()
                });
                // If the connection has ended, the program reads the end of its input.
                let _ = back.send(socket.map(|socket| ActivatedProgram { socket, pid }));
            }
            FromStarter::Refused { number, reason } => {
                let pending = answers.borrow_mut().pending.remove(&number);
                if let Some(PendingStart { back, .. }) = pending {
                    let _ = back.send(Err(reason));
                }
            }
            FromStarter::Ended { program, pid, failure } => {
                answers.borrow_mut().running.remove(&pid);
                if let Some(failure) = failure {
                    let event = Event::new("program-failed").field("activate", &program);
                    let event = event.value("pid", pid).field("status", &failure);
                    log.warn(event.limited(format!("program-failed {program}")));
                }
            }
            FromStarter::Ready | FromStarter::Unusable(_) => {}
        }
    }
}

/// Logs that the starter has ended, and waits until its process has exited.
async fn report_end(mut child: Child, log: &Log) {
    let event = Event::new("starter-ended").value("pid", child.id());
    let next = "the process that starts programs of [activate] tables has ended, so the agent \
                refuses connections that match rules with `activate`: run `tacit restart`";
    log.error(event.field("next", next));
    while child.try_wait().is_ok_and(|status| status.is_none()) {
        tokio::time::sleep(REAP_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_address_leaves_processes_for_others() {
        let permits = |max: usize, per_source: usize| ProcessPermits {
            all: Arc::new(Semaphore::new(max)),
            per_source: Some(per_source),
            sources: Mutex::default(),
        };
        let from = |text: &str| Some(text.parse::<SocketAddr>().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let permits = permits(3, 2);
            let first = permits.acquire(from("192.0.2.1:1")).await.unwrap();
            let second = permits.acquire(from("192.0.2.1:2")).await.unwrap();
            let third = permits.acquire(from("192.0.2.1:3"));
            tokio::pin!(third);
            tokio::select! {
                biased;
                _ = &mut third => panic!("one address has more processes than its limit"),
                other = permits.acquire(from("192.0.2.2:1")) => drop(other.unwrap()),
            }
            drop(first);
            let third = third.await.unwrap();
            // Clients of UNIX sockets are one source.
            drop(permits.acquire(None).await.unwrap());
            drop((second, third));
            drop(permits.acquire(from("[2001:db8::1]:1")).await);
            assert_eq!(permits.sources.lock().unwrap().len(), 1);
        });
    }
}
