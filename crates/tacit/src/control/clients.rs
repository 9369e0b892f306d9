//! Limits the number of connections of a server, such as the server for metrics. At the limit, the
//! server accepts a new connection, and closes the oldest connection that has no request in
//! progress.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::task::AbortHandle;

/// Whether the server waits for the client to send a request or to close the connection.
pub type Waits = Rc<Cell<bool>>;

/// The connections of one server, from the oldest to the newest.
#[derive(Debug)]
pub struct Clients {
    max: usize,
    all: VecDeque<Client>,
}

#[derive(Debug)]
struct Client {
    waits: Waits,
    task: AbortHandle,
}

impl Clients {
    /// A server with at most `max` connections.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, all: VecDeque::new() }
    }

    /// Makes room for a new connection. At the limit, closes the oldest connection that has no
    /// request in progress. If every connection has a request in progress, returns `false`: the
    /// caller must reject the new connection.
    pub fn make_room(&mut self) -> bool {
        self.all.retain(|client| !client.task.is_finished());
        if self.all.len() < self.max {
            return true;
        }
        let silent = self.all.iter().position(|client| client.waits.get());
        let Some(client) = silent.and_then(|at| self.all.remove(at)) else { return false };
        client.task.abort();
        true
    }

    /// Adds a connection, which `task` serves.
    pub fn add(&mut self, waits: Waits, task: AbortHandle) {
        self.all.push_back(Client { waits, task });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_client_replaces_the_oldest_one_without_a_request_in_progress() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async {
            let mut clients = Clients::new(8);
            let waits: Vec<_> =
                (0..8).map(|at| Waits::new(Cell::new(at == 3 || at == 5))).collect();
            for waits in &waits {
                assert!(clients.make_room());
                let task = tokio::task::spawn_local(std::future::pending::<()>());
                clients.add(Rc::clone(waits), task.abort_handle());
            }
            let silent = [3, 5].map(|at| clients.all[at].task.clone());
            assert!(clients.make_room());
            tokio::task::yield_now().await;
            assert!(silent[0].is_finished() && !silent[1].is_finished());
            let task = tokio::task::spawn_local(std::future::pending::<()>());
            clients.add(Waits::default(), task.abort_handle());
            waits[5].set(false);
            assert!(!clients.make_room(), "every client has a request in progress");
            assert!(!silent[1].is_finished());
        });
    }
}
