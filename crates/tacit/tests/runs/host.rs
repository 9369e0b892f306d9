//! Tests that the host's own addresses behave like loopback addresses inside a run.

use crate::network::Network;

/// Rules for every network and for nothing that they may not reach; the host has 192.168.77.1.
const WIDE: &str = r#"
[[rule]]
name = "wide"
direction = "outbound"
remote = ["0.0.0.0/0", "::/0", "named.example"]
permit = true
"#;

/// A service of the host itself, on all its addresses.
const SERVICE: &str = r#"
mkdir -p web; echo host >web/who
start python3 -m http.server --bind 0.0.0.0 --directory web 8085 >/dev/null 2>&1
await 8085
"#;

#[test]
fn a_program_sees_the_hosts_addresses_and_serves_there() {
    let said = Network::new(&[], SERVICE).with_ipv6().with_rules(WIDE).ok(r#"
        run bash -c '
            hostname -I
            ip -br addr show v0 | tr -s " "
            /usr/bin/python3 - <<P
import errno, socket
for family, address, far in (
    (socket.AF_INET, "192.168.77.1", "203.0.113.9"),
    (socket.AF_INET6, "2001:db8:77::1", "2001:db8:5::5"),
):
    server = socket.create_server((address, 7000), family=family)
    client = socket.create_connection((address, 7000))
    _, peer = server.accept()
    print(peer[0], client.getpeername()[0])
    closed = socket.socket(family)
    print(errno.errorcode[closed.connect_ex((address, 7001))])
    outwards = socket.socket(family, socket.SOCK_DGRAM)
    outwards.connect((far, 9))
    print(outwards.getsockname()[0])
P'"#);
    let wanted = "192.168.77.1 2001:db8:77::1 \n\
                  v0@tacit0 UP 192.168.77.1/24 2001:db8:77::1/64 \n\
                  192.168.77.1 192.168.77.1\nECONNREFUSED\n192.168.77.1\n\
                  2001:db8:77::1 2001:db8:77::1\nECONNREFUSED\n2001:db8:77::1\n";
    // A kernel with dummy interfaces needs no pair.
    assert_eq!(said.replace("v0 UP", "v0@tacit0 UP"), wanted);
}

#[test]
fn no_wide_network_and_no_name_of_dns_reaches_the_hosts_own_services() {
    let fetch = |to: &str| format!("run curl -s -m 5 http://{to}:8085/who; echo $?");
    let network = Network::new(&[], SERVICE).with_rules(WIDE);
    let by_name =
        "mkdir -p names; start python3 $PEERS/resolver.py 5399 named.example 192.168.77.1\n";
    assert_eq!(network.ok(&fetch("192.168.77.1")), "7\n");
    // The resolver of the network answers for it, too.
    let setup = format!("{SERVICE}{by_name}");
    let network = Network::new(&[], &setup).with_rules(WIDE);
    let asked = network.ok("is_open() { ss -Hlun 'sport = 5399' | grep -q .; }; until_true is_open
         ordinary timeout 60 ./tacit run --policy run.toml --resolver 127.0.0.1:5399 -- \
             curl -s -m 5 http://named.example:8085/who; echo $?");
    assert!(["7\n", "6\n"].contains(&&*asked), "{asked}");
}

#[test]
fn a_rule_that_names_the_address_reaches_the_host() {
    let rule = |remote: &str| {
        format!(
            "[[rule]]\nname = \"named\"\ndirection = \"outbound\"\nremote = \"{remote}\"\n\
             permit = true\n"
        )
    };
    let network = Network::new(&[], SERVICE).with_rules(&rule("192.168.77.1"));
    assert_eq!(network.ok("run curl -s http://192.168.77.1:8085/who"), "host\n");
    // So does one by a name of the host's own file.
    let network = Network::new(&[], SERVICE).with_rules(&rule("me.example"));
    let said = network.ok("echo '192.168.77.1 me.example' >>hosts
         run curl -s http://me.example:8085/who");
    assert_eq!(said, "host\n");
}

#[test]
fn the_addresses_of_a_run_follow_those_of_its_host() {
    let said = Network::new(&[], "").with_rules(WIDE).ok(r#"
        cat >follow.sh <<'S'
        until_seen() { for try in $(seq 200); do
            [ "$(hostname -I)" = "$1" ] && echo "$1" && return; sleep 0.05; done; hostname -I; }
        until_seen "192.168.77.1 "; touch scratch/first
        until_seen "192.168.77.1 192.168.77.9 "; touch scratch/second
        until_seen "192.168.77.9 "
        /usr/bin/python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(("203.0.113.9", 9))
print(s.getsockname()[0])'
S
        run bash follow.sh >followed & client=$!
        until_true [ -e scratch/first ]; ip addr add 192.168.77.9/24 dev v0
        until_true [ -e scratch/second ]
        echo 1 >/proc/sys/net/ipv4/conf/all/promote_secondaries
        echo 1 >/proc/sys/net/ipv4/conf/v0/promote_secondaries
        ip addr del 192.168.77.1/24 dev v0; ip route replace default via 192.168.77.2
        wait $client; cat followed"#);
    let wanted = "192.168.77.1 \n192.168.77.1 192.168.77.9 \n192.168.77.9 \n192.168.77.9\n";
    assert_eq!(said, wanted);
}

#[test]
fn an_address_of_an_interface_that_is_down_is_the_hosts_too() {
    let setup = format!(
        "ip link add down0 type veth peer name down1
         ip addr add 10.50.0.1/32 dev down0
         mkdir -p names; start python3 $PEERS/resolver.py 5399 named.example 10.50.0.1
         {SERVICE}"
    );
    let network = Network::new(&[], &setup).with_rules(WIDE);
    let said = network.ok("curl -s -m 5 http://10.50.0.1:8085/who
         run curl -s -m 5 http://10.50.0.1:8085/who; echo $?
         run bash -c 'hostname -I'");
    assert_eq!(said, "host\n7\n192.168.77.1 \n", "the host delivers to it, no run reaches it");
}
