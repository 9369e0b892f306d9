//! Determines the order in which the DNS client queries the servers, and the delay before it
//! queries the next server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::configuration::ResolverOptions;
use super::super::health::Health;

/// How long a server may take before the next server is queried too. A cached answer arrives within
/// this time from anywhere on earth. Three servers fit into the shortest timeout of programs, 1 s.
pub const NEXT_DELAY: Duration = Duration::from_millis(250);
/// How long a suspected server may take before the next server is queried too. This time is one
/// round trip across a continent.
pub const SUSPECTED_DELAY: Duration = Duration::from_millis(50);

/// The DNS servers to query, and the options for queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList {
    /// The DNS servers, in the order of the host's `resolv.conf`.
    pub addresses: Vec<SocketAddr>,
    /// The options `timeout`, `attempts` and `rotate` of `resolv.conf`.
    pub options: ResolverOptions,
}

/// Which servers may answer a query.
#[derive(Clone, Copy, Debug)]
pub enum Servers<'s> {
    /// Any server of this list may answer.
    AnyOf(&'s ServerList),
    /// Only the server that the program chose may answer.
    Chosen(ResolverOptions),
}

/// Returns the servers in the order in which one query uses them. If the list contains the server
/// that the program chose, that server is the first. Suspected servers are the last. `turn` is the
/// number of earlier queries.
pub(super) fn order(
    servers: &ServerList,
    requested: Option<SocketAddr>,
    turn: usize,
    health: &Health,
    now: Instant,
) -> Vec<SocketAddr> {
    let ServerList { addresses, options } = servers;
    let chosen = requested.and_then(|requested| addresses.iter().position(|one| *one == requested));
    let first = match chosen {
        Some(first) => first,
        None if options.rotate => turn % addresses.len().max(1),
        None => 0,
    };
    let mut order: Vec<_> = addresses[first..].iter().chain(&addresses[..first]).copied().collect();
    // The program's choice is always first, because servers may give different answers.
    let free = order.split_at_mut(usize::from(chosen.is_some())).1;
    free.sort_by_key(|server| health.is_suspected(*server, now));
    order
}

/// Returns how long to wait for `server` before the next server is queried.
pub(super) fn delay(server: SocketAddr, health: &Health, now: Instant) -> Duration {
    if health.is_suspected(server, now) { SUSPECTED_DELAY } else { NEXT_DELAY }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(last: u8) -> SocketAddr {
        ([192, 0, 2, last], 53).into()
    }

    fn servers(options: ResolverOptions) -> ServerList {
        ServerList { addresses: (1..=3).map(server).collect(), options }
    }

    fn check(requested: Option<u8>, turn: usize, suspected: &[u8], expected: [u8; 3]) {
        let now = Instant::now();
        let mut health = Health::default();
        for last in suspected {
            health.suspect(server(*last), now, now);
        }
        let options = ResolverOptions { rotate: turn > 0, ..ResolverOptions::default() };
        let order = order(&servers(options), requested.map(server), turn, &health, now);
        assert_eq!(order, expected.map(server), "{requested:?} {turn} {suspected:?}");
    }

    #[test]
    fn the_server_that_was_asked_comes_first_and_suspected_ones_last() {
        check(None, 0, &[], [1, 2, 3]);
        check(Some(9), 0, &[], [1, 2, 3]);
        check(Some(2), 0, &[], [2, 3, 1]);
        check(Some(1), 0, &[1, 2], [1, 3, 2]);
        check(None, 0, &[1, 2], [3, 1, 2]);
        check(None, 4, &[], [2, 3, 1]);
        check(Some(1), 4, &[], [1, 2, 3]);
    }

    #[test]
    fn without_servers_there_is_no_order() {
        let none = ServerList { addresses: Vec::new(), options: ResolverOptions::default() };
        let now = Instant::now();
        assert!(order(&none, Some(server(1)), 7, &Health::default(), now).is_empty());
    }
}
