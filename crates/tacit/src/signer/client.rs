//! Starts the signer process from the agent, and sends it requests to load keys and to sign
//! handshakes.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use serde::de::DeserializeOwned;
use tacit_sys::{descriptor, schedule};
use tacit_tls::signer::wire::{
    Confined, Loaded, MESSAGE_BYTES_MAX, SignRequest, SignerRequest, parse_sign_response,
};
use tacit_tls::signer::{
    KeyName, KeyProvider, PairError, PairFile, PublicPair, RemoteKey, Scheme, SignerClient,
};

use super::channel::{self, RequestEnd};
use super::{ANSWER_WAIT_MAX, LOAD_WAIT_MAX, VERB, receive};
use crate::ledger::meter;
use crate::log::{Event, Log};

/// The minimum time between two starts of a signer.
const START_INTERVAL: Duration = Duration::from_secs(1);

/// The agent's access to its signer, which is started when the first key is loaded.
#[derive(Debug)]
pub struct Client {
    log: Log,
    /// A reference to this client, for the thread that waits for the end of the signer process.
    me: Weak<Self>,
    /// The control channel of the running signer.
    control: ArcSwapOption<OwnedFd>,
    /// The lock is held while a request on the control channel waits for its answer, and while a
    /// signer starts.
    watched: Mutex<Watched>,
    /// The number of the running signer: each new signer process gets a higher number. A thread
    /// must not use a channel to an earlier signer.
    epoch: AtomicU64,
    /// The generation of the next key: the signer adds it to the name of the key, so that each
    /// loaded key has its own name.
    generation: AtomicU64,
    keys: Mutex<Vec<Weak<RemoteKey>>>,
}

/// Whether a thread waits for the end of the signer process, and then starts a new signer.
#[derive(Debug, Default)]
enum Watched {
    /// No: no signer is running, and [`Client::watch`] was not called.
    #[default]
    NotYet,
    /// No: a signer is running, but [`Client::watch`] was not called.
    Runs(Started),
    /// Not yet: this thread starts together with the first signer.
    FromFirst,
    /// Yes: the thread is running.
    Yes,
}

/// The number of the newest signer that this process has started.
static NEWEST_EPOCH: AtomicU64 = AtomicU64::new(0);

/// The maximum number of channels of one thread. If the machine has more CPUs, some CPUs share a
/// channel.
const CHANNELS_PER_THREAD_MAX: usize = 16;

thread_local! {
    /// A channel for each CPU on which this thread runs. At the other end of each channel is a
    /// thread of the signer, which stays on the same CPU. If this thread had only one channel, the
    /// thread of the signer would have to follow it from CPU to CPU. Each such move takes more CPU
    /// time than a signature.
    static CHANNELS: RefCell<[Option<Channel>; CHANNELS_PER_THREAD_MAX]> =
        const { RefCell::new([const { None }; CHANNELS_PER_THREAD_MAX]) };
}

/// One channel from a thread of the agent to a thread of the signer.
struct Channel {
    epoch: u64,
    end: RequestEnd,
    /// A buffer for the request, and then for its answer.
    message: Vec<u8>,
}

impl Client {
    /// Creates a client that has no signer yet.
    #[must_use]
    pub fn new(log: Log) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            log,
            me: me.clone(),
            control: ArcSwapOption::empty(),
            watched: Mutex::default(),
            epoch: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            keys: Mutex::default(),
        })
    }

    /// Returns a key provider that loads keys through this signer.
    #[must_use]
    pub fn keys(self: &Arc<Self>) -> KeyProvider {
        KeyProvider::remote(Arc::clone(self) as _)
    }

    /// Returns the control channel; starts the first signer if necessary.
    fn channel(&self, watched: &mut Watched) -> io::Result<Arc<OwnedFd>> {
        if let Some(channel) = self.control.load_full() {
            return Ok(channel);
        }
        match watched {
            Watched::NotYet => *watched = Watched::Runs(self.start()?),
            Watched::FromFirst => {
                let started = self.start()?;
                self.start_watch(started)?;
                *watched = Watched::Yes;
            }
            Watched::Runs(_) | Watched::Yes => {
                return Err(io::Error::other(
                    "the signer process has ended, and the agent is starting a new signer process",
                ));
            }
        }
        self.control.load_full().ok_or_else(|| ErrorKind::NotConnected.into())
    }

    /// Starts a new signer each time a signer process ends, from now on. This function starts a
    /// thread for this task. So call it after the process has entered its sandbox, because a
    /// thread that was started before would stay outside of the sandbox.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn watch(&self) -> io::Result<()> {
        let mut watched = self.lock();
        *watched = match std::mem::take(&mut *watched) {
            Watched::NotYet => Watched::FromFirst,
            Watched::Runs(started) => {
                self.start_watch(started)?;
                Watched::Yes
            }
            already @ (Watched::FromFirst | Watched::Yes) => already,
        };
        Ok(())
    }

    /// Limits a running signer to these files and directories. A signer that starts later inherits
    /// the sandbox of the agent.
    ///
    /// # Errors
    /// The signer could not be confined.
    pub fn confine(&self, read: Vec<PathBuf>) -> io::Result<()> {
        let _locked = self.lock();
        let Some(channel) = self.control.load_full() else { return Ok(()) };
        let confined: Confined = order(&channel, &SignerRequest::Confine { read })?;
        confined.map_err(io::Error::other)
    }

    fn start_watch(&self, started: Started) -> io::Result<()> {
        let client = self.me.clone();
        let watch = move || watch(&client, started);
        std::thread::Builder::new().name("signer-watch".to_owned()).spawn(watch).map(drop)
    }

    fn start(&self) -> io::Result<Started> {
        let (ours, theirs) = pair(LOAD_WAIT_MAX)?;
        let child = Command::new("/proc/self/exe")
            .arg0("tacit")
            .arg(VERB)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        self.control.store(Some(Arc::new(ours)));
        self.epoch.store(NEWEST_EPOCH.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Release);
        Ok(Started { child, at: Instant::now() })
    }

    /// Starts a new signer after a signer has ended. Makes the new signer load every key in use.
    fn start_again(&self) -> io::Result<Started> {
        let started = {
            let _locked = self.lock();
            self.start()?
        };
        let keys: Vec<_> = self.in_use().iter().filter_map(Weak::upgrade).collect();
        for key in keys {
            let reason = match key.load_again() {
                Ok(true) => continue,
                Ok(false) => "the key file now contains a different private key".to_owned(),
                Err(PairError { fault, .. }) => fault.to_string(),
            };
            let event = Event::new("key-lost").field("reason", &reason);
            let next = "handshakes with this key fail: correct the certificate file and the key \
                        file; the agent loads the files when they change";
            self.log.error(event.field("next", next));
        }
        Ok(started)
    }

    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_use(&self) -> MutexGuard<'_, Vec<Weak<RemoteKey>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, request: &SignRequest<'_>) -> io::Result<Result<Vec<u8>, String>> {
        CHANNELS.with_borrow_mut(|channels| {
            let slot = usize::from(request.cpu) % CHANNELS_PER_THREAD_MAX;
            let kept = channels.get_mut(slot).ok_or(ErrorKind::NotFound)?;
            let epoch = self.epoch.load(Ordering::Acquire);
            let mut channel = match kept.take() {
                Some(channel) if channel.epoch == epoch => channel,
                _ => Channel { epoch, end: self.open_channel()?, message: Vec::new() },
            };
            request.encode(&mut channel.message);
            channel.end.exchange(&mut channel.message, ANSWER_WAIT_MAX)?;
            let answer = parse_sign_response(&channel.message);
            // After a failure the channel is dropped, because a late answer could arrive on it.
            *kept = Some(channel);
            meter::passed_elsewhere(answer.usage_ns);
            Ok(answer.signed)
        })
    }

    fn open_channel(&self) -> io::Result<RequestEnd> {
        let (ours, [requests, answers]) = channel::open()?;
        let control = self.control.load_full().ok_or(ErrorKind::NotConnected)?;
        let order = serde_json::to_vec(&SignerRequest::Channel)?;
        descriptor::send(&*control, &order, &[requests.as_fd(), answers.as_fd()])?;
        Ok(ours)
    }
}

/// A running signer process.
#[derive(Debug)]
struct Started {
    child: Child,
    at: Instant,
}

/// Starts a new signer each time a signer process ends, until the agent drops the client.
fn watch(client: &Weak<Client>, mut started: Started) {
    loop {
        let status = started.child.wait();
        let Some(client) = client.upgrade() else { return };
        client.control.store(None);
        let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let event = Event::new("signer-ended").field("status", &status);
        let next =
            "the agent starts a new signer process within a second; open connections continue";
        client.log.error(event.field("next", next));
        loop {
            std::thread::sleep(START_INTERVAL.saturating_sub(started.at.elapsed()));
            match client.start_again() {
                Ok(new) => {
                    started = new;
                    break;
                }
                Err(error) => {
                    client.log.error(Event::new("signer-failed").field("error", &error));
                    started.at = Instant::now();
                }
            }
        }
    }
}

/// Returns the two ends of a channel. Sending and receiving on the first end time out after `wait`.
fn pair(wait: Duration) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    set_socket_timeout(&ours, Timeout::Recv, Some(wait))?;
    set_socket_timeout(&ours, Timeout::Send, Some(wait))?;
    Ok((ours, theirs))
}

/// Receives one answer. A closed channel is an error.
fn receive_answer(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    match receive(socket, buffer)? {
        0 => Err(ErrorKind::ConnectionReset.into()),
        bytes => Ok(bytes),
    }
}

/// Sends a request on the control channel, and waits for the answer. The caller must make sure that
/// only one thread at a time calls this function.
fn order<A: DeserializeOwned>(channel: &OwnedFd, order: &SignerRequest) -> io::Result<A> {
    descriptor::send(channel, &serde_json::to_vec(order)?, &[])?;
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let bytes = receive_answer(channel, &mut buffer);
    if bytes.is_err() {
        // Otherwise a late answer could be taken for the answer to the next request.
        rustix::net::shutdown(channel, rustix::net::Shutdown::Both)?;
    }
    Ok(serde_json::from_slice(buffer.get(..bytes?).unwrap_or_default())?)
}

impl SignerClient for Client {
    fn load(&self, generation: u64, cert: &Path, key: &Path) -> Result<PublicPair, PairError> {
        let unreachable = |error: io::Error| PairError {
            at: PairFile::Key,
            fault: format!("the agent cannot load this key through the signer process: {error}")
                .into(),
        };
        let load = || -> io::Result<Loaded> {
            let mut watched = self.lock();
            let channel = self.channel(&mut watched)?;
            let cert = cert.to_owned();
            let key = key.to_owned();
            order(&channel, &SignerRequest::Load { generation, cert, key })
        };
        load().map_err(unreachable)?
    }

    fn next_generation(&self) -> u64 {
        self.generation.fetch_add(1, Ordering::Relaxed)
    }

    fn sign(&self, name: KeyName, scheme: Scheme, message: &[u8]) -> Result<Vec<u8>, String> {
        let cpu = schedule::own_cpu();
        let requested = self.ask(&SignRequest { name, cpu, scheme, message });
        requested.unwrap_or_else(|error| {
            Err(format!("the agent cannot reach the signer process: {error}"))
        })
    }

    fn register(&self, key: &Arc<RemoteKey>) {
        let mut keys = self.in_use();
        keys.retain(|key| key.strong_count() > 0);
        keys.push(Arc::downgrade(key));
    }

    fn forget(&self, name: KeyName) {
        if let (Some(control), Ok(order)) =
            (self.control.load_full(), serde_json::to_vec(&SignerRequest::Forget { name }))
        {
            // A signer that has ended no longer has the key. If the queue of the signer is full,
            // the signer keeps the key until it ends: this thread must not wait, because it relays
            // connections.
            let _ = send(&*control, &order, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }
}
