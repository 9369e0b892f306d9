//! Tests `tacit show unix`: the UNIX sockets that programs of a run hold.

use serde_json::Value;

use crate::fits::assert_fits;
use crate::network::Network;

/// A server outside the run with a UNIX socket, and a program that holds sockets of each kind
/// until `go` exists. Its standard input is a socket from outside.
const PROGRAMS: &str = r#"
export XDG_RUNTIME_DIR=$PWD/scratch
cat >outside.py <<'P'
import os, socket, subprocess, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind("scratch/outside.sock")
server.listen()
ours, theirs = socket.socketpair()
run = subprocess.Popen(sys.argv[1:], stdin=theirs)
accepted, _ = server.accept()
run.wait()
P
cat >inside.py <<'P'
import os, socket, time
pair = socket.socketpair()
pair[0].sendall(b"12345")
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind("\0waiting")
listener.listen(7)
waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
waiting.connect("\0waiting")
datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
datagrams.bind("scratch/datagrams.sock")
client = socket.socket(socket.AF_UNIX)
client.connect("scratch/outside.sock")
open("scratch/done", "w").close()
while not os.path.exists("scratch/go"): time.sleep(0.05)
P
"#;

/// Runs the program, and shows the sockets while it lives.
const SHOW: &str = r#"
tacit_run="./tacit run --policy run.toml $RUN_OPTIONS --"
ordinary python3 outside.py timeout 60 $tacit_run python3 inside.py >scratch/out 2>scratch/err &
run=$!
until_true [ -e scratch/done ] || cat scratch/out scratch/err
control=$(ls -d $XDG_RUNTIME_DIR/tacit-run-*/agent.sock)
ordinary ./tacit show unix --control $control | head -1
ordinary ./tacit show unix --json --control $control
touch scratch/go; wait $run
"#;

#[test]
fn the_unix_sockets_of_a_run_are_listed_with_peers_queues_and_processes() {
    let said = Network::new(&[], PROGRAMS).ok(SHOW);
    let (title, json) = said.split_once('\n').unwrap();
    assert!(title.starts_with("RUN "), "{title}");
    assert_fits("show-unix", json);
    let shown: Value = serde_json::from_str(json).unwrap();
    assert_eq!(shown["incomplete"], serde_json::json!([]));
    let sockets = shown["sockets"].as_array().unwrap();
    let all = |condition: &dyn Fn(&Value) -> bool| {
        sockets.iter().filter(|socket| condition(socket)).collect::<Vec<_>>()
    };
    let one = |condition: &dyn Fn(&Value) -> bool| match all(condition).as_slice() {
        [one] => *one,
        other => panic!("{other:?} of {json}"),
    };
    let paired = one(&|socket| socket["receive-queue"] == 5);
    let sender = one(&|socket| socket["inode"] == paired["peer"]);
    assert_eq!((&sender["peer"], &sender["pids"]), (&paired["inode"], &paired["peer-pids"]));
    assert_eq!((&paired["kind"], &paired["state"]), (&"stream".into(), &"connected".into()));
    assert_eq!((&paired["run"], &paired["outside"]), (&"python3".into(), &false.into()));
    assert!(paired["program"].as_str().unwrap().contains("python3"), "{paired}");

    let listener = one(&|socket| socket["state"] == "listening");
    assert_eq!((&listener["name"], &listener["kind"]), (&"@waiting".into(), &"seqpacket".into()));
    assert_eq!((&listener["receive-queue"], &listener["send-queue"]), (&1.into(), &7.into()));

    let waiting = one(&|socket| socket["kind"] == "seqpacket" && socket["state"] == "connected");
    assert_eq!(waiting["peer"], Value::Null, "no program has accepted its connection");

    let datagrams = one(&|socket| socket["kind"] == "datagram");
    assert_eq!(datagrams["name"], "scratch/datagrams.sock");
    assert_eq!((&datagrams["state"], &datagrams["peer"]), (&"unconnected".into(), &Value::Null));

    // The server is outside, so its name is known, but not its process.
    let client = one(&|socket| socket["peer-name"] == "scratch/outside.sock");
    assert_eq!((&client["outside"], &client["peer-pids"]), (&false.into(), &serde_json::json!([])));
    let input = one(&|socket| socket["outside"] == true);
    assert_eq!((&input["kind"], &input["state"]), (&"stream".into(), &"connected".into()));
    // The pair, the listener and its client, datagrams, the client, and the standard input. The
    // helper and the agent have other UNIX sockets, which are not in the list.
    assert_eq!(sockets.len(), 7, "{json}");
}

#[test]
fn a_run_of_root_lists_no_sockets_of_tacit() {
    let as_root = SHOW.replace("ordinary ", "");
    let said = Network::new(&[], PROGRAMS).ok(&as_root);
    let (_, json) = said.split_once('\n').unwrap();
    let shown: Value = serde_json::from_str(json).unwrap();
    let sockets = shown["sockets"].as_array().unwrap();
    assert_eq!(sockets.len(), 7, "{json}");
}
