//! Chooses the socket and the message ID of a DNS query.
//!
//! The DNS client has a few sockets for each server. Each socket has a random port, and is replaced
//! after a fixed time or a fixed number of queries. A new socket for each query would be expensive.
//! A permanent socket would be unsafe, because an attacker could discover its port.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The number of sockets in use for each server. The client chooses one of these sockets at random
/// for each query.
pub const SOCKETS_PER_SERVER: usize = 2;
/// The number of queries after which a socket is replaced.
pub const QUERIES_PER_SOCKET_MAX: u32 = 2000;
/// How long a socket is used for new queries.
pub const SOCKET_LIFE: Duration = Duration::from_secs(5);

/// The open sockets of the DNS client. `T` is the data that the client stores for each query.
#[derive(Debug)]
pub(super) struct SocketSet<T> {
    sockets: HashMap<u64, Socket<T>>,
    /// The sockets on which the client sends new queries.
    in_use: HashMap<SocketAddr, [Option<u64>; SOCKETS_PER_SERVER]>,
    opened: u64,
}

#[derive(Debug)]
struct Socket<T> {
    server: SocketAddr,
    until: Instant,
    questions: u32,
    is_retired: bool,
    open: HashMap<u16, T>,
}

/// A socket, and a message ID that is unique on this socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketSlot {
    pub(super) socket: u64,
    pub(super) id: u16,
}

/// A socket slot, and whether the caller must open the socket first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserved {
    pub(super) slot: SocketSlot,
    pub(super) is_new: bool,
}

impl<T> SocketSet<T> {
    pub(super) fn new() -> Self {
        Self { sockets: HashMap::new(), in_use: HashMap::new(), opened: 0 }
    }

    /// Reserves a socket and a message ID for a query to a server.
    pub(super) fn reserve(
        &mut self,
        server: SocketAddr,
        what: T,
        now: Instant,
        random: &mut dyn FnMut() -> u64,
    ) -> Reserved {
        let bytes = random().to_le_bytes();
        let mut is_new = false;
        let place = usize::from(bytes[7]) % SOCKETS_PER_SERVER;
        let in_use = &mut self.in_use.entry(server).or_default()[place];
        let number = *in_use.get_or_insert_with(|| {
            self.opened += 1;
            is_new = true;
            self.opened
        });
        let socket = self.sockets.entry(number).or_insert_with(|| Socket {
            server,
            until: now + SOCKET_LIFE,
            questions: 0,
            is_retired: false,
            open: HashMap::new(),
        });
        socket.questions += 1;
        let mut id = u16::from_le_bytes([bytes[0], bytes[1]]);
        while socket.open.contains_key(&id) {
            // The loop terminates, because a socket has fewer queries than there are IDs.
            let [low, high, ..] = random().to_le_bytes();
            id = u16::from_le_bytes([low, high]);
        }
        socket.open.insert(id, what);
        if socket.questions >= QUERIES_PER_SOCKET_MAX {
            socket.is_retired = true;
            *in_use = None;
        }
        Reserved { slot: SocketSlot { socket: number, id }, is_new }
    }

    /// Returns the data of the query with this socket and message ID.
    pub(super) fn get(&self, slot: SocketSlot) -> Option<&T> {
        self.sockets.get(&slot.socket)?.open.get(&slot.id)
    }

    /// Returns a mutable reference to the data of the query with this socket and message ID.
    pub(super) fn entry(&mut self, slot: SocketSlot) -> Option<&mut T> {
        self.sockets.get_mut(&slot.socket)?.open.get_mut(&slot.id)
    }

    /// Returns the server to which a socket is connected.
    pub(super) fn server(&self, socket: u64) -> Option<SocketAddr> {
        self.sockets.get(&socket).map(|socket| socket.server)
    }

    /// Returns the queries of a socket that have no answer yet.
    pub(super) fn open(&self, socket: u64) -> Vec<SocketSlot> {
        let Some(found) = self.sockets.get(&socket) else { return Vec::new() };
        found.open.keys().map(|id| SocketSlot { socket, id: *id }).collect()
    }

    /// Releases a message ID. Returns whether the caller must close the socket.
    pub(super) fn release(&mut self, slot: SocketSlot) -> bool {
        let Some(socket) = self.sockets.get_mut(&slot.socket) else { return false };
        socket.open.remove(&slot.id);
        let is_over = socket.is_retired && socket.open.is_empty();
        if is_over {
            self.sockets.remove(&slot.socket);
        }
        is_over
    }

    /// Stops using a socket for new queries. Returns whether the caller must close the socket now.
    pub(super) fn retire(&mut self, number: u64) -> bool {
        let Some(socket) = self.sockets.get_mut(&number) else { return false };
        socket.is_retired = true;
        let is_over = socket.open.is_empty();
        if let Some(in_use) = self.in_use.get_mut(&socket.server) {
            for place in in_use.iter_mut().filter(|place| **place == Some(number)) {
                *place = None;
            }
            if in_use.iter().all(Option::is_none) {
                self.in_use.remove(&socket.server);
            }
        }
        if is_over {
            self.sockets.remove(&number);
        }
        is_over
    }

    /// Returns the sockets that are too old for new queries.
    pub(super) fn too_old(&self, now: Instant) -> Vec<u64> {
        let mut old = self.in_use();
        old.retain(|number| self.sockets.get(number).is_some_and(|socket| socket.until <= now));
        old
    }

    /// Returns the sockets on which the client sends new queries.
    pub(super) fn in_use(&self) -> Vec<u64> {
        self.in_use.values().flatten().flatten().copied().collect()
    }

    /// Returns when the next socket becomes too old for new queries.
    pub(super) fn next_end(&self) -> Option<Instant> {
        let in_use = self.in_use.values().flatten().flatten();
        in_use.filter_map(|number| self.sockets.get(number)).map(|socket| socket.until).min()
    }
}

#[cfg(test)]
mod tests;
