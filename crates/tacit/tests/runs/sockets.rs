//! Tests the socket calls of programs under `tacit run`. The calls must have the same results as
//! without `tacit run`.

use crate::comparison::Comparison;

pub const SOCKETS: Comparison = Comparison {
    ports: &[7000],
    servers: &["start python3 $PEERS/sockets_server.py 7000; await 7000\n"],
    script: "/usr/bin/python3 $PEERS/sockets.py $HOST 7000",
    wanted: &[
        "the_servers_reset: ('reset', '0 e3b0c44298fc ECONNRESET', 'EPIPE', b'')",
        "the_clients_reset: ConnectionResetError",
        "names: (('10.9.8.7', 7000), 23456)",
        "connecting_without_waiting: EINPROGRESS",
        "a_long_stream_each_way: 67108864 ",
        "status 0",
    ],
    ..Comparison::NONE
};

#[test]
fn every_socket_call_returns_what_it_returns_without_tacit() {
    SOCKETS.compare();
}

#[test]
fn every_socket_call_returns_the_same_for_root() {
    Comparison { as_root: true, ..SOCKETS }.compare();
}
