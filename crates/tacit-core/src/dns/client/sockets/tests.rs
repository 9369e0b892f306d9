use super::*;

fn server(last: u8) -> SocketAddr {
    ([192, 0, 2, last], 53).into()
}

#[test]
fn numbers_on_a_socket_are_unique() {
    let mut sockets = SocketSet::new();
    let now = Instant::now();
    // The worst sequence of random numbers: the same number repeated until a new one is needed.
    let mut calls = 0_u64;
    let mut random = || {
        calls += 1;
        calls / 3
    };
    let mut seen = std::collections::HashSet::new();
    for number in 0..QUERIES_PER_SOCKET_MAX * 3 {
        let reserved = sockets.reserve(server(1), number, now, &mut random);
        assert!(seen.insert((reserved.slot.socket, reserved.slot.id)));
        assert_eq!(sockets.get(reserved.slot), Some(&number));
    }
    assert_eq!(sockets.opened, 3);
}

#[test]
fn a_retired_socket_closes_with_its_last_question() {
    let mut sockets = SocketSet::new();
    let now = Instant::now();
    let first = sockets.reserve(server(1), (), now, &mut || 0);
    let second = sockets.reserve(server(1), (), now, &mut || 1);
    assert!(first.is_new && !second.is_new);
    assert_eq!(sockets.too_old(now), []);
    assert_eq!(sockets.next_end(), Some(now + SOCKET_LIFE));
    assert_eq!(sockets.too_old(now + SOCKET_LIFE), [first.slot.socket]);
    assert!(!sockets.retire(first.slot.socket) && !sockets.release(first.slot));
    assert_eq!(sockets.next_end(), None);
    let third = sockets.reserve(server(1), (), now, &mut || 0);
    assert!(third.is_new);
    assert!(sockets.release(second.slot) && !sockets.release(third.slot));
    assert!(sockets.retire(third.slot.socket));
    assert!(sockets.sockets.is_empty() && sockets.in_use.is_empty());
}
