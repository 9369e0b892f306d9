//! Implements the server of `tacit workload`, for all workloads except `datagrams`.
//!
//! By default, the server has one thread for each CPU. Each thread has its own async runtime, and
//! serves the connections that it accepts. The server limits its memory for requests and replies.
//! It closes the connection of a client that violates the protocol.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use tacit_core::flow::Address;
use tacit_core::message_id::MessageId;
use tacit_core::workload::{BLOCK_BYTES, HEADER_BYTES, Sampling, WorkloadRequest, repeated_bytes};
use tacit_sys::process;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::WorkloadError;
use super::limits::{BUFFERS_BYTES_MAX, CONNECTIONS_MAX};
use super::samples::Samples;
use super::tcp::Sample;
use super::threads;
use crate::{address, exit};

/// Answer the clients of all workloads until terminated
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tacit workload interactive server --listen 127.0.0.1:7000
  tacit run --policy inbound.toml -- tacit workload ramp server --listen 127.0.0.1:7000")]
pub(super) struct ServerArgs {
    /// The address to listen at; port 0 selects a free port
    #[arg(long, value_name = "ADDRESS|unix:PATH", default_value = "127.0.0.1:0")]
    listen: Address,
    /// Number of threads, from 1 to 64 [default: one per CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Print the address and process id as JSON
    #[arg(long)]
    json: bool,
}

/// Pause after the kernel ran out of descriptors or memory.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(20);

/// The limits that all connections share.
struct ServerLimits {
    slots: Arc<Semaphore>,
    /// Memory for requests and replies.
    kilobytes: Semaphore,
}

const KILOBYTE: usize = 1024;

impl ServerLimits {
    fn of(buffers_bytes: usize) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        Arc::new(Self { slots, kilobytes: Semaphore::new(buffers_bytes / KILOBYTE) })
    }
}

/// Serves until the process is terminated.
pub(super) fn run(args: &ServerArgs) -> Result<(), WorkloadError> {
    process::raise_descriptor_limit().map_err(WorkloadError::Descriptors)?;
    let listening = listen(&args.listen)?;
    let address = &listening.address;
    let pid = std::process::id();
    let line = if args.json {
        format!("{}\n", json!({ "version": 1, "listening": address.to_string(), "pid": pid }))
    } else {
        format!("listening on {address}, process {pid}\n")
    };
    exit::print(line, exit::EXIT_OK);
    let threads = args.threads.map_or_else(threads::cpus, usize::from);
    for thread in spawn(&listening, threads)? {
        // A thread ends only by a panic, which has printed its message.
        let _ = thread.join();
    }
    Err(WorkloadError::ServerEnded)
}

/// A listening socket and its address.
#[derive(Debug)]
pub(super) struct Listening {
    socket: OwnedFd,
    pub(super) address: Address,
}

/// Opens the listening socket. If the port is 0, the kernel chooses a free port.
pub(super) fn listen(wanted: &Address) -> Result<Listening, WorkloadError> {
    let failed = |error| WorkloadError::Listen(wanted.clone(), error);
    let socket = super::socket::listen(wanted).map_err(failed)?;
    let address = tacit_sys::socket::local_address(socket.as_fd()).map_err(failed)?;
    Ok(Listening { socket, address: address::from_socket(&address) })
}

/// Starts `count` threads that serve until the process ends.
pub(super) fn spawn(
    listening: &Listening,
    count: usize,
) -> Result<Vec<thread::JoinHandle<()>>, WorkloadError> {
    spawn_in(&ServerLimits::of(BUFFERS_BYTES_MAX), listening, count)
}

fn spawn_in(
    limits: &Arc<ServerLimits>,
    listening: &Listening,
    count: usize,
) -> Result<Vec<thread::JoinHandle<()>>, WorkloadError> {
    let family = match listening.address {
        Address::Inet(_) => Family::Inet,
        _ => Family::Unix,
    };
    let start = |number| {
        let socket = listening.socket.try_clone()?;
        let limits = Arc::clone(limits);
        let runtime = crate::runtime::builder()?.enable_io().enable_time().build()?;
        thread::Builder::new().name(format!("server-{number}")).spawn(move || {
            let local = tokio::task::LocalSet::new();
            local.block_on(&runtime, accept(socket, family, limits));
        })
    };
    (0..count).map(start).collect::<io::Result<_>>().map_err(WorkloadError::Thread)
}

/// The address family of the listening socket.
#[derive(Clone, Copy)]
enum Family {
    Inet,
    Unix,
}

async fn accept(socket: OwnedFd, family: Family, limits: Arc<ServerLimits>) {
    let adopted = match family {
        Family::Inet => TcpListener::from_std(socket.into()).map(Listener::Tcp),
        Family::Unix => UnixListener::from_std(socket.into()).map(Listener::Unix),
    };
    let listener = match adopted {
        Ok(listener) => listener,
        Err(error) => {
            let problem =
                format_args!("cannot accept connections: {error}\n    fix: start the server again");
            return exit::complain_of(MessageId("cannot-listen"), problem);
        }
    };
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(&limits.slots).acquire_owned().await else { return };
        if listener.take(&limits, slot).await.is_err() {
            tokio::time::sleep(SHORTAGE_PAUSE).await;
        }
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Accepts a connection and starts a task that serves it.
    async fn take(&self, limits: &Arc<ServerLimits>, slot: OwnedSemaphorePermit) -> io::Result<()> {
        match self {
            Self::Tcp(listener) => serve_in_task(listener.accept().await?.0, limits, slot),
            Self::Unix(listener) => serve_in_task(listener.accept().await?.0, limits, slot),
        }
        Ok(())
    }
}

fn serve_in_task(
    stream: impl AsyncRead + AsyncWrite + AsFd + Unpin + 'static,
    limits: &Arc<ServerLimits>,
    slot: OwnedSemaphorePermit,
) {
    let limits = Arc::clone(limits);
    tokio::task::spawn_local(async move {
        // The client detects and reports errors of its connection. A proxy may close with a reset
        // after the last byte.
        let _ = serve(stream, &limits).await;
        drop(slot);
    });
}

async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + AsFd + Unpin,
    limits: &ServerLimits,
) -> io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    while stream.read_exact(&mut header).await.is_ok() {
        match WorkloadRequest::decode(&header).ok_or(io::ErrorKind::InvalidData)? {
            WorkloadRequest::Exchange { request_bytes, reply_bytes } => {
                return exchange(&mut stream, limits, request_bytes, reply_bytes).await;
            }
            WorkloadRequest::Out => receive_stream(&mut stream).await?,
            WorkloadRequest::In { bytes, sampling } => {
                send_stream(&mut stream, sampling, |sent| bytes - sent).await?;
            }
            WorkloadRequest::InFor { ms, sampling } => {
                let end = Instant::now() + Duration::from_millis(ms);
                let left = |_| if Instant::now() < end { u64::MAX } else { 0 };
                send_stream(&mut stream, sampling, left).await?;
            }
        }
    }
    Ok(())
}

async fn exchange(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    limits: &ServerLimits,
    request: u64,
    reply: u64,
) -> io::Result<()> {
    let size = |bytes| usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData);
    let request_bytes = size(request)?;
    let reply_bytes = size(reply)?;
    let kilobytes =
        u32::try_from((request_bytes + reply_bytes).div_ceil(KILOBYTE)).unwrap_or(u32::MAX);
    // A request for more than the limit fails immediately instead of waiting for others.
    let taken = limits.kilobytes.try_acquire_many(kilobytes);
    let _taken = taken.map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut request = vec![0; request_bytes];
    let mut reply = vec![0; reply_bytes];
    let repeated = repeated_bytes(request_bytes, reply_bytes);
    loop {
        stream.read_exact(&mut request).await?;
        reply[..repeated].copy_from_slice(&request[..repeated]);
        stream.write_all(&reply).await?;
    }
}

async fn receive_stream(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut total = 0_u64;
    loop {
        let mut left = stream.read_u64().await?;
        if left == 0 {
            return stream.write_u64(total).await;
        }
        total = total.saturating_add(left);
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            match stream.read(&mut buffer[..wanted]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left -= read as u64,
            }
        }
    }
}

/// Sends a stream in blocks, and then the samples of the socket, if the client requested samples.
/// `left` receives the number of sent bytes, and returns how many bytes are left to send.
async fn send_stream(
    stream: &mut (impl AsyncWrite + AsFd + Unpin),
    sampling: Sampling,
    left: impl Fn(u64) -> u64,
) -> io::Result<()> {
    let mut block = vec![7; NUMBERED];
    let mut sent = 0;
    let mut samples = Samples::starting(Instant::now());
    loop {
        let part = usize::try_from(left(sent)).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
        block[..LENGTH_BYTES].copy_from_slice(&(part as u64).to_be_bytes());
        stream.write_all(&block[..LENGTH_BYTES + part]).await?;
        if part == 0 {
            break;
        }
        sent += part as u64;
        if sampling == Sampling::On
            && samples.wait().is_zero()
            && let Some(sample) = Sample::of(stream.as_fd(), samples.start())
        {
            samples.keep(sample);
        }
    }
    if sampling == Sampling::On {
        let samples = samples.into_kept();
        stream.write_u64(samples.len() as u64).await?;
        stream.write_all(&samples.iter().flat_map(Sample::encode).collect::<Vec<_>>()).await?;
    }
    Ok(())
}

/// A block with its length in front, so that one write sends both.
const NUMBERED: usize = LENGTH_BYTES + BLOCK_BYTES;
const LENGTH_BYTES: usize = size_of::<u64>();

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::Shutdown;

    use super::*;

    fn served() -> std::net::TcpStream {
        let listening = listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        spawn(&listening, 1).unwrap();
        connect(&listening)
    }

    fn connect(listening: &Listening) -> std::net::TcpStream {
        let Address::Inet(address) = listening.address else { panic!() };
        std::net::TcpStream::connect(address).unwrap()
    }

    fn number(stream: &mut std::net::TcpStream) -> u64 {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes).unwrap();
        u64::from_be_bytes(bytes)
    }

    #[test]
    fn a_client_with_another_protocol_is_disconnected() {
        let mut stream = served();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        // An end or a reset, depending on whether the kernel has unread bytes.
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }

    #[test]
    fn replies_repeat_the_number_of_their_requests() {
        let mut stream = served();
        let requested = WorkloadRequest::Exchange { request_bytes: 10, reply_bytes: 20 };
        stream.write_all(&requested.encode()).unwrap();
        for request in [[1; 10], [2; 10]] {
            stream.write_all(&request).unwrap();
            let mut reply = [9; 20];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(reply[..8], request[..8]);
            assert_eq!(reply[8..], [0; 12]);
        }
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_client_that_requests_too_much_memory_is_disconnected() {
        let listening = listen(&"127.0.0.1:0".parse().unwrap()).unwrap();
        spawn_in(&ServerLimits::of(2 * KILOBYTE), &listening, 1).unwrap();
        for (bytes, is_served) in [(2048, false), (1024, true), (1025, false)] {
            let mut stream = connect(&listening);
            let requested = WorkloadRequest::Exchange { request_bytes: bytes, reply_bytes: 1024 };
            stream.write_all(&requested.encode()).unwrap();
            // The connection may be reset before the client reads.
            let _ = stream.write_all(&vec![1; usize::try_from(bytes).unwrap()]);
            assert_eq!(matches!(stream.read(&mut [0]), Ok(1)), is_served, "{bytes}");
        }
    }

    #[test]
    fn consecutive_streams_have_the_requested_length() {
        let mut stream = served();
        let bytes = BLOCK_BYTES as u64 + 3;
        stream.write_all(&WorkloadRequest::In { bytes, sampling: Sampling::Off }.encode()).unwrap();
        for wanted in [BLOCK_BYTES, 3, 0] {
            assert_eq!(number(&mut stream), wanted as u64);
            stream.read_exact(&mut vec![0; wanted]).unwrap();
        }
        stream
            .write_all(&WorkloadRequest::InFor { ms: 0, sampling: Sampling::On }.encode())
            .unwrap();
        assert_eq!([number(&mut stream), number(&mut stream)], [0, 0], "no block, no sample");
        stream.write_all(&WorkloadRequest::Out.encode()).unwrap();
        for block in [5_u64, 7, 0] {
            stream.write_all(&block.to_be_bytes()).unwrap();
            stream.write_all(&vec![1; usize::try_from(block).unwrap()]).unwrap();
        }
        assert_eq!(number(&mut stream), 12);
    }
}
