//! Tests the datagrams of runs: both ends see the real addresses, programs get the real errors, and
//! no datagram is lost.

use crate::comparison::Comparison;
use crate::network::Network;

/// A further network behind the wire: 203.0.113.7, and a narrow way to 198.51.100.0/24.
const FAR: &str = r#"
start unshare -n sleep 600; far=$!
# It is in its own network a moment after it has begun.
apart() { [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
ip link set v1 netns $far
in_far() { nsenter -t $far -n "$@"; }
in_far ip link set lo up
in_far ip link set v1 up
in_far ip addr add 192.168.77.2/24 dev v1
in_far ip addr add 203.0.113.7/32 dev lo
in_far ip link add narrow type veth peer name end
in_far ip link set end up
in_far ip link set narrow mtu 1280
in_far ip link set narrow up
in_far ip addr add 198.51.100.1/24 dev narrow
in_far ip neigh add 198.51.100.7 lladdr 02:00:00:00:00:07 dev narrow
in_far ip route add unreachable 198.51.101.0/24
in_far sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
until_true ping -c 1 -W 1 192.168.77.2 >/dev/null
until_true sh -c 'ping -M dont -s 1400 -c 1 -W 1 198.51.100.1 >/dev/null'
"#;

const SERVERS: &str = r#"
start python3 "$PEERS/datagrams.py" serve 10.9.8.7 5000 server.log >/dev/null
start python3 "$PEERS/datagrams.py" serve 10.9.8.8 5000 >/dev/null
# Waits until so many servers are there.
await_udp() { until_true sh -c "[ \$(ss -Hlun 'sport = 5000' | wc -l) = $1 ]"; }
await_udp 2
client() { run python3 "$PEERS/datagrams.py" "$@"; }
"#;

const RULES: &str = r#"
[[rule]]
name = "but"
direction = "outbound"
protocol = "udp"
remote = "10.9.8.7"
remote-ports = 5002
deny = true
[[rule]]
name = "echo"
direction = "outbound"
protocol = "udp"
remote = ["10.9.8.0/24", "2001:db8::/64", "203.0.113.7", "198.51.100.0/23", "255.255.255.255"]
remote-ports = ["5000-5009"]
permit = true
log = true
"#;

fn network(setup: &str) -> Network {
    Network::new(&[], &format!("{SERVERS}\n{setup}")).with_rules(RULES)
}

pub const DATAGRAMS: Comparison = Comparison {
    servers: &[SERVERS],
    rules: RULES,
    script: r#"
        client() { python3 "$PEERS/datagrams.py" "$@"; }
        client see 10.9.8.7 5000
        client unconnected 10.9.8.7 5000 10.9.8.8 5000 10.9.8.7 5000
        client rounds 10.9.8.7 5000 50 10 1400 9000
        client many 5000 50 10.9.8.7 10.9.8.8
        client segments 10.9.8.7 5000
        client error 10.9.8.7 5001 100"#,
    wanted: &[
        "seen as 10.9.8.7\npeer 10.9.8.7 5000\n",
        "9000 bytes: 0 lost\n1000 of 1000\n1200 1200 1200 1200 1200\nECONNREFUSED\nstatus 0",
    ],
    ..Comparison::NONE
};

#[test]
fn clients_of_datagrams_see_no_difference() {
    DATAGRAMS.compare();
}

fn expect(network: &Network, script: &str, wanted: &str) {
    let said = network.ok(script);
    assert_eq!(said.trim_end(), wanted);
}

#[test]
fn both_ends_see_true_addresses() {
    expect(
        &network(""),
        "client see 10.9.8.7 5000",
        "seen as 10.9.8.7\npeer 10.9.8.7 5000\nfrom 10.9.8.7 5000",
    );
}

#[test]
fn an_unconnected_client_receives_from_each_server() {
    expect(
        &network(""),
        "client unconnected 10.9.8.7 5000 10.9.8.8 5000 10.9.8.7 5000",
        "time? from 10.9.8.7 5000\ntime? from 10.9.8.8 5000\ntime? from 10.9.8.7 5000",
    );
}

/// A server that answers from another socket: its address, where its answers come from, and a
/// client's way to ask it.
fn transfer(server: &str, client: &str) -> String {
    format!(
        "start python3 \"$PEERS/datagrams.py\" transfers {server}\n\
         until_true sh -c \"ss -Hlun 'sport = 5005' | grep -q .\"\n\
         client transfer {client}"
    )
}

#[test]
fn answers_from_another_port_reach_a_client_that_is_not_connected() {
    let network = network("");
    // Its port is in no rule, as those of TFTP servers.
    let script = transfer("10.9.8.7 5005 10.9.8.7", "10.9.8.7 5005");
    expect(&network, &script, "block from 10.9.8.7 another port\nacknowledged: the same client");
    expect(&network, &format!("{script} connected"), "nothing");
    // A rule denies what comes from there.
    let denied = transfer("10.9.8.7 5005 10.9.8.7 5002", "10.9.8.7 5005");
    expect(&network, &denied, "nothing");
}

#[test]
fn answers_from_another_address_reach_a_client_only_where_the_rule_says_so() {
    let script = transfer("10.9.8.7 5005 10.9.8.8", "10.9.8.7 5005");
    expect(&network(""), &script, "nothing");
    let rules = RULES.replace("log = true", "answers = \"any\"\nlog = true");
    expect(
        &Network::new(&[], SERVERS).with_rules(&rules),
        &script,
        "block from 10.9.8.8 another port\nacknowledged: the same client",
    );
}

#[test]
fn back_to_back_requests_are_all_answered() {
    let far = format!(
        "{FAR}\nstart nsenter -t $far -n python3 \"$PEERS/datagrams.py\" serve 203.0.113.7 5000 \\
             >/dev/null
         until_true sh -c \"nsenter -t $far -n ss -Hlun 'sport = 5000' | grep -q .\""
    );
    let wanted = "1400 bytes: 0 lost\n1600 bytes: 0 lost\n9000 bytes: 0 lost";
    // Over a wire that carries 1500 bytes, the longer ones in fragments; and over none.
    for address in ["203.0.113.7", "10.9.8.7"] {
        let script = format!("client rounds {address} 5000 100 1400 1600 9000");
        expect(&network(&far), &script, wanted);
    }
}

#[test]
fn many_clients_at_once_are_all_answered() {
    let six =
        r#"start python3 "$PEERS/datagrams.py" serve 2001:db8::7 5000 >/dev/null; await_udp 3"#;
    expect(&network(six).with_ipv6(), "client many 5000 200 10.9.8.7 2001:db8::7", "4000 of 4000");
}

#[test]
fn a_burst_arrives_whole_and_in_order() {
    expect(&network(""), "client burst 10.9.8.7 5000 200", "in order");
}

#[test]
fn segments_of_one_send_arrive_as_datagrams() {
    expect(&network(""), "client segments 10.9.8.7 5000", "1200 1200 1200 1200 1200");
}

#[test]
fn icmp_errors_reach_the_program() {
    let network = network(FAR);
    // No program has the port; the policy denies at run time, and from the start.
    for port in [5001, 5002, 4999] {
        expect(&network, &format!("client error 10.9.8.7 {port} 100"), "ECONNREFUSED");
    }
    expect(&network, "client error 198.51.100.7 5000 1400", "EMSGSIZE\nmtu 1280");
    expect(&network, "client error 198.51.101.7 5000 100", "EHOSTUNREACH");
    let six = network.with_ipv6();
    for port in [5001, 4999] {
        expect(&six, &format!("client error 2001:db8::7 {port} 100"), "ECONNREFUSED");
    }
}

#[test]
fn what_a_program_sends_last_arrives() {
    let script = "for try in 1 2 3; do
             run python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for n in range(10): s.sendto(b\"last\", (\"10.9.8.7\", 5000))'
         done
         until_true sh -c '[ $(grep -c last server.log) = 30 ]' && echo all";
    expect(&network(""), script, "all");
}

#[test]
fn broadcast_and_multicast_are_dropped() {
    let script = "RUN_OPTIONS='--log stderr'
         run python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.sendto(b\"all\", (\"255.255.255.255\", 5000))
s.sendto(b\"one\", (\"10.9.8.7\", 5000))
print(s.recvfrom(9)[0].decode())' 2>log
         sleep 0.2; grep -c all server.log; until_true grep -q datagrams-dropped log; cat log >&2";
    let said = network("").script(script);
    let text = crate::harness::text_of(&said);
    assert!(text.contains("one\n0"), "{text}");
    assert!(text.contains("datagrams-dropped") && text.contains("count=1"), "{text}");
}

/// An agent that serves runs, and can be told to reload.
const AGENT: &str = r#"
cp run.toml policy.toml; chmod 644 policy.toml
ordinary exec ./tacit agent --policy policy.toml --control scratch/control --enrol scratch/enrol \
    2>agent.log & background+=($!)
until_true [ -e scratch/enrol ]
enrolled() { ordinary timeout 60 ./tacit run --agent scratch/enrol -- "$@"; }
show() { ordinary ./tacit show "$@" --json --control scratch/control; }
# answered_from ADDRESS: a program has sent to port 5005 of 10.9.8.7, and was answered from port
# 5006 of that address. For each line of descriptor 7, it then sends 20 datagrams to each of them.
answered_from() {
    start python3 "$PEERS/datagrams.py" answering 10.9.8.7 5005 $1 5006 late.log
    until_true sh -c "[ \$(ss -Hlun 'sport = 5005 or sport = 5006' | wc -l) = 2 ]"
    mkfifo one
    enrolled python3 "$PEERS/datagrams.py" both 10.9.8.7 5005 20 <one >said & program=$!
    exec 7>one; until_true grep -q elsewhere said
}
"#;

#[test]
fn flows_are_shown_counted_and_closed() {
    let script = r#"
        mkfifo talk
        enrolled python3 "$PEERS/datagrams.py" talk 10.9.8.7 5000 <talk >said & program=$!
        exec 7>talk; echo hello >&7
        until_true grep -q hello said
        show connections | tr -d ' \n'; echo
        show rules | tr -d ' \n' | grep -o '"hits":[0-9]*' | tr '\n' ' '
        ordinary ./tacit close 1 --control scratch/control >/dev/null
        gone() { ! show connections | grep -q rule; }
        until_true gone
        echo again >&7; until_true grep -q again said
        exec 7>&-; wait $program
        until_true grep -q 'or the run has ended' agent.log
        cat agent.log >&2
    "#;
    let output = network(AGENT).script(script);
    let text = crate::harness::text_of(&output);
    for wanted in [
        "\"protocol\":\"udp\"",
        "\"bytes-in\":5,\"bytes-out\":5",
        "\"rule\":\"echo\"",
        "\"hits\":0 \"hits\":1",
        "end=\"an operator closed the flow\"",
        "end=\"either the flow was idle for too long, or another flow replaced this flow, or the \
         run has ended\"",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing: {text}");
    }
}

#[test]
fn a_flow_that_a_new_policy_rejects_ends_and_others_continue() {
    let script = r#"
        mkfifo one two
        enrolled python3 "$PEERS/datagrams.py" talk 10.9.8.7 5000 <one >said.1 & first=$!
        enrolled python3 "$PEERS/datagrams.py" talk 10.9.8.8 5000 <two >said.2 & second=$!
        exec 7>one 8>two; echo hello >&7; echo hello >&8
        until_true grep -q hello said.1; until_true grep -q hello said.2
        sed 's/5002/5000/' run.toml >policy.toml
        ordinary ./tacit reload --control scratch/control >/dev/null
        echo more >&7; echo more >&8
        until_true grep -q more said.2; until_true grep -q REFUSED said.1
        exec 7>&- 8>&-; wait $first $second
        paste said.1 said.2
        grep -c more server.log
    "#;
    let said = network(AGENT).script(script);
    let text = crate::harness::text_of(&said);
    assert!(text.contains("got hello\tgot hello\nECONNREFUSED\tgot more\n0"), "{text}");
}

#[test]
fn the_datagram_at_which_a_new_policy_ends_a_flow_is_reported_once() {
    let script = r#"
        mkfifo one
        enrolled python3 "$PEERS/datagrams.py" talk 10.9.8.7 5000 <one >said & program=$!
        exec 7>one; echo hello >&7
        until_true grep -q hello said
        sed 's/5002/5000/' run.toml >policy.toml
        ordinary ./tacit reload --control scratch/control >/dev/null
        echo more >&7; until_true grep -q ECONNREFUSED said
        show refused | tr -d ' \n'; echo
        show rules | tr -d ' \n' | grep -o '"hits":[0-9]*' | tr '\n' ' '
        exec 7>&-; wait $program
        until_true grep -q ' warn denied rule=but kind=datagram ' agent.log
        cat agent.log >&2
    "#;
    let output = network(AGENT).script(script);
    let text = crate::harness::text_of(&output);
    for wanted in [
        "\"kind\":\"datagram\"",
        "\"destination\":\"10.9.8.7:5000\"",
        "\"why\":\"denied\"",
        "\"rule\":\"but\"",
        "\"count\":1",
        "\"hits\":1 \"hits\":1",
        " warn denied rule=but kind=datagram ",
    ] {
        assert!(text.contains(wanted), "{wanted} is missing: {text}");
    }
}

#[test]
fn a_flow_continues_if_a_new_policy_permits_it_for_its_program() {
    let script = r#"
        mkfifo one
        enrolled python3 "$PEERS/datagrams.py" talk 10.9.8.7 5000 <one >said & program=$!
        exec 7>one; echo hello >&7
        until_true grep -q hello said
        python=$(readlink -f /usr/bin/python3)
        sed "s|^name = \"echo\"|&\nprogram = \"$python\"|" run.toml >policy.toml
        ordinary ./tacit reload --control scratch/control >/dev/null
        echo more >&7; until_true grep -q -e more -e E said
        exec 7>&-; wait $program
        cat said
    "#;
    let said = network(AGENT).script(script);
    let text = crate::harness::text_of(&said);
    assert!(text.contains("got hello\ngot more\n"), "{text}");
}

#[test]
fn datagrams_in_all_sockets_of_a_flow_arrive_when_a_new_policy_ends_the_flow() {
    // The agent is stopped while the program sends, so that datagrams wait in both sockets.
    let script = r#"
        supervisor=${background[-1]}
        answered_from 10.9.8.7
        python=$(readlink -f /usr/bin/python3)
        sed "s|^name = \"echo\"|&\nprogram = \"$python\"|" run.toml >policy.toml
        ordinary ./tacit reload --control scratch/control >/dev/null
        agent=$(pgrep -P $supervisor)
        kill -STOP $agent
        echo >&7; until_true grep -q sent said
        kill -CONT $agent
        until_true sh -c '[ $(grep -c late late.log) = 40 ]'
        exec 7>&-; wait $program
        sort -u late.log | grep -c "^5005 late"; sort -u late.log | grep -c "^5006 late"
        until_true grep -q run-ended agent.log
        grep -c datagrams-dropped agent.log
    "#;
    let said = network(AGENT).script(script);
    let text = crate::harness::text_of(&said);
    assert!(text.contains("20\n20\n0"), "{text}");
}

#[test]
fn a_new_policy_that_denies_a_source_of_answers_also_rejects_datagrams_to_it() {
    let script = r#"
        answered_from 10.9.8.7
        sed 's/5002/5006/' run.toml >policy.toml
        ordinary ./tacit reload --control scratch/control >/dev/null
        echo >&7; until_true grep -q "denied rule=but kind=datagram" agent.log
        until_true sh -c '[ $(grep -c "^5005 late" late.log) = 20 ]'
        exec 7>&-; wait $program
        echo "$(grep -c "^5006 late" late.log) to the denied port"
    "#;
    let said = network(AGENT).script(script);
    let text = crate::harness::text_of(&said);
    assert!(text.contains("0 to the denied port"), "{text}");
    assert!(!text.contains("20 to the denied port"), "{text}");
}

#[test]
fn a_flow_begins_again_if_a_new_policy_accepts_answers_from_fewer_addresses() {
    let script = r#"
        answered_from 10.9.8.8
        sed '/^answers/d' run.toml >policy.toml
        ordinary ./tacit reload --control scratch/control >/dev/null
        echo >&7
        until_true sh -c '[ $(grep -c late late.log) = 40 ]'
        until_true grep -q "does not permit the flow as before" agent.log
        exec 7>&-; wait $program
        sort -u late.log | grep -c "^5005 late"; sort -u late.log | grep -c "^5006 late"
    "#;
    let rules = RULES.replace("log = true", "answers = \"any\"\nlog = true");
    let network = Network::new(&[], &format!("{SERVERS}\n{AGENT}")).with_rules(&rules);
    let said = network.script(script);
    let text = crate::harness::text_of(&said);
    assert!(text.contains("20\n20\n"), "{text}");
}

#[test]
fn a_flow_outlives_the_agent_that_began_it_and_new_ones_begin_with_its_successor() {
    let script = r#"
        mkfifo one
        enrolled sh -c 'python3 "$PEERS/datagrams.py" talk 10.9.8.7 5000 <one >said.1
            python3 "$PEERS/datagrams.py" see 10.9.8.8 5000' >said.2 & program=$!
        exec 7>one; echo hello >&7
        until_true grep -q hello said.1
        ordinary ./tacit restart --control scratch/control >/dev/null
        until_true sh -c '[ $(grep -c serving agent.log) = 2 ]'
        echo more >&7; until_true grep -q more said.1
        exec 7>&-; wait $program
        cat said.1 said.2
    "#;
    let setup = format!("{AGENT}\ntouch said.1 && chmod 666 said.1");
    let said = network(&setup).script(script);
    let text = crate::harness::text_of(&said);
    assert!(text.contains("got hello\ngot more\nseen as 10.9.8.8"), "{text}");
}

#[test]
fn a_rule_for_one_program_is_for_its_datagrams_alone() {
    let python = std::fs::canonicalize("/usr/bin/python3").unwrap();
    let one = RULES.replacen(
        "name = \"echo\"\n",
        &format!("name = \"echo\"\nprogram = \"{}\"\n", python.display()),
        1,
    );
    let network = Network::new(&[], SERVERS).with_rules(&one);
    let script = "cp $(readlink -f /usr/bin/python3) other
         client see 10.9.8.7 5000 | head -1
         run ./other \"$PEERS/datagrams.py\" error 10.9.8.7 5000 9";
    expect(&network, script, "seen as 10.9.8.7\nECONNREFUSED");
}
