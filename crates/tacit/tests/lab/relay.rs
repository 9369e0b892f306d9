//! Tests that bytes are relayed correctly: long streams, readers that pause, and thousands of
//! connections.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use crate::harness::{Agent, wait_for};
use crate::lane::{Ends, Lane, fill, open_connections, open_many};

/// Bytes each way. A debug build takes seconds for it; `make bench` carries gigabytes.
const STREAM_BYTES: usize = 128 << 20;
/// Streams at once, and the bytes of each, beside a connection with short messages.
const STREAMS: u64 = 4;
const STREAM_BYTES_BESIDE: usize = 16 << 20;
/// What an agent may grow by while a reader stands still: the bytes that wait, and slack.
const STALLED_BYTES_MAX: usize = 24 << 20;
/// What an idle TLS connection may cost its agent, all told.
const IDLE_TLS_BYTES_MAX: usize = 4 << 10;
/// What an idle connection in clear may cost.
const IDLE_CLEAR_BYTES_MAX: usize = 4 << 10;
const IDLE_CONNECTIONS: usize = 2000;
/// What a connection has carried each way before it is idle: more than a record.
const IDLE_EXCHANGE_BYTES: usize = 20_000;

/// Bytes that do not repeat for a long time; the same again from the same start.
struct Pattern(u64);

impl Pattern {
    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            word.copy_from_slice(&self.0.to_le_bytes()[..word.len()]);
        }
    }
}

const CHUNK_BYTES: usize = 64 << 10;

fn send_pattern(stream: &mut TcpStream, start: u64, bytes: usize) {
    let mut pattern = Pattern(start);
    let mut chunk = vec![0; CHUNK_BYTES];
    for _ in 0..bytes / CHUNK_BYTES {
        pattern.fill(&mut chunk);
        stream.write_all(&chunk).unwrap();
    }
}

fn expect_pattern(stream: &mut TcpStream, start: u64, bytes: usize) {
    let mut pattern = Pattern(start);
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut read = vec![0; CHUNK_BYTES];
    for at in 0..bytes / CHUNK_BYTES {
        pattern.fill(&mut chunk);
        stream.read_exact(&mut read).unwrap();
        assert!(chunk == read, "different in chunk {at}");
    }
}

#[test]
fn bulk_streams_and_short_messages_share_a_worker() {
    Lane::each(|lane| {
        let mut connection = lane.open();
        let mut message = [0; 100];
        let mut exchange = |connection: &mut Ends| {
            connection.client.write_all(&message).unwrap();
            connection.server.read_exact(&mut message).unwrap();
            connection.server.write_all(&message).unwrap();
            connection.client.read_exact(&mut message).unwrap();
        };
        // From here on the thread knows that it has brief connections.
        exchange(&mut connection);
        std::thread::scope(|scope| {
            let streams: Vec<_> = (1..=STREAMS)
                .map(|seed| {
                    let Ends { mut client, mut server } = lane.open();
                    scope.spawn(move || send_pattern(&mut client, seed, STREAM_BYTES_BESIDE));
                    scope.spawn(move || expect_pattern(&mut server, seed, STREAM_BYTES_BESIDE))
                })
                .collect();
            while streams.iter().any(|stream| !stream.is_finished()) {
                exchange(&mut connection);
            }
        });
    });
}

#[test]
fn long_streams_are_byte_exact_in_both_directions_at_once() {
    Lane::each(|lane| {
        let open = lane.open();
        let Ends { mut client, mut server } = open.try_clone();
        let Ends { client: mut client_reads, server: mut server_reads } = open.try_clone();
        std::thread::scope(|scope| {
            scope.spawn(move || send_pattern(&mut client, 1, STREAM_BYTES));
            scope.spawn(move || send_pattern(&mut server, 2, STREAM_BYTES));
            scope.spawn(move || expect_pattern(&mut server_reads, 1, STREAM_BYTES));
            scope.spawn(move || expect_pattern(&mut client_reads, 2, STREAM_BYTES));
        });
        for agent in &lane.agents {
            let shown = agent.show("connections");
            assert_eq!(shown[0]["bytes-in"], STREAM_BYTES, "{shown}");
            assert_eq!(shown[0]["bytes-out"], STREAM_BYTES, "{shown}");
        }
    });
}

#[test]
fn a_reader_that_stops_uses_bounded_memory_and_loses_no_bytes() {
    Lane::each(|lane| {
        let Ends { client, mut server } = lane.open();
        let before: Vec<_> = lane.agents.iter().map(Agent::resident_bytes).collect();
        let taken = fill(&client);
        for (agent, before) in lane.agents.iter().zip(before) {
            let grown = agent.resident_bytes().saturating_sub(before);
            println!("{}: {taken} bytes on their way, agent grew by {grown}", lane.name);
            assert!(grown < STALLED_BYTES_MAX, "{}: grew by {grown}", lane.name);
        }
        client.shutdown(Shutdown::Write).unwrap();
        // A slow reader: small reads of what has piled up.
        let mut received = 0;
        let mut buffer = [0; 3000];
        loop {
            let count = server.read(&mut buffer).unwrap();
            if count == 0 {
                break;
            }
            assert!(buffer[..count].iter().all(|&byte| byte == 7));
            received += count;
        }
        assert_eq!(received, taken, "{}", lane.name);
    });
}

#[test]
fn a_one_way_upload_rekeys_as_often_as_required() {
    let lane = Lane::tls_with(r#", min-version = "1.3", rekey = { bytes = "1MiB" }"#, |far| far);
    let Ends { mut client, mut server } = lane.open();
    let mut sender = client.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || send_pattern(&mut sender, 3, 64 << 20));
        expect_pattern(&mut server, 3, 64 << 20);
    });
    server.write_all(b"thanks").unwrap();
    client.read_exact(&mut [0; 6]).unwrap();
    let rekeys = lane.agents[0].show("connections")[0]["tls"]["rekeys"].as_u64().unwrap();
    assert!(rekeys > 40, "{rekeys}");
}

/// CPU of the serving process in clock ticks, 100 a second.
fn cpu_ticks(agent: &Agent) -> u64 {
    let pid = *agent.serving_pids().last().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn an_idle_connection_uses_no_cpu_time() {
    Lane::each(|lane| {
        // Half-closed either way, stalled, stalled behind an end, after urgent data.
        let ends = lane.open();
        let stalls = lane.open();
        let mut stalled_end = lane.open();
        let urgent = lane.open();
        let back = lane.open();
        ends.client.shutdown(Shutdown::Write).unwrap();
        back.server.shutdown(Shutdown::Write).unwrap();
        fill(&stalls.client);
        fill(&stalls.server);
        fill(&stalled_end.client);
        stalled_end.client.shutdown(Shutdown::Write).unwrap();
        stalled_end.server.write_all(b"still open").unwrap();
        rustix::net::send(&urgent.client, b"!", rustix::net::SendFlags::OOB).unwrap();
        let before: Vec<_> = lane.agents.iter().map(cpu_ticks).collect();
        std::thread::sleep(std::time::Duration::from_secs(1));
        for (agent, before) in lane.agents.iter().zip(before) {
            let ticks = cpu_ticks(agent) - before;
            assert!(ticks < 20, "{}: {ticks} ticks in a second of silence", lane.name);
        }
    });
}

#[test]
fn idle_connections_are_small() {
    for (lane, bytes_max) in
        Lane::both().into_iter().zip([IDLE_CLEAR_BYTES_MAX, IDLE_TLS_BYTES_MAX])
    {
        // What a first connection costs once and for all is not counted.
        drop(open_many(&lane, 50, IDLE_EXCHANGE_BYTES));
        wait_for("the first connections' end", || {
            lane.agents.iter().all(|agent| open_connections(agent) == 0)
        });
        let before: Vec<_> = lane.agents.iter().map(Agent::resident_bytes).collect();
        let open = open_many(&lane, IDLE_CONNECTIONS, IDLE_EXCHANGE_BYTES);
        for (agent, before) in lane.agents.iter().zip(before) {
            let each = agent.resident_bytes().saturating_sub(before) / IDLE_CONNECTIONS;
            println!("{}: an idle connection costs {each} bytes", lane.name);
            assert!(each < bytes_max, "{}: an idle connection costs {each} bytes", lane.name);
        }
        drop(open);
    }
}
