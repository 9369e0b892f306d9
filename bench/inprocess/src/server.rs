//! Implements the load server, which answers the requests of the load client. The load server uses
//! the protocol of `tacit workload`, and calls a TLS library directly. It runs until another
//! process kills it.
//!
//! A fixed number of threads wait in `accept`. Each thread serves one connection at a time. The
//! load server can receive streams, but cannot send them.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use serde_json::json;
use tacit_core::workload::{BLOCK_BYTES, HEADER_BYTES, WorkloadRequest, repeated_bytes};

use crate::wire::{Answer, Wire};

/// Number of threads, which is the number of concurrent connections. More wait in the queue.
const CONNECTIONS_MAX: usize = 32;

/// Listens at `address`, prints the actual address and the process id as a line of JSON, and
/// serves. The kernel chooses a port instead of port 0.
pub(crate) fn run(address: SocketAddr, answer: &Arc<Answer>) -> Result<(), String> {
    let failed = |error: io::Error| format!("the load server cannot listen at {address}: {error}");
    let listener = TcpListener::bind(address).map_err(failed)?;
    let own = listener.local_addr().map_err(failed)?.to_string();
    println!("{}", json!({ "listening": own, "pid": std::process::id() }));
    let listener = Arc::new(listener);
    let start = |_| {
        let listener = Arc::clone(&listener);
        let answer = Arc::clone(answer);
        thread::Builder::new().spawn(move || accept(&listener, &answer))
    };
    let threads: Vec<_> =
        (0..CONNECTIONS_MAX).map(start).collect::<io::Result<_>>().map_err(failed)?;
    for thread in threads {
        thread.join().map_err(|_| "a thread of the load server ended unexpectedly".to_owned())?;
    }
    Ok(())
}

fn accept(listener: &TcpListener, answer: &Arc<Answer>) {
    loop {
        // The client detects and reports errors of its connection.
        let _ = listener.accept().and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            serve(&mut *answer(stream)?)
        });
    }
}

fn serve(wire: &mut dyn Wire) -> io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    while wire.read_exact(&mut header).is_ok() {
        match WorkloadRequest::decode(&header).ok_or(io::ErrorKind::InvalidData)? {
            WorkloadRequest::Exchange { request_bytes, reply_bytes } => {
                return exchange(wire, request_bytes, reply_bytes);
            }
            WorkloadRequest::Out => receive_stream(wire)?,
            WorkloadRequest::In { .. } | WorkloadRequest::InFor { .. } => {
                return Err(io::ErrorKind::Unsupported.into());
            }
        }
    }
    Ok(())
}

fn exchange(wire: &mut dyn Wire, request_bytes: u64, reply_bytes: u64) -> io::Result<()> {
    let size = |bytes| usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidData);
    let mut request = vec![0; size(request_bytes)?];
    let mut reply = vec![0; size(reply_bytes)?];
    let repeated = repeated_bytes(request.len(), reply.len());
    loop {
        wire.read_exact(&mut request)?;
        reply[..repeated].copy_from_slice(&request[..repeated]);
        wire.write_all(&reply)?;
    }
}

fn receive_stream(wire: &mut dyn Wire) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut total = 0_u64;
    loop {
        let mut length = [0; size_of::<u64>()];
        wire.read_exact(&mut length)?;
        let mut left = u64::from_be_bytes(length);
        if left == 0 {
            return wire.write_all(&total.to_be_bytes());
        }
        total = total.saturating_add(left);
        while left > 0 {
            let wanted = usize::try_from(left).unwrap_or(BLOCK_BYTES).min(BLOCK_BYTES);
            match wire.read(&mut buffer[..wanted])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left -= read as u64,
            }
        }
    }
}
