//! The load server: the application at the far end. Runs until it is killed.
//!
//! Its threads all wait in accept and serve a connection to its end, so that a short connection
//! costs no start of a thread.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;

use super::{CONNECT, EXCHANGE, IO_BYTES_MAX, STREAM};

/// Connections served at a time; more wait in the listener's queue.
const CONNECTIONS_MAX: usize = 32;

/// The longest request: more is not a request of this client.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Listens on a free port of `address`, prints the full address as a JSON line and serves for ever.
pub(crate) fn main(address: IpAddr) -> Result<(), String> {
    let started = TcpListener::bind((address, 0)).and_then(|listener| {
        println!("{}", serde_json::json!({ "listening": listener.local_addr()?.to_string() }));
        spawn(listener)
    });
    let threads = started.map_err(|error| format!("load server: {error}"))?;
    for thread in threads {
        thread.join().map_err(|_| "load server: a thread ended".to_owned())?;
    }
    Ok(())
}

/// Serves `listener` from threads that never end.
pub(crate) fn spawn(listener: TcpListener) -> io::Result<Vec<thread::JoinHandle<()>>> {
    let mut threads = Vec::with_capacity(CONNECTIONS_MAX);
    for _ in 1..CONNECTIONS_MAX {
        let listener = listener.try_clone()?;
        threads.push(thread::spawn(move || accept(&listener)));
    }
    threads.push(thread::spawn(move || accept(&listener)));
    Ok(threads)
}

fn accept(listener: &TcpListener) {
    let mut buffer = Vec::new();
    loop {
        // The client notices and reports what goes wrong on a connection; a reset by a proxy
        // after the last byte is its way to close.
        let _ = listener.accept().and_then(|(stream, _)| serve(stream, &mut buffer));
    }
}

fn serve(mut stream: TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut kind = [0];
    while stream.read(&mut kind)? == 1 {
        match kind[0] {
            CONNECT => stream.write_all(&kind)?,
            EXCHANGE => return exchange(&mut stream, buffer),
            STREAM => swallow(&mut stream, buffer)?,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
    Ok(())
}

fn exchange(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
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

fn swallow(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
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

fn read_size(stream: &mut TcpStream) -> io::Result<u64> {
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    Ok(u64::from_be_bytes(size))
}
