//! Tests that unmodified programs work through tunnels: psql, ssh, ping, servers, and programs that
//! use UDP. Also tests rules for different ports of one address. These rules use a tunnel, TLS, or
//! no protection.

use crate::Scenario;

/// What a run does with the ports of 10.2.0.1: each of five in another way. No rule names 9300.
const SIDE_BY_SIDE: &str = r#"
[trust.ca]
ca = "ca.pem"
[[rule]]
name = "web"
direction = "outbound"
remote = "10.2.0.1"
remote-ports = [80, 5432, 2222]
ipsec = { ike = "branch" }
[[rule]]
name = "secure"
direction = "outbound"
remote = "10.2.0.1"
remote-ports = 9443
tls = { trust = "ca", server-name = "localhost" }
[[rule]]
name = "clear"
direction = "outbound"
remote = "10.2.0.1"
remote-ports = 9007
permit = true
[[rule]]
name = "echo"
direction = "outbound"
protocol = "udp"
remote = "10.2.0.1"
remote-ports = 5000
ipsec = { ike = "branch" }
[[rule]]
name = "ping"
direction = "outbound"
protocol = "icmp"
remote = "10.2.0.1"
ipsec = { ike = "branch" }
[[rule]]
name = "served"
direction = "inbound"
local-ports = 9070
ipsec = { ike = "branch" }
[[rule]]
name = "served-datagrams"
direction = "inbound"
protocol = "udp"
local-ports = 9072
ipsec = { ike = "branch" }
"#;

/// What the agent trusts, and the user's name, which servers look up.
const PREPARE: &str = r#"
cp ca.pem private; chmod 644 private/ca.pem
cp /etc/passwd passwd; echo "tester:x:54321:54321::$PWD/scratch:/bin/sh" >>passwd
mount --bind passwd /etc/passwd
"#;

/// Starts a TLS server behind.
const TLS_SERVER: &str = r#"
echo "over TLS" >web/secret
start nsenter -t $peer -n --wdns=$PWD/web openssl s_server -quiet -WWW -accept 10.2.0.1:9443 \
    -cert $PWD/localhost.pem -key $PWD/localhost.key >tls.log 2>&1
until_true listens 9443
"#;

fn output(steps: &str) -> String {
    let steps = &format!("{PREPARE}{steps}");
    Scenario { rules: SIDE_BY_SIDE, inner: "\"10.1.0.1\"", steps }.output()
}

#[test]
fn tls_permit_and_ipsec_rules_for_one_address_work_at_the_same_time() {
    let text = output(&format!(
        "{TLS_SERVER}
        run bash -c '
            for round in 1 2 3; do
                curl -sS -m 20 http://10.2.0.1/ http://10.2.0.1:9443/secret http://10.2.0.1:9007/ &
                curl -sS -m 20 http://10.2.0.1:9443/secret &
                curl -sS -m 20 http://10.2.0.1/ &
                wait
            done
            python3 \"$PEERS/refusals.py\" 10.2.0.1:9300
            echo datagram | python3 \"$PEERS/datagrams.py\" talk 10.2.0.1 5001'
        clear"
    ));
    let count = |wanted: &str| text.lines().filter(|line| *line == wanted).count();
    assert_eq!((count("from behind"), count("over TLS")), (9, 6), "{text}");
    let refused = "10.2.0.1:9300 connect ECONNREFUSED\nECONNREFUSED\n";
    assert!(text.ends_with(&format!("{refused}tcp 9007\ntcp 9443\n")), "{text}");
}

#[test]
fn datagrams_and_pings_cross_in_both_directions() {
    let text = output(
        "started bash -c 'ping -c 3 -i 0.2 -W 5 10.2.0.1 | grep -o \"3 received\" >scratch/said
            python3 \"$PEERS/datagrams.py\" rounds 10.2.0.1 5000 5 4 100 1300 5000 >>scratch/said
            python3 \"$PEERS/datagrams.py\" serve 0.0.0.0 9072 >/dev/null & touch scratch/up; wait'
        until_true [ -e scratch/up ]; cat scratch/said; sleep 1
        behind python3 \"$PEERS/datagrams.py\" rounds 10.1.0.1 9072 5 4 100 1300 5000
        clear",
    );
    let rounds = "4 bytes: 0 lost\n100 bytes: 0 lost\n1300 bytes: 0 lost\n5000 bytes: 0 lost\n";
    assert_eq!(text, format!("3 received\n{rounds}{rounds}only UDP 4500\n"));
}

#[test]
fn psql_needs_no_change_and_no_byte_is_in_clear() {
    let text = output(
        "PATH=$PATH:$(printf '%s:' /usr/lib/postgresql/*/bin)
        ordinary initdb -A trust -U tester --no-sync -D scratch/data >initdb.log 2>&1 ||
            fail \"$(cat initdb.log)\"
        echo 'host all all 10.1.0.0/16 trust' >>scratch/data/pg_hba.conf
        start nsenter -t $peer -n $USER_OF_RUNS postgres -D scratch/data \
            -c unix_socket_directories= -c fsync=off -c listen_addresses=10.2.0.1 2>postgres.log
        until_true grep -q 'ready to accept' postgres.log
        cat >scratch/ask <<'END'
way=\"psql -X -At -h 10.2.0.1 -U tester postgres\"
seq 20000 | sed 's/.*/&,text &/' | $way -c 'create table t (n int, t text)' \
    -c '\\copy t from stdin csv' -c 'select count(*), max(n) from t'
$way -c 'select * from t order by n' | tail -n 1
$way -c 'select inet_client_addr(), inet_server_addr()'
timeout --foreground -s INT 1 $way -c 'select pg_sleep(30)' 2>&1
END
        run bash scratch/ask
        clear",
    );
    assert_eq!(
        text,
        "CREATE TABLE\nCOPY 20000\n20000|20000\n20000|text 20000\n10.1.0.1|10.2.0.1\n\
         Cancel request sent\nERROR:  canceling statement due to user request\nonly UDP 4500\n"
    );
}

#[test]
fn ssh_needs_no_change_and_no_byte_is_in_clear() {
    let text = output(
        "for key in host key; do
            ordinary ssh-keygen -q -t ed25519 -N '' -f scratch/$key || fail ssh-keygen
        done
        start nsenter -t $peer -n $USER_OF_RUNS $(command -v sshd) -D -e -p 2222 -f /dev/null \
            -o ListenAddress=10.2.0.1 -o HostKey=$PWD/scratch/host \
            -o AuthorizedKeysFile=$PWD/scratch/key.pub -o PidFile=none -o StrictModes=no \
            -o UsePAM=no 2>sshd.log
        until_true listens 2222
        cat >scratch/ask <<'END'
way=\"ssh -F none -i scratch/key -p 2222 -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR tester@10.2.0.1\"
$way 'exit 7'; echo $?
head -c 8000000 /dev/zero | $way wc -c
$way 'head -c 8000000 /dev/zero' | wc -c
$way 'echo $SSH_CONNECTION' | cut -d ' ' -f 1,3
echo forwarded | $way -W 10.2.0.1:2222 | head -n 1 | cut -c 1-8
END
        run bash scratch/ask
        clear",
    );
    assert_eq!(text, "7\n8000000\n8000000\n10.1.0.1 10.2.0.1\nSSH-2.0-\nonly UDP 4500\n");
}
