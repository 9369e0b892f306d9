//! Tests manual SAs for AH, and for ESP without UDP. The peer of tacit is scapy, or a tacit on
//! another host. The agents run as root, because raw sockets need root privileges.

use serde_json::Value;

use crate::fits::assert_fits;
use crate::manual::{DECRYPTED, hosts_with, recorded_page};

/// Runs steps between two hosts with an algorithm of `manual.rs`.
fn hosts(algorithms: usize, steps: &str) -> String {
    hosts_with(algorithms, &format!("{}\n{steps}", include_str!("without_udp.sh")))
}

/// The host of the peer, as programs see it.
fn far(mode: &str, version: u8) -> &'static str {
    match (mode, version) {
        ("tunnel", _) => "10.2.0.1",
        (_, 4) => "10.99.0.2",
        _ => "[2001:db8:99::2]",
    }
}

#[test]
fn two_hosts_exchange_packets_without_udp_and_nothing_else_is_on_the_wire() {
    for (algorithms, protocol, mode, version) in [
        (0, "ah", "transport", 4),
        (1, "ah", "transport", 6),
        (2, "ah", "tunnel", 4),
        (0, "ah", "tunnel", 6),
        (0, "esp", "tunnel", 4),
        (1, "esp", "transport", 6),
    ] {
        let far = far(mode, version);
        let text = hosts(
            algorithms,
            &format!(
                "without_udp {protocol} {mode} {version}
                served
                run bash -c '
                    curl -sS -m 20 http://{far}:8080/
                    curl -sS -m 60 http://{far}:8080/big | cmp - web/big && echo same
                    curl -sS -m 3 http://{far}:8081/ 2>&1 | grep -o \"Couldn.t connect\"'
                clear"
            ),
        );
        let number = if protocol == "ah" { 51 } else { 50 };
        let wanted = format!("from behind\nsame\nCouldn't connect\nip {number}\n");
        assert_eq!(text, wanted, "{protocol} {mode} {version}");
    }
}

#[test]
fn packets_without_udp_that_exceed_the_path_are_divided_or_fragmented() {
    for (protocol, version, route) in [
        ("ah", 4, "ip route replace 10.99.0.0/24"),
        ("esp", 4, "ip route replace 10.99.0.0/24"),
        ("ah", 6, "ip -6 route replace 2001:db8:99::/64 metric 256"),
    ] {
        let text = hosts(
            0,
            &format!(
                r#"without_udp {protocol} tunnel {version}
                cat >>far/run.toml <<'END'
[[rule]]
name = "pinged"
direction = "inbound"
protocol = "icmp"
remote = "10.1.0.0/24"
ipsec = {{ sa = "near" }}
END
                served
                # The tunnel of the peer was installed with the MTU of the interface.
                ip link set w0 mtu 1300
                behind {route} dev w1 mtu 1300
                # Without the capability of the file, which a run of root may not get.
                cp "$(command -v ping)" scratch/ping
                run bash -c '
                    # The peer learns the MTU from its first answer, which is lost.
                    scratch/ping -M dont -s 1350 -c 1 -W 1 10.2.0.1 >/dev/null
                    scratch/ping -M dont -s 1350 -c 1 -W 5 10.2.0.1 | grep -o "1 received"
                    curl -sS -m 60 http://10.2.0.1:8080/big | cmp - web/big && echo same'"#
            ),
        );
        assert_eq!(text, "1 received\nsame\n", "{protocol} {version}");
    }
}

/// An echo of scapy, and programs that ask it.
fn scapy(protocol: &str, mode: &str, version: u8, integrity: &str, more: &str) -> String {
    format!(
        "without_udp {protocol} {mode} {version}
        behind /usr/bin/python3 \"$PEERS/raw_sa_peer.py\" {protocol} {mode} {version} \
            far/in.keys far/out.keys {integrity} {more} >scapy.out 2>scapy.log & scapy=$!
        until_true grep -q ready scapy.out"
    )
}

#[test]
fn scapy_reads_and_writes_packets_without_udp() {
    for (algorithms, integrity, protocol, mode, version) in [
        (0, "SHA2-256-128", "ah", "transport", 4),
        (1, "SHA2-384-192", "ah", "transport", 6),
        (2, "SHA2-512-256", "ah", "tunnel", 4),
        (0, "SHA2-256-128", "ah", "tunnel", 6),
        (0, "SHA2-256-128", "esp", "transport", 4),
        (2, "SHA2-512-256", "esp", "tunnel", 6),
    ] {
        let far = far(mode, version).trim_matches(['[', ']']);
        let text = hosts(
            algorithms,
            &format!(
                "{}
                asks() {{
                    run python3 \"$PEERS/datagrams.py\" rounds {far} 5000 3 100 1300; }}
                # The second run has the same keys, and begins with the same sequence number.
                asks; asks
                kill -0 $scapy || fail 'scapy has found a fault'
                clear",
                scapy(protocol, mode, version, integrity, "")
            ),
        );
        let asks = "100 bytes: 0 lost\n1300 bytes: 0 lost\n";
        let number = if protocol == "ah" { 51 } else { 50 };
        let wanted = format!("{asks}{asks}ip {number}\n");
        assert_eq!(text, wanted, "{protocol} {mode} {version}");
    }
}

#[test]
fn ah_packets_with_options_and_extension_headers_of_scapy_are_accepted() {
    for version in [4, 6] {
        let far = far("transport", version).trim_matches(['[', ']']);
        let text = hosts(
            0,
            &format!(
                "{}
                run python3 \"$PEERS/datagrams.py\" rounds {far} 5000 3 100
                kill -0 $scapy || fail 'scapy has found a fault'",
                scapy("ah", "transport", version, "SHA2-256-128", "options")
            ),
        );
        assert_eq!(text, "100 bytes: 0 lost\n", "{version}");
    }
}

#[test]
fn forged_packets_without_udp_are_dropped_and_counted_by_reason() {
    for (protocol, mode, version) in
        [("ah", "transport", 4), ("ah", "tunnel", 6), ("esp", "transport", 4), ("esp", "tunnel", 6)]
    {
        let far = far(mode, version).trim_matches(['[', ']']);
        let text = hosts(
            0,
            &format!(
                r#"{}
                sed -i 's/^spi-in/anti-replay = true\n&/' near/run.toml
                agent
                enrolled bash -c 'python3 "$PEERS/datagrams.py" rounds {far} 5000 2 100
                    touch scratch/up; while [ ! -e scratch/end ]; do sleep 0.1; done' & program=$!
                until_true [ -e scratch/up ]
                control show sa --json | tr -d '\n'; echo
                touch scratch/end; wait $program
                kill -0 $scapy || fail 'scapy has found a fault'"#,
                scapy(protocol, mode, version, "SHA2-256-128", "attack")
            ),
        );
        let (asked, shown) = text.split_once('\n').unwrap();
        assert_eq!(asked, "100 bytes: 0 lost", "{protocol} {mode} {version}");
        let shown: Value = serde_json::from_str(shown).unwrap();
        let count = |reason: &str| {
            let all = shown["drops"].as_array().unwrap();
            all.iter()
                .find(|one| one["reason"] == reason)
                .map_or(0, |one| one["count"].as_u64().unwrap())
        };
        let reasons = ["integrity", "unknown-spi", "malformed", "outer-address", "replayed"];
        assert_eq!(reasons.map(count), [3, 2, 1, 4, 5], "{protocol} {mode} {version}: {shown}");
    }
}

#[test]
fn sas_without_udp_are_shown_explained_logged_and_audited() {
    let text = hosts(
        0,
        r#"without_udp ah tunnel 4
        served
        agent
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1:8080/; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done' >/dev/null & program=$!
        until_true [ -e scratch/up ]
        control show sa --json | tr -d '\n'; echo
        control show policy --json | grep -c '"ah"'
        control explain --direction outbound --remote 10.2.0.1:8080 2>&1 |
            grep -o 'through a tunnel to the peer \[sa.far\]'
        until_true grep -q 'sa-installed' agent.log; until_true grep -q 'sa-installed' scratch/audit
        grep -o 'sa-installed' agent.log scratch/audit
        grep -c sa-port-not-available agent.log
        control show limits | grep -c 'net_raw'
        touch scratch/end; wait $program"#,
    );
    let (sa, rest) = text.split_once('\n').unwrap();
    assert_fits("show-sa", sa);
    let sa: Value = serde_json::from_str(sa).unwrap();
    let one = &sa["tunnels"][0];
    assert_eq!((&one["protocol"], &one["encapsulation"]), (&"ah".into(), &"none".into()));
    assert_eq!((&one["peer"], &one["outer-local"]), (&"10.99.0.2".into(), &"10.99.0.1".into()));
    assert_eq!(one["proposal"], "sha256");
    assert!(one["inbound"]["packets"].as_u64().unwrap() >= 4, "{one}");
    assert_eq!(
        rest,
        "1\nthrough a tunnel to the peer [sa.far]\nagent.log:sa-installed\n\
         scratch/audit:sa-installed\n0\n0\n"
    );
}

#[test]
fn an_agent_without_the_right_to_raw_sockets_does_not_start() {
    let text = hosts(
        0,
        r#"raw_policies ah tunnel 4
        [ -z "$OWNER_OF_RUNS" ] || chown -R "$OWNER_OF_RUNS" near far
        run true && fail started
        grep -o 'cannot open a raw socket for \[sa.far\]' run.log
        grep -o 'start the agent as root or with CAP_NET_RAW' run.log"#,
    );
    assert!(
        text.ends_with(
            "cannot open a raw socket for [sa.far]\n\
             start the agent as root or with CAP_NET_RAW\n"
        ),
        "{text}"
    );
}

#[test]
fn a_reload_cannot_add_the_first_sas_without_udp() {
    let text = hosts(
        0,
        r#"cp -r near before
        USER_OF_RUNS= OWNER_OF_RUNS=; chown -R 0 near far before
        agent
        raw_policies ah tunnel 4
        control reload 2>&1 |
            grep -o 'this agent has no raw socket for packets that are not sent in UDP'
        control restart >/dev/null || fail restart
        until_true sh -c '[ $(grep -c serving agent.log) = 2 ]'
        control show policy | grep -c 'sa.far'"#,
    );
    assert_eq!(text, "this agent has no raw socket for packets that are not sent in UDP\n1\n");
}

#[test]
fn tshark_decodes_ah_and_decrypts_esp_without_udp() {
    let capture = recorded_page();
    let text = hosts(
        0,
        &format!(
            r#"without_udp ah tunnel 4
            {capture}
            count() {{ tshark -r wire.pcap -Y "$1" 2>tshark.log | wc -l; }}
            all=$(count ah)
            sound=$(count 'ah.length == 5 and ip.addr == 10.1.0.1 and not _ws.malformed')
            [ "$all" -ge 8 ] && [ "$sound" = "$all" ] || fail "decoded $sound of $all"
            [ "$(count 'ah.spi == 0x1002 and http.request')" -ge 1 ] || fail http
            echo decoded"#
        ),
    );
    assert_eq!(text, "from behind\ndecoded\n");
    let steps = format!("without_udp esp tunnel 4\n{capture}{DECRYPTED}echo decrypted");
    let text = hosts(0, &steps);
    assert_eq!(text, "from behind\ndecrypted\n");
}
