//! What is left when a process of ours is killed in the middle of everything.

use std::io::Write;
use std::net::TcpStream;

use crate::harness::{signal_process, wait_for};
use crate::lane::{Ends, Lane, Received, read_some, read_to_end};

/// Bytes on their way in both directions, none of them lost so far.
fn warm(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"ping").unwrap();
    assert_eq!(read_some(server, 4), b"ping");
    server.write_all(b"pong").unwrap();
    assert_eq!(read_some(client, 4), b"pong");
}

#[test]
fn plain_peers_of_a_killed_agent_see_a_reset_and_nothing_more() {
    Lane::each(|lane| {
        let Ends { mut client, mut server } = lane.open();
        warm(&mut client, &mut server);
        let serving = *lane.agents[0].serving_pids().last().expect("an agent serves");
        signal_process(serving, "KILL");
        // The far agent, if there is one, sees its TLS stream cut.
        assert_eq!(read_to_end(&mut client), Received::Reset(Vec::new()), "{}", lane.name);
        assert_eq!(read_to_end(&mut server), Received::Reset(Vec::new()), "{}", lane.name);
    });
}

#[test]
fn a_killed_far_agent_cuts_the_stream_for_the_near_program() {
    let lane = Lane::tls();
    let Ends { mut client, mut server } = lane.open();
    warm(&mut client, &mut server);
    signal_process(*lane.agents[1].serving_pids().last().unwrap(), "KILL");
    assert_eq!(read_to_end(&mut client), Received::Reset(Vec::new()));
    assert_eq!(read_to_end(&mut server), Received::Reset(Vec::new()));
    lane.agents[0].wait_for_log("without close_notify");
    lane.agents[1].wait_for_log("was killed by signal 9");
}

#[test]
fn the_agent_outlives_its_parent() {
    let mut lane = Lane::permit();
    let Ends { mut client, mut server } = lane.open();
    let agent = &mut lane.agents[0];
    let serving = *agent.serving_pids().last().unwrap();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    warm(&mut client, &mut server);
    let Ends { mut client, mut server } = lane.open();
    warm(&mut client, &mut server);
    // Nobody else ends it now.
    signal_process(serving, "TERM");
    drop(client);
    drop(server);
    wait_for("the agent's end", || !std::path::Path::new(&format!("/proc/{serving}")).exists());
}
