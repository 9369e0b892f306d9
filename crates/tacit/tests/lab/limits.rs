//! Tests the limits of the agent: if a client exceeds a limit, this client waits or is refused. The
//! agent still serves other clients.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::harness::{Agent, Lab, TACIT, connect, echo, free_port, policy, wait_for};
use crate::peers::{TlsClient, connect_from, is_reset, ping};

/// Starts an agent that may open so many descriptors.
fn with_descriptors(lab: &Lab, rules: &str, descriptors: u32) -> Agent {
    lab.agent_within(rules, &format!("-n {descriptors}"))
}

fn permit(port: u16, more: &str) -> String {
    format!(
        "{more}[[rule]]\nname = \"r\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         permit = true\n",
        echo()
    )
}

/// So many connections work, one more waits, and gets its turn when one ends.
fn one_more_waits(port: u16, places: usize) {
    let mut held: Vec<_> = (0..places).map(|_| connect(("127.0.0.1", port))).collect();
    assert!(held.iter_mut().all(ping));
    let mut late = connect(("127.0.0.1", port));
    let waits = Duration::from_millis(200);
    late.set_read_timeout(Some(waits)).unwrap();
    assert!(!ping(&mut late), "it waits in the kernel's queue");
    assert!(held.iter_mut().all(ping), "open connections continue");
    held.pop();
    late.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    let mut byte = [0];
    std::io::Read::read_exact(&mut late, &mut byte).unwrap();
    assert_eq!(byte, *b"p", "what it sent meanwhile has arrived");
}

#[test]
fn connections_over_the_limit_wait() {
    let lab = Lab::new();
    let port = free_port();
    let _agent = lab.agent(&permit(port, "[limits]\nconnections = 3\n"));
    one_more_waits(port, 3);
}

#[test]
fn connections_over_the_limit_of_open_files_wait() {
    let lab = Lab::new();
    let port = free_port();
    let agent = with_descriptors(&lab, &permit(port, ""), 262);
    let limits = agent.show("limits");
    let places = limits[0]["max"].as_u64().unwrap();
    assert!(agent.log().contains(" warn few-descriptors connections=3 "), "{}", agent.log());
    assert_eq!(places, 3, "what is left of 262 after the reserve, two for each: {limits}");
    one_more_waits(port, 3);
}

#[test]
fn an_agent_without_descriptors_for_listeners_reports_it_or_serves() {
    let lab = Lab::new();
    let port = free_port();
    let agent = with_descriptors(&lab, &permit(port, ""), 40);
    one_more_waits(port, 1);
    // Descriptors that others take: the agent pauses, then continues.
    let crowd: Vec<_> =
        (0..60).map(|_| std::os::unix::net::UnixStream::connect(&agent.control).unwrap()).collect();
    wait_for("the shortage", || agent.log().contains("Too many open files"));
    drop(crowd);
    // The agent closes its side a little later.
    wait_for("room", || ping(&mut connect(("127.0.0.1", port))));
    assert!(agent.verb(&["show", "limits"]).status.success());
}

#[test]
fn stalled_handshakes_of_one_source_do_not_block_others() {
    let lab = Lab::new();
    let first = free_port();
    let second = free_port();
    let rule = |name: &str, port: u16, more: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
             tls = {{ role = \"server\", identity = \"localhost\", \
             client-cert = \"none\"{more} }}\n",
            echo()
        )
    };
    let agent = lab.agent(&format!(
        "[limits]\nhandshakes = 16\nhandshakes-per-rule = 12\nhandshakes-per-source = 4\n{}{}",
        rule("one", first, ", handshake-timeout = \"30s\""),
        rule("two", second, "")
    ));
    let to = SocketAddr::from(([127, 0, 0, 1], first));
    let used = || {
        let limits = agent.show("limits");
        let all = limits.as_array().unwrap();
        all.iter().find(|limit| limit["name"] == "handshakes").unwrap()["used"].as_u64().unwrap()
    };
    let flood: Vec<_> = (0..40).map(|_| connect_from("127.0.0.2", to)).collect();
    wait_for("the flood", || agent.show("connections").as_array().unwrap().len() == 40);
    assert_eq!(used(), 4, "one source has no more than its limit");
    assert_eq!(TlsClient::run(&lab, first, &serde_json::json!({}))["reply"], "ping");

    // Three sources take the rule's places but for its reserve; a fresh one is served there too.
    let more: Vec<_> = ["127.0.0.3", "127.0.0.4", "127.0.0.5"]
        .iter()
        .flat_map(|source| (0..10).map(|_| connect_from(source, to)))
        .collect();
    wait_for("the second flood", || used() == 9);
    for port in [first, second] {
        assert_eq!(TlsClient::run(&lab, port, &serde_json::json!({}))["reply"], "ping");
    }

    // Who leaves makes room.
    drop((flood, more));
    wait_for("the end of the flood", || used() == 0);
    assert_eq!(TlsClient::run(&lab, first, &serde_json::json!({}))["reply"], "ping");
}

#[test]
fn sources_and_rules_have_limits_of_connections() {
    let lab = Lab::new();
    let port = free_port();
    let limits = "[limits]\nconnections-per-source = 2\nconnections-per-rule = 3\n";
    let agent = lab.agent(&permit(port, limits));
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let mut first: Vec<_> = (0..2).map(|_| connect_from("127.0.0.2", to)).collect();
    assert!(first.iter_mut().all(ping));
    assert!(is_reset(&mut connect_from("127.0.0.2", to)), "a third connection of this source");
    let mut other = connect_from("127.0.0.3", to);
    assert!(ping(&mut other));
    assert!(is_reset(&mut connect_from("127.0.0.4", to)), "a fourth connection of this rule");
    assert!(first.iter_mut().all(ping), "open connections continue");
    let refused = agent.ok(&["show", "refused"]);
    for text in ["limit", "raise `connections-per-source`", "127.0.0.4"] {
        assert!(refused.contains(text), "{text}: {refused}");
    }
    agent.wait_for_log(" warn denied ");
    let audited = || agent.audit().matches("\"why\":\"limit\"").count();
    wait_for("both audit lines", || audited() >= 2);
    assert_eq!(audited(), 2, "{}", agent.audit());
    drop(first);
    wait_for("room", || ping(&mut connect_from("127.0.0.2", to)));
}

#[test]
fn an_idle_connection_is_closed_if_the_rule_has_idle() {
    let lab = Lab::new();
    let [idle, patient] = [free_port(), free_port()];
    let rules = permit(idle, "") + &permit(patient, "").replace("\"r\"", "\"patient\"");
    let rules = rules.replacen("permit = true", "permit = true\nidle = \"2s\"", 1);
    let agent = lab.agent(&rules);
    let mut silent = connect(("127.0.0.1", idle));
    let mut busy = connect(("127.0.0.1", idle));
    let mut other = connect(("127.0.0.1", patient));
    assert!(ping(&mut silent) && ping(&mut other));
    let began = Instant::now();
    while !agent
        .log()
        .contains("end=\"the connection reached the `idle` time of its rule, so tacit closed it\"")
    {
        assert!(ping(&mut busy), "it was never idle for as long as the limit");
        assert!(began.elapsed() < Duration::from_secs(20), "{}", agent.log());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(began.elapsed() > Duration::from_millis(1_500), "{:?}", began.elapsed());
    assert!(is_reset(&mut silent));
    assert!(ping(&mut busy) && ping(&mut other), "the others continue");
}

#[test]
fn idle_is_rejected_in_rules_without_connections() {
    let lab = Lab::new();
    for (rule, at) in [
        ("direction = \"outbound\"\nremote = \"10.0.0.1\"\ndeny = true", "a deny"),
        (
            "direction = \"outbound\"\nprotocol = \"udp\"\nremote = \"10.0.0.1\"\npermit = true",
            "datagrams",
        ),
    ] {
        lab.write("p.toml", policy(&format!("[[rule]]\nname = \"r\"\n{rule}\nidle = \"1h\"\n")));
        let output = lab.run(TACIT, &["check", "p.toml"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            said.contains("`idle` applies only to TCP connections that tacit relays"),
            "{at}: {said}"
        );
    }
}
