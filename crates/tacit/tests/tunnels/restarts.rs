//! Tests that a new agent takes over the TUN device of a run: while the agent is replaced, packets
//! wait for the tunnels of the new agent, and no connection is refused.

use crate::{Scenario, WEB, web};

/// A program that connects to the server again and again, and the counts of its connections.
const CONNECTS: &str = r#"agent; service=$!
    enrolled python3 "$PEERS/connecting.py" 10.2.0.1 80 scratch/end >>scratch/said & program=$!
    connections() { grep -c connected scratch/said; }
    connected() { [ "$(connections)" -ge "$1" ]; }
    serves() { [ "$(grep -c 'serving policy=' agent.log)" = "$1" ]; }
    # replaced N: the agent is replaced by the Nth, and the program connects.
    replaced() {
        control restart >/dev/null || fail restart
        until_true serves $1
        until_true connected $(($(connections) + 50))
    }
    until_true connected 50
"#;

/// What a program sees of restarts, with these addresses inside the tunnel. The second restart
/// hands over what the first one has taken over. A successor that does not start takes nothing.
fn restarts(inner: &str) -> String {
    let steps = format!(
        "{CONNECTS}
        replaced 2
        cp private/run.toml good.toml; echo wrong >>private/run.toml
        ! control restart >/dev/null 2>&1 || fail 'a restart with a wrong policy'
        cat good.toml >private/run.toml
        until_true connected $(($(connections) + 50))
        replaced 3
        touch scratch/end; wait $program || fail 'the program'
        sort scratch/said | uniq | grep -v '^connected$'
        clear"
    );
    Scenario { rules: WEB, inner, steps: &steps }.output()
}

#[test]
fn new_connections_wait_while_the_agent_is_replaced() {
    assert_eq!(restarts(r#"["10.1.0.1", "fd01::1"]"#), "only UDP 4500\n");
}

#[test]
fn new_connections_wait_while_the_gateway_assigns_the_address_to_the_new_agent() {
    assert_eq!(restarts("\"gateway\""), "only UDP 4500\n");
}

#[test]
fn the_device_ends_with_the_agent_that_has_taken_it_over() {
    let text = web(&format!(
        "{CONNECTS}
        replaced 2
        kill -9 $service $(tree $service)
        refused() {{ grep -q EHOSTUNREACH scratch/said; }}
        until_true refused
        sleep 1
        connections >before
        sleep 1
        [ \"$(connections)\" = \"$(cat before)\" ] || fail 'connected without an agent'
        touch scratch/end
        clear"
    ));
    assert_eq!(text, "only UDP 4500\n");
}

#[test]
fn a_successor_whose_policy_has_no_tunnels_removes_the_routes() {
    let text = web(&format!(
        "{CONNECTS}
        sed -i 's/^ipsec.*/permit = true/' private/run.toml
        replaced 2
        touch scratch/end
        clear"
    ));
    assert_eq!(text, "tcp 80\n");
}
