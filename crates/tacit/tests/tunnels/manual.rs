//! Tests tunnels with manual SAs. The peer of tacit is another host with tacit, or scapy.

use serde_json::Value;

use crate::fits::assert_fits;
use crate::run_script;

/// The algorithms: the keys of the policy, the lengths of keys in bytes, and tshark's name.
const ALGORITHMS: [(&str, &str, [&str; 2], &str); 3] = [
    ("aes128-cbc", "sha256", ["16", "32"], "256-128"),
    ("aes256-cbc", "sha384", ["32", "48"], "384-192"),
    ("aes256-cbc", "sha512", ["32", "64"], "512-256"),
];

/// Runs steps between two hosts with one of [`ALGORITHMS`].
pub(super) fn hosts_with(algorithms: usize, steps: &str) -> String {
    let (encryption, integrity, [key, hmac], bits) = ALGORITHMS[algorithms];
    let script = concat!(
        include_str!("../peers/processes.sh"),
        include_str!("hosts.sh"),
        include_str!("manual.sh")
    )
    .replace("@ENCRYPTION@", encryption)
    .replace("@INTEGRITY@", integrity)
    .replace("@KEY@", key)
    .replace("@HMAC@", hmac)
    .replace("@BITS@", bits);
    run_script(&format!("{script}\n{steps}"))
}

fn hosts(steps: &str) -> String {
    hosts_with(0, steps)
}

/// Fetches a page while a tap records the packets between the hosts in `wire.pcap`.
pub(super) fn recorded_page() -> String {
    format!(
        r#"cat >tap.py <<'PYTHON'
{}
PYTHON
        ip link set w0 gso_max_segs 1; behind ip link set w1 gso_max_segs 1
        python3 tap.py w0 wire.pcap >tap.out 2>&1 & tap=$!
        until_true grep -q ready tap.out
        served
        run curl -sS -m 20 http://10.2.0.1:8080/
        kill $tap; wait $tap
"#,
        include_str!("../packet/tap.py")
    )
}

/// `decrypted FILTER` counts the recorded packets that a filter of tshark selects, with the files
/// of keys of the SAs; these steps check that tshark decrypts all packets of ESP.
pub(super) const DECRYPTED: &str = r#"
settings() {
    row near/out.keys 10.99.0.1 10.99.0.2 0x00001002
    row near/in.keys 10.99.0.2 10.99.0.1 0x00001001
    echo esp.enable_encryption_decode:TRUE
    echo esp.enable_authentication_check:TRUE
}
decrypted() {
    settings | sed 's/^/-o/' | xargs -d '\n' tshark -r wire.pcap -Y "$1" 2>tshark.log | wc -l
}
all=$(decrypted esp)
good=$(decrypted 'esp.icv_good == 1 and not _ws.malformed')
[ "$all" -ge 8 ] && [ "$good" = "$all" ] || fail "decrypted $good of $all"
"#;

/// A program that asks the server again and again.
const ASKS: &str = r#"started bash -c 'while :; do
        curl -sS -m 2 http://10.2.0.1:8080/ >>scratch/said 2>&1; sleep 0.1; done'
    said() { [ "$(grep -c "from behind" scratch/said 2>/dev/null)" -ge "$1" ]; }
    until_true said 1
"#;

#[test]
fn two_hosts_exchange_packets_with_manual_sas_and_only_udp_4500_is_on_the_wire() {
    for (algorithms, words) in ALGORITHMS.iter().enumerate() {
        let text = hosts_with(
            algorithms,
            "served
            run bash -c '
                curl -sS -m 20 http://10.2.0.1:8080/
                curl -sS -m 20 http://[fd00:2::1]:8080/
                curl -sS -m 60 http://10.2.0.1:8080/big | cmp - web/big && echo same
                curl -sS -m 3 http://10.2.0.1:8081/ 2>&1 | grep -o \"Couldn.t connect\"'
            clear",
        );
        let wanted = "from behind\nfrom behind\nsame\nCouldn't connect\nonly UDP 4500\n";
        assert_eq!(text, wanted, "{words:?}");
    }
}

#[test]
fn a_stream_passes_a_path_whose_mtu_tcp_does_not_learn() {
    let text = hosts(
        "ip link set w0 mtu 1300; behind ip link set w1 mtu 1300
        served
        run bash -c '
            curl -sS -m 60 http://10.2.0.1:8080/big | cmp - web/big && echo same
            curl -sS -m 60 http://[fd00:2::1]:8080/big | cmp - web/big && echo same'",
    );
    assert_eq!(text, "same\nsame\n");
}

#[test]
fn datagrams_that_must_not_be_fragmented_meet_the_mtu_of_the_path() {
    for (mtu, address) in [(1300, "10.2.0.1"), (1380, "fd00:2::1")] {
        let text = hosts(&format!(
            r#"unshare -n sleep 600 & router=$!
            apart() {{ [ "$(readlink "/proc/$router/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }}
            until_true apart
            between() {{ nsenter -t $router -n "$@"; }}
            behind ip link set w1 netns $router
            between ip address add 10.99.0.2/24 dev w1
            between ip link set w1 up
            between ip link add n0 mtu {mtu} type veth peer name n1 netns $peer mtu {mtu}
            between ip address add 10.98.0.1/24 dev n0
            between ip link set n0 up
            between sysctl -qw net.ipv4.ip_forward=1
            behind ip address add 10.98.0.2/24 dev n1
            behind ip link set n1 up
            behind ip route replace default via 10.98.0.1
            sed -i 's/10.99.0.2/10.98.0.2/
                s|^remote = "10.2.0.0/24"|remote = ["10.2.0.0/24", "fd00:2::/64"]|' near/run.toml
            sed -i 's/^local-ports.*/local-ports = 5000\nprotocol = "udp"/' far/run.toml
            behind $USER_OF_RUNS timeout 60 ./tacit run --policy far/run.toml -- \
                python3 "$PEERS/datagrams.py" serve :: 5000 >served.out 2>far.log & far=$!
            until_true grep -q ready served.out
            run python3 "$PEERS/datagrams.py" path {address} 5000 1350 20 || fail
            clear"#
        ));
        let inner = mtu - 70;
        assert_eq!(
            text,
            format!(
                "connected: mtu {inner}, 20 of 20\nunconnected: mtu {inner}, 20 of 20\n\
                 only UDP 4500\n"
            )
        );
    }
}

#[test]
fn scapy_reads_and_writes_the_packets_of_manual_sas() {
    for (algorithms, name) in [(0, "SHA2-256-128"), (1, "SHA2-384-192"), (2, "SHA2-512-256")] {
        let text = hosts_with(
            algorithms,
            &format!(
                "behind /usr/bin/python3 \"$PEERS/sa_peer.py\" far/in.keys far/out.keys {name} \
                    >scapy.out 2>scapy.log & scapy=$!
                until_true grep -q ready scapy.out
                asks() {{ run bash -c 'ping -c 1 -W 5 10.2.0.1 | grep -o \"1 received\"
                    python3 \"$PEERS/datagrams.py\" rounds 10.2.0.1 5000 3 100 1300'; }}
                # The second run has the same keys, and begins with the same sequence number.
                asks; asks
                kill -0 $scapy || fail 'scapy has found a fault'
                clear"
            ),
        );
        let asks = "1 received\n100 bytes: 0 lost\n1300 bytes: 0 lost\n";
        assert_eq!(text, format!("{asks}{asks}only UDP 4500\n"), "{name}");
    }
}

#[test]
fn tshark_decrypts_manual_sas_with_their_key_files_and_not_with_other_keys() {
    let text = hosts(&format!(
        "{}{DECRYPTED}{}",
        recorded_page(),
        r#"
        [ "$(decrypted 'esp.icv_good == 1 and http')" -ge 2 ] || fail http
        keys
        [ "$(decrypted 'esp.icv_good == 1')" = 0 ] || fail 'with other keys'
        echo decrypted"#
    ));
    assert_eq!(text, "from behind\ndecrypted\n");
}

#[test]
fn manual_sas_are_shown_explained_logged_and_audited_without_their_keys() {
    let text = hosts(
        r#"served
        agent
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1:8080/; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' >/dev/null & program=$!
        until_true [ -e scratch/up ]
        control show sa --json | tr -d '\n'; echo
        control show sa | grep -c ' manual '
        control show sa --wide | grep -o 'none: replayed packets are accepted'
        control show ike --json | grep -c run-name
        control show policy | grep -c keys-in
        control explain --direction outbound --remote 10.2.0.1:8080 2>&1 |
            grep -o 'through a tunnel to the peer \[sa.far\]'
        until_true grep -q 'sa-installed' agent.log; until_true grep -q 'sa-installed' scratch/audit
        grep -o 'sa-installed' agent.log scratch/audit
        for secret in $(grep -hv '^#' near/*.keys); do
            grep -rq "$secret" agent.log scratch/audit && fail secret
            control show policy --json | grep -q "$secret" && fail secret
            grep -q "$secret" /proc/$program/environ && fail secret
        done
        enrolled sh -c 'cat near/in.keys' 2>&1 | grep -c '[0-9a-f]\{32\}'
        touch scratch/end; wait $program
        gone() { control show sa --json | grep -q '"tunnels": \[\]'; }
        until_true gone; until_true grep -q 'sa-removed' agent.log
        grep -o 'sa-removed' agent.log"#,
    );
    let (sa, rest) = text.split_once('\n').unwrap();
    assert_fits("show-sa", sa);
    let sa: Value = serde_json::from_str(sa).unwrap();
    let one = &sa["tunnels"][0];
    assert_eq!(one["how"], "manual");
    assert_eq!((&one["sa"], &one["ike"]), (&"far".into(), &Value::Null));
    assert_eq!(one["peer"], "10.99.0.2:4500");
    assert_eq!(one["outer-local"], "10.99.0.1:4500");
    assert_eq!(one["proposal"], "aes128-sha256");
    assert_eq!(one["replay-window"], 0);
    assert_eq!(one["extended-sequence"], false);
    assert_eq!(one["local"], serde_json::json!(["10.1.0.1", "fd01::1"]));
    assert_eq!(one["remote"], serde_json::json!(["10.2.0.0/24", "fd00:2::/64"]));
    assert_eq!(one["inbound"]["spi"], "00001001");
    assert_eq!(one["outbound"]["spi"], "00001002");
    assert!(one["inbound"]["packets"].as_u64().unwrap() >= 4, "{one}");
    assert_eq!(
        rest,
        "1\nnone: replayed packets are accepted\n0\n1\nthrough a tunnel to the peer [sa.far]\n\
         agent.log:sa-installed\nscratch/audit:sa-installed\n0\nsa-removed\n"
    );
}

#[test]
fn packets_with_wrong_keys_are_dropped_and_counted_until_a_reload_brings_the_right_ones() {
    let text = hosts(
        r#"served
        agent
        cp -p near/out.keys right; keys; cp -p near/out.keys wrong
        cat right >far/in.keys
        enrolled bash -c 'while [ ! -e scratch/end ]; do
            curl -sS -m 2 http://10.2.0.1:8080/ >>scratch/said 2>&1; sleep 0.1; done' & program=$!
        said() { [ "$(grep -c 'from behind' scratch/said 2>/dev/null)" -ge "$1" ]; }
        until_true said 1
        control reload >/dev/null || fail reload
        fails() { grep -q 'timed out' scratch/said; }
        until_true fails
        cat right >near/out.keys; cat far/out.keys >near/in.keys
        unserved; served
        control reload >/dev/null || fail reload
        count=$(grep -c 'from behind' scratch/said); until_true said $((count + 3))
        # Other rules keep the SAs, with their sequence numbers.
        packets() {
            control show sa --json |
                sed -n '/"outbound"/,/}/s/.*"packets": \([0-9]*\).*/\1/p'
        }
        before=$(packets)
        sed -i 's/remote-ports = 5000/remote-ports = 5001/' near/run.toml
        control reload >/dev/null || fail reload
        count=$(grep -c 'from behind' scratch/said); until_true said $((count + 1))
        [ "$(packets)" -gt "$before" ] || fail "$before $(packets)"
        # Without the SA and its rules, no rule permits the flow.
        sed -i '/^\[sa/,$d' near/run.toml
        control reload >/dev/null || fail reload
        refused() { tail -n 1 scratch/said | grep -q 'connect to server'; }
        until_true refused
        control show sa --json | grep -c '"spi"'
        touch scratch/end; wait $program
        clear"#,
    );
    assert_eq!(text, "0\nonly UDP 4500\n");
}

#[test]
fn only_one_run_has_the_sas_and_the_next_one_gets_them_after_it() {
    let text = hosts(
        r#"served
        agent
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1:8080/; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' & first=$!
        until_true [ -e scratch/up ]
        enrolled bash -c 'touch scratch/second
            until curl -sS -m 1 http://10.2.0.1:8080/ 2>/dev/null; do sleep 0.1; done' & second=$!
        until_true [ -e scratch/second ]
        until_true grep -q sa-in-use agent.log
        grep -o 'only one run at a time can use the tunnel to \[sa.far\]' run.log
        touch scratch/end; wait $first; wait $second
        clear"#,
    );
    let warning = "only one run at a time can use the tunnel to [sa.far]";
    assert_eq!(text, format!("from behind\n{warning}\nfrom behind\nonly UDP 4500\n"));
}

#[test]
fn nothing_is_sent_in_clear_after_all_processes_of_a_run_with_manual_sas_are_killed() {
    let text = hosts(&format!(
        r#"served
        {ASKS}
        is_tacit() {{ case $(readlink /proc/$1/exe) in */tacit) ;; *) false ;; esac; }}
        victims=; for pid in $(tree $launcher); do is_tacit $pid && victims="$victims $pid"; done
        kill -9 $victims
        refused() {{ grep -q 'connect to server' scratch/said; }}
        until_true refused; sleep 2
        clear"#
    ));
    assert_eq!(text, "only UDP 4500\n");
}

#[test]
fn two_hosts_exchange_packets_in_transport_mode() {
    let text = hosts(
        r#"for side in near far; do
            sed -i 's/^inner = .*/mode = "transport"/' $side/run.toml
        done
        sed -i '/^mode/a local = "10.99.0.1"' near/run.toml
        sed -i '/^mode/a local = "10.99.0.2"' far/run.toml
        sed -i 's/^remote = .*/remote = "10.99.0.2"/' near/run.toml
        sed -i 's/^remote = .*/remote = "10.99.0.1"/' far/run.toml
        served
        run bash -c '
            curl -sS -m 20 http://10.99.0.2:8080/
            curl -sS -m 60 http://10.99.0.2:8080/big | cmp - web/big && echo same
            curl -sS -m 3 http://10.99.0.2:8081/ 2>&1 | grep -o "Couldn.t connect"'
        clear"#,
    );
    assert_eq!(text, "from behind\nsame\nCouldn't connect\nonly UDP 4500\n");
}

#[test]
fn filters_deny_packets_of_manual_sas_until_a_reload_removes_them() {
    let text = hosts(
        r#"served
        cp near/run.toml before
        { sed '/^\[\[rule/,$d' before; cat <<'END'
[[rule]]
name = "denied"
filter = "deny"
tunnel = "far"
protocol = "tcp"
remote-ports = 8080
[[rule]]
name = "others"
filter = "permit"
tunnel = "far"
END
        sed -n '/^\[\[rule/,$p' before; } >near/run.toml
        agent
        enrolled bash -c 'curl -sS -m 3 http://10.2.0.1:8080/ 2>&1 | grep -o "timed out"
            touch scratch/denied
            until curl -sS -m 2 http://10.2.0.1:8080/ 2>/dev/null; do sleep 0.1; done
            touch scratch/up; while [ ! -e scratch/end ]; do sleep 0.1; done' & program=$!
        until_true [ -e scratch/denied ]
        control show sa --wide | grep -c 'dropped .* filter'
        cat before >near/run.toml
        control reload >/dev/null || fail reload
        until_true [ -e scratch/up ]
        touch scratch/end; wait $program
        clear"#,
    );
    assert_eq!(text, "timed out\n1\nfrom behind\nonly UDP 4500\n");
}
