//! Tests `tacit top` on a terminal and without one.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use crate::harness::{Agent, Lab, TACIT, connect, echo, free_port, text_of};
use crate::peers::ping;

fn agent(lab: &Lab) -> (Agent, u16) {
    let port = free_port();
    let agent = lab.agent(&format!(
        "[[rule]]\nname = \"front-door\"\nlisten = \"127.0.0.1:{port}\"\nconnect = \"{}\"\n\
         permit = true\n",
        echo()
    ));
    (agent, port)
}

#[test]
fn one_frame_is_text_for_a_small_screen() {
    let lab = Lab::new();
    let (agent, port) = agent(&lab);
    let mut stream = connect(("127.0.0.1", port));
    assert!(ping(&mut stream));
    let frame = agent.ok(&["top", "--once", "--interval", "300ms"]);
    assert!(frame.lines().count() <= 24, "{frame}");
    assert!(frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
    assert!(!frame.contains('\x1b'), "{frame}");
    let local = stream.local_addr().unwrap().to_string();
    for words in
        ["open connections 1", "CPU%  general", "handshake", "front-door", &local, "q quit"]
    {
        assert!(frame.contains(words), "{words}: {frame}");
    }
}

#[test]
fn without_a_terminal_or_an_agent_it_says_so() {
    let lab = Lab::new();
    let (agent, _) = agent(&lab);
    let output = agent.verb(&["top"]);
    assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
    assert!(text_of(&output).contains("tacit top --once"), "{}", text_of(&output));
    for arguments in [&["top", "--once"][..], &["top", "--control", "absent.sock", "--once"]] {
        let output = lab.run(TACIT, arguments);
        assert_eq!(output.status.code(), Some(1), "{}", text_of(&output));
        assert!(text_of(&output).contains("no agent answers"), "{}", text_of(&output));
    }
    let output = lab.run(TACIT, &["top", "--interval", "1ms"]);
    assert_eq!(output.status.code(), Some(64), "{}", text_of(&output));
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    let lab = Lab::new();
    let (agent, _) = agent(&lab);
    lab.write("top.py", include_str!("../peers/top.py"));
    let control = agent.control.to_str().unwrap();
    for how in ["quit", "interrupt", "terminate"] {
        let output = lab.run("python3", &["top.py", TACIT, control, how]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(
            said,
            "drawn\nsorted\nresized\nstatus 0 restored\n",
            "{how}: {}",
            text_of(&output)
        );
    }
}

#[test]
fn the_end_of_an_agent_is_shown_and_the_last_figures_stay() {
    let lab = Lab::new();
    let (agent, _) = agent(&lab);
    lab.write("top.py", include_str!("../peers/top.py"));
    let mut python = lab
        .command("python3")
        .args(["top.py", TACIT, agent.control.to_str().unwrap(), "lost"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(python.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    assert_eq!([next(), next(), next()], ["drawn", "sorted", "resized"]);
    drop(agent);
    python.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!((&*next(), &*next()), ("told", "status 0 restored"));
    assert!(python.wait().unwrap().success());
}
