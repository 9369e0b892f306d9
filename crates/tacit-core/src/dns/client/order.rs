//! Determines the order in which the DNS client queries the servers, and the delay before it
//! queries the next server.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::super::configuration::ResolverOptions;
use super::super::health::Health;

/// How long a server may take before the next server is queried too. A cached answer arrives within
/// this time from anywhere on earth. Three servers fit into the shortest timeout of programs, 1 s.
pub const NEXT_DELAY: Duration = Duration::from_millis(250);
/// The same delay for a suspected server: one round trip across a continent.
pub const SUSPECTED_DELAY: Duration = Duration::from_millis(50);

/// The servers to query, and the options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerList {
    /// The servers, in the order of the host's file.
    pub addresses: Vec<SocketAddr>,
    /// Timeout, attempts and rotation.
    pub options: ResolverOptions,
}

/// Which servers may answer a query.
#[derive(Clone, Copy, Debug)]
pub enum Servers<'s> {
    /// Any of these.
    AnyOf(&'s ServerList),
    /// Only the one that the program chose.
    Chosen(ResolverOptions),
}

/// Returns the order for one query. The server that the program chose comes first if it is in the
/// list, and the servers after it follow. Suspected servers come last. `turn` counts queries.
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

/// The delay before the next server is queried.
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
