//! Tests `tacit drain`, and how an agent ends.

use std::net::TcpStream;

use crate::harness::{Lab, connect, echo, free_port, wait_for};
use crate::peers::{is_reset, ping};

fn rules(port: u16) -> String {
    let app = echo();
    format!(
        "[[rule]]\nname = \"tcp\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{app}\"\n\
         permit = true\n"
    )
}

#[test]
fn a_drain_ends_with_the_last_connection() {
    let lab = Lab::new();
    let port = free_port();
    let mut agent = lab.agent(&rules(port));
    let mut first = connect(("127.0.0.1", port));
    let mut second = connect(("127.0.0.1", port));
    assert!(ping(&mut first) && ping(&mut second));
    assert!(agent.ok(&["drain"]).contains("2 open connections"));
    wait_for("refusal", || TcpStream::connect(("127.0.0.1", port)).is_err());
    drop(first);
    assert!(ping(&mut second), "open connections are served to their end");
    assert!(agent.child.try_wait().unwrap().is_none());
    drop(second);
    assert!(agent.child.wait().unwrap().success());
    assert!(agent.log().contains(" ended connections-cut=0"), "{}", agent.log());
}

#[test]
fn a_drain_with_a_timeout_resets_what_is_left() {
    let lab = Lab::new();
    let port = free_port();
    let mut agent = lab.agent(&rules(port));
    let mut held = connect(("127.0.0.1", port));
    assert!(ping(&mut held));
    agent.ok(&["drain", "--timeout", "200ms"]);
    assert!(is_reset(&mut held));
    assert!(agent.child.wait().unwrap().success());
    assert!(agent.log().contains(" ended connections-cut=1"), "{}", agent.log());
}

#[test]
fn an_end_by_signal_resets_open_connections_and_is_logged() {
    let lab = Lab::new();
    let port = free_port();
    let mut agent = lab.agent(&rules(port));
    let mut held = connect(("127.0.0.1", port));
    assert!(ping(&mut held));
    agent.signal("TERM");
    assert!(is_reset(&mut held), "a reset does not look like a close");
    assert!(agent.child.wait().unwrap().success());
    assert!(agent.log().contains(" ended connections-cut=1"), "{}", agent.log());
}

#[test]
fn a_restart_and_a_signal_at_the_same_time_end_all_agents() {
    let lab = Lab::new();
    let mut agent = lab.agent(&rules(free_port()));
    agent.signal("USR2");
    agent.signal("TERM");
    assert!(agent.child.wait().unwrap().success(), "{}", agent.log());
    assert!(!agent.control.exists());
}
