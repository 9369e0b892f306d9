//! Runs the signer process: loads private keys, and signs handshake messages for the agent.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tacit_core::message_id::MessageId;
use tacit_sys::process::Signal;
use tacit_sys::sandbox::{CapabilitySet, Reach, Rules};
use tacit_sys::{cpu, descriptor, process, sandbox, schedule};
use tacit_tls::key_store::KeyStore;
use tacit_tls::signer::wire::{
    Confined, Loaded, MESSAGE_BYTES_MAX, SignRequest, SignerRequest, encode_sign_response,
};

use super::CHANNELS_MAX;
use super::channel::AnswerEnd;
use crate::exit::{EXIT_FAILURE, EXIT_OK, complain_of};

/// Serves the agent whose control channel is standard input, until that closes.
#[must_use]
pub fn run() -> ExitCode {
    process::name_thread("signer");
    let served = process::keep_secrets().and_then(|()| {
        // The signer ignores signals, because the agent may continue after them.
        process::ignore(&[Signal::TERM, Signal::INT, Signal::HUP])?;
        process::lock_memory();
        process::close_inherited()?;
        // Keys may belong to other users.
        sandbox::keep_capabilities(CapabilitySet::DAC_READ_SEARCH)?;
        // The signer works without a filter too, if the kernel does not support it.
        let _ = sandbox::filter_signer();
        let control = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
        serve(&control)
    });
    match served {
        Ok(()) => EXIT_OK.into(),
        Err(error) => {
            complain_of(
                MessageId("signer-not-served"),
                format_args!("the signer process cannot continue: {error}"),
            );
            EXIT_FAILURE.into()
        }
    }
}

/// Carries out orders until the agent closes the channel.
fn serve(control: &OwnedFd) -> io::Result<()> {
    let store = Arc::new(KeyStore::default());
    let channels = Arc::new(AtomicUsize::new(0));
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let received = match descriptor::receive(control, &mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            received => received?,
        };
        let message = buffer.get(..received.bytes).unwrap_or_default();
        if message.is_empty() {
            return Ok(());
        }
        match serde_json::from_slice(message)? {
            SignerRequest::Load { generation, cert, key } => {
                let loaded: Loaded = store.load(generation, &cert, &key);
                process::exclude_memory_from_dumps();
                descriptor::send(control, &serde_json::to_vec(&loaded)?, &[])?;
            }
            SignerRequest::Forget { name } => store.forget(name),
            SignerRequest::Confine { read } => {
                let reach = Reach { read, ..Reach::default() };
                let confined = reach.rules().and_then(Rules::confine_thread);
                let confined: Confined = confined.map(drop).map_err(|error| error.to_string());
                descriptor::send(control, &serde_json::to_vec(&confined)?, &[])?;
            }
            SignerRequest::Channel => {
                if let Ok(pipes) = received.descriptors.try_into() {
                    open_channel(AnswerEnd::new(pipes), &store, &channels)?;
                }
            }
        }
    }
}

/// Signs the requests of a channel on a thread of its own. Beyond the limit the channel is closed,
/// which the agent's thread notices.
fn open_channel(
    end: AnswerEnd,
    store: &Arc<KeyStore>,
    channels: &Arc<AtomicUsize>,
) -> io::Result<()> {
    if channels.load(Ordering::Relaxed) >= CHANNELS_MAX {
        return Ok(());
    }
    channels.fetch_add(1, Ordering::Relaxed);
    let store = Arc::clone(store);
    let channels = Arc::clone(channels);
    let work = move || {
        // The stack and the heap of this thread are new.
        process::exclude_memory_from_dumps();
        // A thread of the agent that has ended closes its channel.
        let _ = sign_all(&end, &store);
        channels.fetch_sub(1, Ordering::Relaxed);
    };
    std::thread::Builder::new().name("sign".to_owned()).spawn(work)?;
    Ok(())
}

fn sign_all(end: &AnswerEnd, store: &KeyStore) -> io::Result<()> {
    let mut usage = Usage::new();
    let mut stands_on = None;
    let mut message = Vec::new();
    let mut answer = Vec::new();
    while end.receive(&mut message)? {
        let request = SignRequest::parse(&message);
        if let Some(SignRequest { cpu, .. }) = request
            && stands_on != Some(cpu)
        {
            stands_on = Some(cpu);
            // The agent's thread has a channel for each CPU, so this changes once in most cases.
            // On the same CPU one thread wakes the other without an interrupt to another CPU, which
            // costs several times the CPU time of the exchange, as does a thread that is moved.
            // If it fails, signing works anyway.
            let _ = schedule::pin_thread(&[cpu.into()]);
        }
        let signed = request.map_or(
            Err("the signer process received an invalid request from the agent: this is a bug in \
                 tacit"),
            |request| store.sign(&request),
        );
        encode_sign_response(&signed, usage.unreported(), &mut answer);
        end.answer(&answer)?;
    }
    Ok(())
}

/// The CPU time of this thread. Reading its clock costs a system call, so a busy thread reads it
/// only once in [`REPORT_INTERVAL`].
struct Usage {
    read_at_ns: u64,
    reported_ns: u64,
}

impl Usage {
    fn new() -> Self {
        Self { read_at_ns: 0, reported_ns: cpu::thread_ns() }
    }

    /// CPU time that was not reported yet; 0 if the clock was read a short time ago.
    fn unreported(&mut self) -> u64 {
        let now_ns = cpu::monotonic_ns();
        if u128::from(now_ns - self.read_at_ns) < REPORT_INTERVAL.as_nanos() {
            return 0;
        }
        self.read_at_ns = now_ns;
        let usage_ns = cpu::thread_ns();
        usage_ns.saturating_sub(std::mem::replace(&mut self.reported_ns, usage_ns))
    }
}

/// The minimum time between two reports of CPU time. A report includes the time since the previous
/// one.
const REPORT_INTERVAL: Duration = Duration::from_millis(10);
