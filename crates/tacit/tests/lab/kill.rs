//! Tests what happens to connections and processes when a process of tacit is killed.

use std::io::Write;
use std::net::TcpStream;

use crate::harness::{Lab, connect, echo, free_port, signal_process, wait_for};
use crate::lane::{Ends, Lane, Received, read_some, read_to_end};
use crate::peers::ping;
use crate::restart::wait_for_successor;

/// Bytes on their way in both directions, none of them lost so far.
fn warm(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"ping").unwrap();
    assert_eq!(read_some(server, 4), b"ping");
    server.write_all(b"pong").unwrap();
    assert_eq!(read_some(client, 4), b"pong");
}

#[test]
fn plain_peers_of_a_killed_agent_see_a_reset() {
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
fn a_killed_peer_agent_resets_the_program() {
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
fn the_agent_continues_after_its_supervisor_was_killed() {
    let mut lane = Lane::permit();
    let Ends { mut client, mut server } = lane.open();
    let agent = &mut lane.agents[0];
    let serving = *agent.serving_pids().last().unwrap();
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    warm(&mut client, &mut server);
    let Ends { mut client, mut server } = lane.open();
    warm(&mut client, &mut server);
    // No other process ends it now.
    signal_process(serving, "TERM");
    drop(client);
    drop(server);
    wait_for("the agent's end", || !std::path::Path::new(&format!("/proc/{serving}")).exists());
}

#[test]
fn a_crashed_agent_is_started_again_and_a_killed_one_is_not() {
    let lab = Lab::new();
    let port = free_port();
    let mut agent = lab.agent(&format!(
        "[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         permit = true\n",
        echo()
    ));
    assert!(ping(&mut connect(("127.0.0.1", port))));
    let first = *agent.serving_pids().last().unwrap();
    signal_process(first, "ABRT");
    agent.wait_for_log(&format!("process {first}, was killed by signal 6"));
    wait_for("another agent", || agent.log().matches(" serving ").count() == 2);
    assert!(ping(&mut connect(("127.0.0.1", port))));
    let second = *agent.serving_pids().last().unwrap();
    assert_ne!(first, second);
    signal_process(second, "KILL");
    wait_for("the supervisor's end", || agent.child.try_wait().unwrap().is_some());
    assert_eq!(agent.log().matches(" serving ").count(), 2);
}

#[test]
fn an_agent_that_is_killed_while_its_predecessor_drains_is_started_again() {
    let mut lane = Lane::permit();
    let Ends { mut client, mut server } = lane.open();
    let first = lane.agents[0].serving_pids();
    lane.agents[0].ok(&["restart"]);
    let second = wait_for_successor(&lane.agents[0], &first);
    signal_process(second, "ABRT");
    let serving = |lane: &Lane, count: usize| {
        wait_for("another agent", || lane.agents[0].log().matches(" serving ").count() == count);
    };
    serving(&lane, 3);
    warm(&mut client, &mut server);
    let Ends { client: mut new_client, server: mut new_server } = lane.open();
    warm(&mut new_client, &mut new_server);
    let kill_newest =
        |lane: &Lane| signal_process(*lane.agents[0].serving_pids().last().unwrap(), "KILL");
    for count in 4..=7 {
        kill_newest(&lane);
        serving(&lane, count);
    }
    // The supervisor starts no more agents, and fails when the first agent has ended.
    kill_newest(&lane);
    wait_for("the last kill", || lane.agents[0].serving_pids() == first);
    warm(&mut client, &mut server);
    drop((client, server));
    let supervisor = &mut lane.agents[0].child;
    wait_for("the supervisor's end", || supervisor.try_wait().unwrap().is_some());
    assert_eq!(supervisor.wait().unwrap().code(), Some(1));
}
