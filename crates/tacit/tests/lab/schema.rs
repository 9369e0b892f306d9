//! Tests that the JSON output of `tacit show` and other commands conforms to the schemas in
//! docs/schema/. `tests/runs/schema.rs` tests the output that needs a program under `tacit run`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::certificates::Ca;
use crate::fits::assert_fits;
use crate::harness::{Lab, TACIT, connect, echo, free_port, wait_for};
use crate::peers::{is_reset, ping};
use crate::programs::{client_rule, server_rule};

const LATER: i64 = 4_000_000_000;

/// The words that `tacit show` takes.
fn subjects(lab: &Lab) -> Vec<String> {
    let help = lab.tacit(&["show", "--help"]);
    let words = help.lines().filter_map(|line| line.trim().strip_prefix("- ")?.split_once(':'));
    let states =
        ["setting-up", "waiting", "open", "stale", "rule", "component", "program", "connection"];
    let subjects: Vec<_> = words
        .map(|(word, _)| word.to_owned())
        .filter(|word| !states.contains(&word.as_str()))
        .collect();
    assert!(subjects.len() >= 10, "{help}");
    subjects
}

#[test]
fn every_display_conforms_to_its_schema() {
    let lab = Lab::new();
    let corp = Ca::new("corp CA");
    lab.write("corp.pem", corp.pem());
    lab.write("corp.crl", corp.crl(&[], LATER));
    let [clear, tls, elsewhere] = [(); 3].map(|()| free_port());
    let inward = server_rule("in", tls, &echo().to_string(), "");
    let more = format!(
        "[trust.corp]\nca = \"corp.pem\"\ncrl = \"corp.crl\"\nrevocation = \"hard\"\n\
         [[rule]]\nname = \"elsewhere\"\nlisten = \"127.0.0.1:{elsewhere}\"\n\
         connect = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nremote = \"10.9.8.0/24\"\npermit = true\n\
         [[rule]]\nname = \"absent\"\nlisten = \"unix:@absent-{elsewhere}\"\n\
         connect = \"127.0.0.1:1\"\npermit = true\n"
    );
    let agent = lab.agent(&(more + &inward + &client_rule("out", clear, tls, "")));
    let mut held = connect(("127.0.0.1", clear));
    assert!(ping(&mut held));
    assert!(is_reset(&mut connect(("127.0.0.1", elsewhere))));
    let is_refused = || !agent.show("refused")["refused"].as_array().unwrap().is_empty();
    wait_for("the refusal", is_refused);
    for what in subjects(&lab) {
        let shown = agent.ok(&["show", &what, "--json"]);
        assert_fits(&format!("show-{what}"), &shown);
    }
    lab.write(
        "p.toml",
        "version = 1\n[[rule]]\nname = \"a\"\ndirection = \"outbound\"\ndeny = true\n",
    );
    lab.write("f.toml", "policy = \"p.toml\"\n[[flow]]\nremote = \"10.0.0.1:1\"\nexpect = \"a\"\n");
    assert_fits("test", &lab.tacit(&["test", "f.toml", "--json"]));
}

/// The commands whose JSON the tests compare with a schema.
const COMMANDS: [&str; 20] = [
    "ca show",
    "check",
    "close",
    "confirm",
    "doctor",
    "drain",
    "explain",
    "import attls",
    "import stunnel",
    "link info",
    "link list",
    "link start",
    "link status",
    "link stop",
    "link trace",
    "project",
    "reload",
    "restart",
    "show",
    "test",
];

/// The commands with `--json`, apart from those of `workload`. The tests of links check theirs.
fn commands_with_json(lab: &Lab) -> Vec<String> {
    let verbs = |words: &[&str]| -> Vec<String> {
        let help = lab.tacit(&[words, &["--help"]].concat());
        let section = help.split_once("Commands:\n").map_or("", |(_, after)| after);
        let lines = section.lines().take_while(|line| line.starts_with("  "));
        let verbs = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        verbs.filter(|verb| !["", "help"].contains(verb)).map(str::to_owned).collect()
    };
    let mut found = Vec::new();
    for verb in verbs(&[]).into_iter().filter(|verb| verb != "workload") {
        let below = verbs(&[&verb]);
        let names = match below.is_empty() {
            true => vec![verb],
            false => below.iter().map(|under| format!("{verb} {under}")).collect(),
        };
        found.extend(names.into_iter().filter(|name| {
            let words: Vec<_> = name.split(' ').chain(["--help"]).collect();
            lab.tacit(&words).contains("--json")
        }));
    }
    found.sort_unstable();
    found
}

#[test]
fn every_command_with_json_conforms_to_its_schema() {
    let lab = Lab::new();
    assert_eq!(commands_with_json(&lab), COMMANDS);
    let [clear, tls] = [(); 2].map(|()| free_port());
    let rules = server_rule("in", tls, &echo().to_string(), "")
        + &client_rule("out", clear, tls, "")
        + "[[map.m]]\nsubject = \"*\"\nname = \"x\"\n\
           [[map.m]]\nsubject = \"CN=other\"\ndeny = true\n";
    let agent = lab.agent(&rules);
    let policy = agent.policy.to_str().unwrap();
    let fits = |schema: &str, words: &[&str]| {
        let output = lab.run(TACIT, &[words, &["--json"]].concat());
        assert!(!output.stdout.is_empty(), "{words:?}: {output:?}");
        assert_fits(schema, &String::from_utf8(output.stdout).unwrap());
    };
    fits("check", &["check", policy]);
    lab.write("wrong.toml", "version = 1\n[[rule]]\nname = 1\n");
    fits("check", &["check", "wrong.toml"]);
    for at in [format!("127.0.0.1:{tls}"), "127.0.0.1:1".to_owned()] {
        let flow = ["--listen", &at, "--remote", "10.0.0.1:1"];
        fits("explain", &[&["explain", "--policy", policy], &flow[..]].concat());
    }
    let peer = ["explain", "--policy", policy, "--peer", "localhost.pem"];
    fits("explain-peer", &[&peer[..], &["--rule", "out"]].concat());
    fits("explain-peer", &[&peer[..], &["--map", "m"]].concat());
    lab.write(
        "host.toml",
        "version = 1\n[host]\nunmatched = \"permit\"\n[[rule]]\nname = \"a\"\nfilter = \"permit\"\n\
         protocol = \"udp\"\n[[rule]]\nname = \"b\"\nfilter = \"deny\"\ndirection = \"inbound\"\n",
    );
    for packet in [
        "in eth0 gre 10.0.0.1 > 10.0.0.2",
        "out eth0 gre 10.0.0.1 > 10.0.0.2",
        "out lo gre 10.0.0.1 > 10.0.0.1",
    ] {
        fits("explain-packet", &["explain", "--policy", "host.toml", "--packet", packet]);
    }
    lab.write(
        "tunnel.toml",
        "version = 1\n[ike.branch]\npeer = \"192.0.2.1\"\npsk-file = \"psk\"\n\
         local-id = \"c.example\"\ninner = \"10.1.0.1\"\n[[rule]]\nname = \"a\"\n\
         direction = \"outbound\"\nremote = \"10.2.0.0/24\"\nipsec = { ike = \"branch\" }\n",
    );
    for ends in ["tcp 10.1.0.1:5 > 10.2.0.1:443", "tcp 10.1.0.9:5 > 10.2.0.1:443"] {
        let packet = format!("to-tunnel branch {ends}");
        fits("explain-packet", &["explain", "--policy", "tunnel.toml", "--packet", &packet]);
    }
    fits("ca-show", &["ca", "show"]);
    lab.write(
        "stunnel.conf",
        "[x]\naccept = 1\nconnect = 2\nclient = yes\nsocket = l:SO_LINGER=1\n",
    );
    fits("import", &["import", "stunnel", "stunnel.conf"]);
    lab.write("attls.conf", "TTLSRule r\n{\n Direction Inbound\n}\n");
    fits("import", &["import", "attls", "attls.conf"]);
    let fits = |verb: &str, words: &[&str]| {
        let output = agent.verb(&[&[verb], words, &["--json"]].concat());
        assert_fits(verb, &String::from_utf8(output.stdout).unwrap());
    };
    let mut held = connect(("127.0.0.1", clear));
    assert!(ping(&mut held));
    fits("reload", &[]);
    agent.write_policy(&(rules.replace("\"in\"", "\"inward\"") + "[agent]\nworkers = 1\n"));
    fits("reload", &[]);
    fits("confirm", &[]);
    fits("close", &["1", "4711"]);
    fits("restart", &[]);
    wait_for("the successor", || agent.log().matches(" serving ").count() == 2);
    fits("drain", &[]);
}

#[test]
fn reports_of_workloads_conform_to_their_schema() {
    let lab = Lab::new();
    let mut server = lab
        .command(TACIT)
        .args(["workload", "interactive", "server", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_fits("workload-server", &first);
    let first: serde_json::Value = serde_json::from_str(&first).unwrap();
    let to = first["listening"].as_str().unwrap();
    let client = ["workload", "interactive", "client", "--connect", to, "--seconds", "100ms"];
    let printed = lab.tacit(&[&client[..], &["--warm-up", "10ms", "--json", "report"]].concat());
    let report = std::fs::read_to_string(lab.path("report")).unwrap();
    assert_fits("workload", &report);
    lab.tacit(&[&client[..], &["--beside", "report", "--json", "second"]].concat());
    assert_fits("workload", &std::fs::read_to_string(lab.path("second")).unwrap());
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(!printed.is_empty());
}
