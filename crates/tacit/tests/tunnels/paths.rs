//! Tests tunnels whose gateway is silent for a time or gets another address. Also tests programs
//! under `tacit run` behind a NAT.

use crate::expiry::JUMP;
use crate::{Scenario, web};

/// A program that asks the server again and again.
const ASKS: &str = r#"
enrolled bash -c 'while [ ! -e scratch/end ]; do
    curl -sS -m 2 http://10.2.0.1/ >>scratch/said 2>&1; sleep 0.1; done' & program=$!
answers() { grep -c "from behind" scratch/said 2>/dev/null; }
said() { [ "$(answers)" -ge "$1" ]; }
more() { count=$(answers); until_true said $((count + 5)); }
ended() { touch scratch/end; wait $program; }
until_true said 1
"#;

#[test]
fn a_gateway_that_dies_silently_is_missed_and_its_tunnel_is_made_again_when_it_is_back() {
    let text = web(&format!(
        "{JUMP}
        sed -i 's/^inner.*/&\\ndpd = \"5s\"/' private/run.toml
        agent
        unset LD_PRELOAD
        {ASKS}
        kill -9 $charon; wait $charon 2>/dev/null
        missed() {{ grep -q 'kind=peer-does-not-answer' agent.log; }}
        # The time of two minutes passes sooner.
        for step in $(seq 60); do missed && break; asleep $((step * 16)); sleep 1; done
        missed || fail 'the gateway is not missed'
        [ $(grep -c ike-established agent.log) = 1 ] || fail 'established'
        charon
        until_true sh -c '[ $(grep -c ike-established agent.log) = 2 ]'
        more
        ended
        clear"
    ));
    assert_eq!(text, "only UDP 4500\n");
}

/// A NAT in front of this host: `nat PORT` gives it this port, also for flows that there are.
/// `keepalives` waits for one at the gateway.
const NAT: &str = r#"
ip address add 10.99.0.3/24 dev w0
sed -i 's/remote_addrs.*/remote_addrs = %any/' swanctl/swanctl.conf
swan --load-all >load 2>&1 || fail "$(cat load)"
cat >forget.py <<'END'
import socket, struct
# IPCTNL_MSG_CT_DELETE of all connections that the kernel tracks.
netfilter = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
netfilter.send(struct.pack("=IHHIIBBH", 20, 0x102, 5, 1, 0, socket.AF_INET, 0, 0))
kind, error = struct.unpack("=4xH10xi", netfilter.recv(4096)[:20])
assert (kind, error) == (2, 0), (kind, error)
END
nat() {
    nft -f - <<END || fail nft
table ip nat
delete table ip nat
table ip nat {
    chain out {
        type nat hook postrouting priority 100;
        oifname w0 udp sport 4500 snat to 10.99.0.3:$1
    }
}
END
    python3 forget.py || fail forget
}
cat >keepalives.py <<'END'
import socket
capture = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
capture.bind(("w1", 0))
capture.settimeout(60)
while True:
    frame = capture.recv(128)
    # A datagram of one byte, 0xff, to port 4500.
    if frame[23] == 17 and frame[36:40] + frame[42:43] == bytes.fromhex("11940009ff"):
        break
print("keepalive from", socket.inet_ntoa(frame[26:30]), int.from_bytes(frame[34:36], "big"))
END
"#;

#[test]
fn a_tunnel_that_the_gateway_deletes_is_made_again_when_a_packet_needs_it() {
    let text = web("agent
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1/; touch scratch/up
            until [ -e scratch/gone ]; do sleep 0.1; done
            curl -sS -m 20 http://10.2.0.1/' & program=$!
        until_true [ -e scratch/up ]
        installed 1 || fail 'no tunnel'
        swan --terminate --child net >terminate 2>&1 || fail \"$(cat terminate)\"
        until_true installed 0
        touch scratch/gone; wait $program
        until_true grep -q ike-established agent.log
        grep -c ike-established agent.log
        clear");
    assert_eq!(text, "from behind\nfrom behind\n1\nonly UDP 4500\n");
}

#[test]
fn a_nat_is_found_kept_open_and_may_change_its_port() {
    let text = web(&format!(
        "{JUMP}
        {NAT}
        nat 5555
        sed -i 's/^inner.*/&\\ndpd = \"5s\"/' private/run.toml
        agent
        unset LD_PRELOAD
        {ASKS}
        grep -q 'remote host is behind NAT' charon.log || fail 'charon sees no NAT'
        control show ike --json | grep -o '\"behind-nat\": *true'
        swan --list-sas | grep -o '10.99.0.3.5555.'
        behind python3 keepalives.py & keepalives=$!
        sleep 1; asleep 21
        wait $keepalives
        nat 5556
        more
        swan --list-sas | grep -o '10.99.0.3.5556.'
        until_true grep -q ike-established agent.log
        [ $(grep -c ike-established agent.log) = 1 ] || fail 'another IKE SA'
        ended
        clear"
    ));
    let wanted = "\"behind-nat\": true\n10.99.0.3[5555]\nkeepalive from 10.99.0.3 5555\n\
                  10.99.0.3[5556]\nonly UDP 4500\n";
    assert_eq!(text, wanted);
}

#[test]
fn a_gateway_with_a_name_is_found_at_its_next_address() {
    let text = web(&format!(
        "cp /etc/hosts hosts; echo '10.99.0.2 gw.test' >>hosts
        mount --bind hosts /etc/hosts || fail mount
        behind ip address add 10.99.0.4/24 dev w1
        sed -i 's/local_addrs.*/local_addrs = 10.99.0.2,10.99.0.4/' swanctl/swanctl.conf
        swan --load-all >load 2>&1 || fail \"$(cat load)\"
        sed -i 's/^peer.*/peer = \"gw.test\"/' private/run.toml
        agent
        {ASKS}
        control show ike | grep -o '10.99.0.2:4500'
        sed 's/10.99.0.2 gw/10.99.0.4 gw/' hosts >moved; cat moved >hosts
        # The name is resolved again every 30 seconds.
        moved() {{ control show ike | grep -q '10.99.0.4:4500 *established'; }}
        for try in $(seq 20); do
            moved && break
            swan --terminate --ike tacit >terminate 2>&1; sleep 3
        done
        control show ike | grep -o '10.99.0.4:4500'
        more
        ended
        clear"
    ));
    assert_eq!(text, "10.99.0.2:4500\n10.99.0.4:4500\nonly UDP 4500\n");
}

#[test]
fn a_tunnel_continues_at_once_when_this_host_gets_another_address() {
    let text = web(&format!(
        "sed -i 's/^inner.*/&\\ndpd = \"1h\"/' private/run.toml
        agent
        {ASKS}
        ip address del 10.99.0.1/24 dev w0; ip address add 10.99.0.3/24 dev w0
        ip route replace default via 10.99.0.2
        more
        swan --list-sas | grep -o '10.99.0.3.4500.'
        control show ike --json | grep -o '10.99.0.3:4500'
        until_true grep -q ike-established agent.log
        [ $(grep -c ike-established agent.log) = 1 ] || fail 'another IKE SA'
        ended
        clear"
    ));
    assert_eq!(text, "10.99.0.3[4500]\n10.99.0.3:4500\nonly UDP 4500\n");
}

/// A second path to the gateway, over x0. The interfaces get no IPv6 addresses, so that nothing
/// changes later.
const SECOND_PATH: &str = r#"
ip link add x0 type veth peer name x1 netns "$peer"
ip link set x0 addrgenmode none; behind ip link set x1 addrgenmode none
ip address add 10.98.0.1/24 dev x0; ip link set x0 up
behind ip address add 10.98.0.2/24 dev x1; behind ip link set x1 up
"#;

/// From now on, this host reaches the gateway over x0, and drops what arrives over w0. Its
/// addresses stay the same.
const OTHER_ROUTE: &str = r#"
ip route add 10.99.0.2/32 via 10.98.0.2 dev x0 || fail route
nft -f - <<END || fail nft
table ip former {
    chain arriving {
        type filter hook input priority 0;
        iifname w0 drop
    }
}
END
"#;

#[test]
fn a_tunnel_continues_at_once_when_the_route_to_the_gateway_leaves_by_another_interface() {
    let text = web(&format!(
        "sed -i 's/^inner.*/&\\ndpd = \"1h\"/' private/run.toml
        {SECOND_PATH}
        agent
        {ASKS}
        {OTHER_ROUTE}
        more
        swan --list-sas | grep -o '10.98.0.1.4500.'
        control show ike --json | grep -o '10.98.0.1:4500'
        until_true grep -q ike-established agent.log
        [ $(grep -c ike-established agent.log) = 1 ] || fail 'another IKE SA'
        ended
        clear"
    ));
    assert_eq!(text, "10.98.0.1[4500]\n10.98.0.1:4500\nonly UDP 4500\n");
}

#[test]
fn a_gateway_that_answers_nothing_is_logged_after_some_seconds() {
    let text = web("kill -STOP $charon
        agent
        enrolled curl -sS -m 20 http://10.2.0.1/ & program=$!
        until_true grep -q 'ike-unanswered.*UDP port 4500' agent.log
        ! grep -q ike-failed agent.log || fail 'the attempt has failed'
        control show ike --json | grep -o 'has not answered for 5 seconds'
        kill -CONT $charon
        wait $program
        clear");
    assert_eq!(text, "has not answered for 5 seconds\nfrom behind\nonly UDP 4500\n");
}

/// The gateway does not receive IKE_AUTH. The exchange type, 35, follows the UDP header, the
/// non-ESP marker, two SPIs and two other bytes.
const WITHOUT_AUTH: &str = r#"
behind nft -f - <<END || fail nft
table ip deaf {
    chain arriving {
        type filter hook input priority 0;
        udp dport 4500 @th,240,8 0x23 drop
    }
}
END
"#;

#[test]
fn a_gateway_that_does_not_answer_auth_is_logged_after_some_seconds() {
    let text = web(&format!(
        "{WITHOUT_AUTH}
        agent
        enrolled curl -sS -m 20 http://10.2.0.1/ & program=$!
        until_true grep -q 'ike-unanswered.*request=IKE_AUTH.*local-id' agent.log
        ! grep -q ike-failed agent.log || fail 'the attempt has failed'
        control show ike --json | grep -o '(IKE_AUTH) for 5 seconds'
        behind nft delete table ip deaf
        wait $program
        clear"
    ));
    assert_eq!(text, "(IKE_AUTH) for 5 seconds\nfrom behind\nonly UDP 4500\n");
}

#[test]
fn an_agent_whose_connection_another_agent_has_ended_logs_why() {
    let text = web(&format!(
        "{JUMP}
        sed -i 's/^inner.*/&\\ndpd = \"5s\"/' private/run.toml
        agent
        unset LD_PRELOAD
        {ASKS}
        # Another agent with the same identity and address.
        run curl -sS -m 20 http://10.2.0.1/
        grep -q 'received INITIAL_CONTACT' charon.log || fail 'the gateway keeps both'
        missed() {{ grep -q 'kind=peer-does-not-answer' agent.log; }}
        # The time of two minutes passes sooner.
        for step in $(seq 60); do missed && break; asleep $((step * 16)); sleep 1; done
        missed || fail 'the tunnel has not ended'
        until_true grep -q 'ike-dropped-by-peer.*local-id' agent.log
        more
        ended
        clear"
    ));
    assert_eq!(text, "from behind\nonly UDP 4500\n");
}

/// A resolver behind the gateway.
const RESOLVER: &str = r#"
[[rule]]
name = "resolver"
direction = "outbound"
protocol = "udp"
remote = "10.2.0.1"
remote-ports = 53
ipsec = { ike = "branch" }
"#;

#[test]
fn a_resolver_that_the_gateway_assigns_is_logged_and_can_be_asked_through_the_tunnel() {
    let steps = r#"sed 's/127.0.0.1/10.2.0.1/' "$PEERS/resolver.py" >resolver.py
        start nsenter -t $peer -n --wdns=$PWD python3 resolver.py 53 inside.example 10.2.0.7
        until_true [ -e resolver.ready ]
        sed -i 's/addrs = 10.1.0.1.32/&\n dns = 10.2.0.1/' swanctl/swanctl.conf
        swan --load-all >load 2>&1 || fail "$(cat load)"
        agent
        enrolled python3 "$PEERS/ask.py" udp 10.2.0.1 inside.example 1
        enrolled python3 "$PEERS/ask.py" udp 10.2.0.9 inside.example 1
        until_true grep -q 'ike-resolvers-not-used.*10.2.0.1' agent.log
        clear"#;
    let text = Scenario { rules: RESOLVER, inner: "\"gateway\"", steps }.output();
    // The agent refuses the second query: no rule allows the name.
    let answers = ["inside.example 1: code 0, 1 answers", "inside.example 1: code 5, 0 answers"];
    assert_eq!(text, format!("{}\n{}\nonly UDP 4500\n", answers[0], answers[1]));
}
