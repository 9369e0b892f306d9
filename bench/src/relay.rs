//! A TCP relay that only copies bytes, without TLS. Two of these relays in a row make the same
//! three TCP connections as two proxies: what proxies need beyond that is the cost of TLS and of
//! their other work.
//!
//! One thread waits with epoll. Sockets are blocking, and the relay reads a socket only when it is
//! readable. While a write waits, the relay serves no other connection. Two relays could therefore
//! wait for each other, if both directions of a connection were full; the load programs never send
//! in both directions at once.
//!
//! Limit: each connection needs four descriptors; when there are none left, the relay ends.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};

/// Bytes that one read takes at most.
const READ_BYTES_MAX: usize = 256 * 1024;
/// Events that one wait returns at most.
const EVENTS_MAX: usize = 64;
/// The event data of the listener. Directions count from 1.
const LISTENER: u64 = 0;

/// One direction of a connection.
struct Direction {
    from: TcpStream,
    to: TcpStream,
}

/// Relays connections from `listen` to `connect` until the process is ended.
pub(crate) fn run(listen: &str, connect: &str) -> Result<(), String> {
    let wrong = |error| format!("usage: bench relay LISTEN CONNECT: {error}");
    let listen: SocketAddr = listen.parse().map_err(wrong)?;
    let connect = connect.parse().map_err(wrong)?;
    let listener = TcpListener::bind(listen);
    let relayed = listener.and_then(|listener| serve(&listener, connect));
    relayed.map_err(|error| format!("cannot relay: {error}"))
}

fn serve(listener: &TcpListener, connect: SocketAddr) -> io::Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut directions = HashMap::new();
    let mut next = LISTENER + 1;
    let mut events = Vec::with_capacity(EVENTS_MAX);
    let mut buffer = vec![0; READ_BYTES_MAX];
    loop {
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            let number = event.data.u64();
            if number == LISTENER {
                for direction in accept(listener, connect)?.into_iter().flatten() {
                    let data = EventData::new_u64(next);
                    epoll::add(&poll, &direction.from, data, EventFlags::IN)?;
                    directions.insert(next, direction);
                    next += 1;
                }
                continue;
            }
            let Some(direction) = directions.get_mut(&number) else { continue };
            if copy(direction, &mut buffer).is_err() {
                end(&poll, direction)?;
                directions.remove(&number);
            }
        }
    }
}

/// Accepts a connection, connects, and returns both directions. `None`: nothing listens at the
/// other address yet; the connection is closed.
fn accept(listener: &TcpListener, connect: SocketAddr) -> io::Result<Option<[Direction; 2]>> {
    let (near, _) = listener.accept()?;
    let Ok(far) = TcpStream::connect(connect) else { return Ok(None) };
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let forth = Direction { from: near.try_clone()?, to: far.try_clone()? };
    Ok(Some([forth, Direction { from: far, to: near }]))
}

/// Copies what one read returns. The end of the stream is an error.
fn copy(direction: &mut Direction, buffer: &mut [u8]) -> io::Result<()> {
    let read = direction.from.read(buffer)?;
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    direction.to.write_all(&buffer[..read])
}

/// Passes the end of the stream on.
fn end(poll: &OwnedFd, direction: &Direction) -> io::Result<()> {
    epoll::delete(poll, &direction.from)?;
    // The other side may have reset the connection.
    let _ = direction.to.shutdown(Shutdown::Write);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn both_directions_and_their_ends_are_relayed() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = server.local_addr().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        thread::spawn(move || serve(&listener, connect));
        let (mut end, _) = server.accept().unwrap();
        client.write_all(b"request").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut request = Vec::new();
        end.read_to_end(&mut request).unwrap();
        end.write_all(&[b'x'; READ_BYTES_MAX + 1]).unwrap();
        drop(end);
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).unwrap();
        assert_eq!((&request[..], reply.len()), (&b"request"[..], READ_BYTES_MAX + 1));
    }
}
