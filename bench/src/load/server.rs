//! The load server: the application at the far end. Runs until it is killed.
//!
//! Its threads all wait in accept and serve a connection to its end, so that a short connection
//! costs no start of a thread.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::{CONNECT, EXCHANGE, FREE, HOLD, IO_BYTES_MAX, STREAM, Wire};

/// Connections served at a time; more wait in the listener's queue.
const CONNECTIONS_MAX: usize = 32;

/// Connections held without a thread.
const HELD_MAX: usize = 8192;

/// The longest request: more is not a request of this client.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Makes what was accepted a connection in clear.
pub(crate) type Answer = dyn Fn(TcpStream) -> io::Result<Box<dyn Wire>> + Send + Sync;

/// Without TLS.
pub(crate) fn plain() -> Arc<Answer> {
    Arc::new(|stream| Ok(Box::new(stream)))
}

/// Listens at `address`, prints the full address and the process id as a JSON line and serves for
/// ever. Port 0 is a free one.
pub(crate) fn main(address: SocketAddr, answer: Arc<Answer>) -> Result<(), String> {
    let started = TcpListener::bind(address).and_then(|listener| {
        let own = listener.local_addr()?.to_string();
        println!("{}", serde_json::json!({ "listening": own, "pid": std::process::id() }));
        spawn(listener, answer)
    });
    let threads = started.map_err(|error| format!("load server: {error}"))?;
    for thread in threads {
        thread.join().map_err(|_| "load server: a thread ended".to_owned())?;
    }
    Ok(())
}

/// Connections that nobody reads.
type Held = Arc<Mutex<Vec<Box<dyn Wire>>>>;

/// Serves `listener` from threads that never end.
pub(crate) fn spawn(
    listener: TcpListener,
    answer: Arc<Answer>,
) -> io::Result<Vec<thread::JoinHandle<()>>> {
    let held = Held::default();
    let listener = Arc::new(listener);
    let start = |_| {
        let (listener, answer, held) = (listener.clone(), answer.clone(), held.clone());
        thread::Builder::new().spawn(move || accept(&listener, &answer, &held))
    };
    (0..CONNECTIONS_MAX).map(start).collect()
}

fn accept(listener: &TcpListener, answer: &Arc<Answer>, held: &Held) {
    let mut buffer = Vec::new();
    loop {
        // The client notices and reports what goes wrong on a connection; a reset by a proxy
        // after the last byte is its way to close.
        let _ = listener.accept().and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            serve(answer(stream)?, &mut buffer, held)
        });
    }
}

fn serve(mut stream: Box<dyn Wire>, buffer: &mut Vec<u8>, held: &Held) -> io::Result<()> {
    let mut kind = [0];
    while stream.read(&mut kind)? == 1 {
        match kind[0] {
            CONNECT => stream.write_all(&kind)?,
            EXCHANGE => return exchange(&mut *stream, buffer),
            STREAM => swallow(&mut *stream, buffer)?,
            HOLD => {
                stream.write_all(&kind)?;
                let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
                if held.len() < HELD_MAX {
                    held.push(stream);
                }
                return Ok(());
            }
            FREE => {
                let freed = std::mem::take(&mut *held.lock().unwrap_or_else(|e| e.into_inner()));
                drop(freed);
                stream.write_all(&kind)?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

fn exchange(stream: &mut dyn Wire, buffer: &mut Vec<u8>) -> io::Result<()> {
    let size = usize::try_from(read_size(stream)?).unwrap_or(usize::MAX);
    if size > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    buffer.resize(size, 0);
    loop {
        stream.read_exact(buffer)?;
        stream.write_all(buffer)?;
    }
}

fn swallow(stream: &mut dyn Wire, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut left = read_size(stream)?;
    buffer.resize(IO_BYTES_MAX, 0);
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(IO_BYTES_MAX).min(IO_BYTES_MAX);
        match stream.read(&mut buffer[..wanted])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left -= read as u64,
        }
    }
    stream.write_all(&[STREAM])
}

fn read_size(stream: &mut dyn Wire) -> io::Result<u64> {
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    Ok(u64::from_be_bytes(size))
}
