//! Tests that a flood of IKE_SA_INIT requests uses limited memory, and that real gateways still
//! connect.

use std::env;

use crate::{ALL, Scenario};

/// The flood has at least so many requests, and lasts until the gateway has its tunnel: a gateway
/// whose request was lost sends it again after seconds. `IKE_FLOOD=1000000` sends each port of each
/// address once.
const REQUESTS: &str = "200000";
/// The agent may need this much more memory than before, in KiB.
const GROWTH_KIB_MAX: u64 = 32 * 1024;

/// How many first requests get a full answer, until cookies are demanded.
const ANSWERED_MAX: u64 = 1_000;

/// A gateway at each of the addresses that send the flood. Requests from other addresses need no
/// memory and get no answer.
fn other_peers() -> String {
    let peer = |number: u8| {
        format!(
            r#"[[rule]]
name = "other-{number}"
direction = "inbound"
remote = "10.4.{number}.0/24"
local-ports = 9070
ipsec = {{ ike = "other-{number}" }}
[ike.other-{number}]
peer = "10.99.1.{number}"
psk-file = "psk"
local-id = "branch.example"
remote-id = "gw-{number}.example"
inner = "10.1.1.{number}"
"#
        )
    };
    (1..=50).map(peer).collect()
}

#[test]
fn a_gateway_opens_its_tunnel_during_a_flood_of_first_requests() {
    let requests = env::var("IKE_FLOOD").unwrap_or_else(|_| REQUESTS.to_owned());
    let steps = format!(
        r#"mkdir served; echo "from the run" >served/index.html
        agent; service=$!
        enrolled bash -c 'python3 -m http.server --directory served 9070 >/dev/null 2>&1 &
            touch scratch/up; wait' &
        until_true [ -e scratch/up ]; sleep 1
        resident() {{
            local pid
            for pid in $service $(tree $service); do cat /proc/$pid/status 2>/dev/null; done |
                awk '/^VmRSS/ {{ sum += $2 }} END {{ print sum }}'
        }}
        before=$(resident)
        start nsenter -t $peer -n python3 "$PEERS/ike_flood.py" w1 10.99.0.1 {requests} flooded
        until_true grep -q begun flooded; sleep 0.5
        begin=$(date +%s%3N)
        swan --initiate --child net >initiate 2>&1 || fail "$(cat initiate)"
        echo "the tunnel was open after $(($(date +%s%3N) - begin)) ms" >times
        # The flood has not ended before.
        ! grep -q sent flooded || fail "$(cat flooded)"
        behind curl -sS -m 20 --interface 10.2.0.1 http://10.1.0.1:9070/
        touch flooded-enough; tries_max=2400; until_true grep -q sent flooded
        echo "$before $(resident)"
        echo "$(tail -n 1 flooded); $(cat times)"
        clear"#
    );
    let rules = format!("{ALL}remote = \"10.2.0.0/24\"\n{}", other_peers());
    let text = Scenario { rules: &rules, inner: "\"10.1.0.1\"", steps: &steps }.output();
    let lines: Vec<&str> = text.lines().collect();
    let [served, memory, flooded, wire] = lines[..] else { panic!("{text}") };
    assert_eq!(served, "from the run");
    let kib: Vec<u64> = memory.split(' ').filter_map(|one| one.parse().ok()).collect();
    assert_eq!(kib.len(), 2, "{text}");
    assert!(kib[1] < kib[0] + GROWTH_KIB_MAX, "{text}");
    let counts: Vec<u64> = flooded.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [cookies, others, ..] = counts[..] else { panic!("{text}") };
    assert!(cookies > 1_000 && others <= ANSWERED_MAX, "{text}");
    println!("{flooded}, {memory} KiB resident");
    assert_eq!(wire, "only UDP 4500");
}
