//! Tests what `tacit show` and the audit log report about tunnels.

use serde_json::Value;

use crate::fits::assert_fits;
use crate::{Scenario, WEB};

/// An agent with an audit log, and a program that has reached the server and waits.
const AUDITED: &str = "
    sed -i 's/^inner.*/&\\nlifetime-bytes = \"100GiB\"\\nlifetime-packets = 1000000/' \\
        private/run.toml
    ordinary exec ./tacit agent --policy private/run.toml --control scratch/control \\
        --enrol scratch/enrol --audit scratch/audit 2>agent.log &
    until_true [ -e scratch/enrol ]
    waiting() {
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1/; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' >/dev/null & program=$!
        until_true [ -e scratch/up ]
    }
    ended() { touch scratch/end; wait $program; }
    has() { grep -q \"$1\" scratch/audit; }
";

fn scenario(steps: &str) -> String {
    let steps = format!("{AUDITED}\n{steps}");
    Scenario { rules: WEB, inner: "\"10.1.0.1\"", steps: &steps }.output()
}

#[test]
fn displays_have_every_fact_of_a_tunnel() {
    let text = scenario(
        "waiting
        control show ike --json | tr -d '\\n'; echo
        control show sa --json | tr -d '\\n'; echo
        control show ike --wide; control show sa --wide; control show sa; control show ike
        ended",
    );
    let mut lines = text.lines();
    let [ike, sa] = [(); 2].map(|()| lines.next().unwrap());
    assert_fits("show-ike", ike);
    assert_fits("show-sa", sa);
    let [ike, sa]: [Value; 2] = [ike, sa].map(|line| serde_json::from_str(line).unwrap());
    let one = &ike["connections"][0];
    assert_eq!((&one["role"], &one["behind-nat"]), (&"initiator".into(), &false.into()));
    assert_eq!(one["local-identity"], "branch.example");
    assert_eq!(one["expected-identity"], "gw.example");
    assert_eq!(one["auth"]["method"], "shared-key");
    assert_eq!(one["outer-local"], "10.99.0.1:4500");
    assert_eq!(one["messages"]["fragmentation"], true);
    assert_eq!(one["messages"]["next-request"], 2, "IKE_SA_INIT and IKE_AUTH");
    assert_eq!(one["spis"].as_array().unwrap().len(), 2);
    let hours = 3600..=4 * 3600;
    for limit in ["rekey-in-s", "expires-in-s"] {
        assert!(hours.contains(&one["lifetime"][limit].as_i64().unwrap()), "{text}");
    }
    let one = &sa["tunnels"][0];
    assert_eq!(one["proposal"], "aes256gcm16");
    assert_eq!(one["local"], serde_json::json!(["10.1.0.1"]));
    assert_eq!(one["remote"], serde_json::json!(["10.2.0.0/24", "fd00:2::/64"]));
    assert_eq!((&one["is-sending"], &one["is-ending"]), (&true.into(), &false.into()));
    assert_eq!((&one["replay-window"], &one["rekeyed"]), (&8192.into(), &0.into()));
    let most = ["inbound", "outbound"].map(|way| one[way]["packets"].as_i64().unwrap());
    let [soft, hard] = ["soft", "hard"].map(|limit| one[limit]["packets"].as_i64().unwrap());
    let used = *most.iter().max().unwrap();
    assert_eq!((soft, hard), (900_000 - used, 1_000_000 - used), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for fact in [
        "local identity branch.example",
        "NAT ",
        "sequence numbers 32 bits",
        "remote selectors 10.2.0.0/24,fd00:2::/64",
        "local 10.99.0.1:4500",
        "bash branch ike sending ",
    ] {
        assert!(words.contains(fact), "{fact}: {text}");
    }
    let is_narrow = |line: &str| line.len() <= 120;
    let tables: Vec<&str> = text.lines().filter(|line| line.contains("branch  10.99")).collect();
    assert!(!tables.is_empty() && tables.into_iter().all(is_narrow), "{text}");
}

#[test]
fn statistics_and_records_of_intervals_have_the_packets_of_tunnels() {
    let text = scenario(
        "are_recorded() { [ $(wc -l <records) -ge 2 ]; }
        waiting
        control show stats --json | tr -d '\\n'; echo
        ordinary exec ./tacit show stats --interval 1 --json --control scratch/control >records &
        records=$!
        until_true are_recorded
        kill $records
        head -n 2 records
        control show engines --json | tr -d '\\n'; echo
        control show stats; control show engines
        ended",
    );
    let mut lines = text.lines();
    let [stats, first, second, engines] = [(); 4].map(|()| lines.next().unwrap());
    for record in [stats, first, second] {
        assert_fits("show-stats", record);
    }
    assert_fits("show-engines", engines);
    let [stats, first, second, engines]: [Value; 4] =
        [stats, first, second, engines].map(|line| serde_json::from_str(line).unwrap());
    let general = &stats["packets"][4];
    assert_eq!((&general["by"], &general["ip-version"]), (&"general".into(), &4.into()), "{text}");
    for count in ["packets-sent", "bytes-sent", "packets-received", "bytes-received"] {
        assert!(general[count].as_u64().unwrap() >= 3, "{count}: {text}");
    }
    assert!(stats["udp"][0]["sent"].as_u64().unwrap() >= 4, "{text}");
    assert_eq!(first["until"], second["since"], "records follow each other");
    assert_eq!(second["packets"][4]["packets-sent"], 0, "{text}");
    let packets = &engines["packets"];
    assert_eq!(packets["threads"][0]["thread"], "tacit-packet");
    assert_eq!(packets["threads"][0]["by"], "general");
    assert!(packets["queue-bytes-max"].as_u64().unwrap() > 0);
    let moved = "the thread tacit-receive took over from the thread tacit-packet 0 times";
    for part in ["BY", "general", "fragments: 0 received", "tacit-packet", moved] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn packets_of_tunnels_are_those_of_an_engine_if_the_policy_has_one() {
    if std::thread::available_parallelism().unwrap().get() == 1 {
        println!("skipped: an engine needs a CPU that is not the only one");
        return;
    }
    let engine = "
        cpu=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | sed 's/.*[,-]//')
        printf '[engine]\\ncpus = \"%s\"\\nspill = false\\n' $cpu >>private/run.toml
        echo $cpu";
    let steps = "
        waiting
        control show stats --json | tr -d '\\n'; echo
        control show engines --json | tr -d '\\n'; echo
        ended";
    let steps = format!("{AUDITED}\n{steps}");
    let steps = format!("{engine}\n{steps}");
    let text = Scenario { rules: WEB, inner: "\"10.1.0.1\"", steps: &steps }.output();
    let mut lines = text.lines();
    let [cpu, stats, engines] = [(); 3].map(|()| lines.next().unwrap());
    let [cpu, stats, engines]: [Value; 3] =
        [cpu, stats, engines].map(|line| serde_json::from_str(line).unwrap());
    let rows = |by: &str| {
        let rows = stats["packets"].as_array().unwrap().iter().filter(|row| row["by"] == by);
        rows.map(|row| row["packets-sent"].as_u64().unwrap()).sum::<u64>()
    };
    assert!(rows("engine") > 0, "{text}");
    assert_eq!((rows("general"), rows("spilled")), (0, 0), "{text}");
    let threads = engines["packets"]["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 1, "without `spill` there is no other thread: {text}");
    assert_eq!((&threads[0]["by"], &threads[0]["cpu"]), (&"engine".into(), &cpu), "{text}");
    assert_eq!(threads[0]["class"], "normal");
}

#[test]
fn costs_have_the_cpu_time_of_tunnels() {
    let text = scenario(
        "enrolled bash -c 'for round in 1 2 3; do
                curl -sS -m 60 http://10.2.0.1/big >/dev/null; done; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' >/dev/null & program=$!
        until_true [ -e scratch/up ]
        sleep 2
        control show costs --json
        ended",
    );
    assert_fits("show-costs", &text);
    let costs: Value = serde_json::from_str(&text).unwrap();
    let rows = costs["rules"].as_array().unwrap();
    let cpu = |kind: &str, rule: Option<&str>, component: &str, place: &str| {
        let is_it = |row: &&Value| row["kind"] == kind && row["rule"].as_str() == rule;
        let row = rows.iter().find(is_it).unwrap_or_else(|| panic!("{kind} {rule:?}: {text}"));
        row["cpu-us"][component][place].as_f64().unwrap()
    };
    assert!(cpu("agent", None, "accept", "general") > 0.0, "{text}");
    for component in ["receive", "seal", "open", "send"] {
        let of_rule = cpu("packets", Some("web"), component, "eligible");
        let of_none = cpu("packets", None, component, "eligible");
        assert!(of_rule > of_none, "{component}: {text}");
    }
    let share = costs["uncaptured-percent"].as_f64().unwrap();
    assert!(share < 50.0, "most of the work is that of tunnels: {text}");
}

#[test]
fn the_audit_log_has_tunnels_new_keys_and_ends() {
    let text = scenario(
        "waiting
        swan --rekey --child net >rekey 2>&1 || fail rekey
        until_true has tunnel-rekeyed
        swan --rekey --ike tacit >rekey 2>&1 || fail rekey
        until_true has ike-rekeyed
        ended
        until_true has ike-closed
        cat scratch/audit",
    );
    let line = |event: &str| {
        let found = text.lines().find(|line| line.contains(event));
        found.unwrap_or_else(|| panic!("{event}: {text}")).to_owned()
    };
    let established = line("ike-established");
    for fact in [
        "gw.example",
        "branch.example",
        "shared-key",
        "aes256gcm16-prfsha384-x25519",
        "10.99.0.2:4500",
    ] {
        assert!(established.contains(fact), "{fact}: {established}");
    }
    let tunnel = line("tunnel-established");
    for fact in ["aes256gcm16", "10.1.0.1", "10.2.0.0/24"] {
        assert!(tunnel.contains(fact), "{fact}: {tunnel}");
    }
    assert!(line("ike-closed").contains("the run has ended"), "{text}");
    assert!(!text.contains("a shared key of both sides"), "{text}");
}

#[test]
fn the_audit_log_has_failures_and_dropped_packets() {
    let text = scenario(
        "echo 'another key' >private/psk
        control reload >/dev/null || fail reload
        enrolled bash -c 'curl -sS -m 1 http://10.2.0.1/
            while [ ! -e scratch/again ]; do sleep 0.05; done
            curl -sS -m 0.3 http://10.2.0.1/' >/dev/null & program=$!
        failed() { control show ike | grep -q ' failed '; }
        until_true failed; until_true has ike-failed
        grep -c ike-failed scratch/audit
        touch scratch/again; wait $program
        until_true has 'tunnel-packet-dropped.*10.2.0.1:80'
        cat scratch/audit",
    );
    assert!(text.starts_with("1\n"), "one attempt, one record: {text}");
    let has = |parts: &[&str]| {
        let fits = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(text.lines().any(fits), "{parts:?}: {text}");
    };
    has(&["ike-failed", "AUTHENTICATION_FAILED", "both", "compare the identities"]);
    has(&["tunnel-packet-dropped", "10.2.0.1:80", "tcp"]);
    assert!(!text.contains("another key"), "{text}");
}

#[test]
fn packets_that_no_tunnel_takes_are_refused_and_counted_by_tunnel() {
    let text = scenario(
        "echo 'another key' >private/psk
        control reload >/dev/null || fail reload
        enrolled bash -c 'curl -sS -m 30 http://10.2.0.1/ >scratch/said 2>&1; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' & program=$!
        until_true [ -e scratch/up ]
        grep -o 'connect to.*' scratch/said
        counted() { control show ike --json | grep -q '\"refused\": *[1-9]'; }
        until_true counted
        control show ike --json | tr -d '\n'; echo
        control show refused --json | tr -d '\n'; echo
        control show metrics | grep 'tacit_refused_total.*no-tunnel'
        control show metrics | grep 'tacit_tunnel_refused_total{'
        until_true grep -q 'denied.*no-tunnel' agent.log
        grep 'denied.*no-tunnel' agent.log | head -n 1
        ended; clear",
    );
    let lines: Vec<&str> = text.lines().collect();
    let [error, ike, refused, metric, of_peer, logged, wire] = lines[..] else { panic!("{text}") };
    assert!(error.contains("10.2.0.1 port 80"), "{text}");
    assert_fits("show-ike", ike);
    assert_fits("show-refused", refused);
    let [ike, refused]: [Value; 2] = [ike, refused].map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(ike["connections"][0]["state"], "failed", "{text}");
    let one = &refused["refused"][0];
    assert_eq!((&one["why"], &one["kind"]), (&"no-tunnel".into(), &"connection".into()));
    assert_eq!((&one["destination"], &one["rule"]), (&"10.2.0.1:80".into(), &"web".into()));
    let next = one["next"].as_str().unwrap();
    assert!(next.contains("[ike.branch] failed") && next.contains("AUTHENTICATION_FAILED"));
    assert!(!metric.ends_with(" 0"), "{text}");
    let count = of_peer.strip_prefix("tacit_tunnel_refused_total{ike=\"branch\"} ").unwrap();
    assert_ne!(count, "0", "{text}");
    assert!(logged.contains("destination=10.2.0.1:80") && logged.contains("rule=web"), "{text}");
    assert_eq!(wire, "only UDP 4500");
}

#[test]
fn explain_and_trace_find_the_agent_of_the_only_run() {
    let steps = "started bash -c 'curl -sS -m 20 http://10.2.0.1/ >/dev/null; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done'
        until_true [ -e scratch/up ]
        ordinary ./tacit explain --control --direction outbound --remote 10.2.0.1:80 |
            grep -o 'through a tunnel to the peer .ike.branch.' | head -n 1
        ordinary ./tacit trace --ike branch --keylog scratch/keys --for 1s >/dev/null 2>traced
        [ -s scratch/keys ] && echo keys || cat traced
        touch scratch/end";
    let text = Scenario { rules: WEB, inner: "\"10.1.0.1\"", steps }.output();
    assert_eq!(text, "through a tunnel to the peer [ike.branch]\nkeys\n");
}
