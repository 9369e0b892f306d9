//! Tests that the agent installs the previous policy again unless the operator confirms the new one
//! in time.

use crate::machines::{Machines, TLS};

const DENY: &str = r#"
        cat >more <<'E'
[[rule]]
name = "denied"
direction = "outbound"
remote = "192.0.2.2"
remote-ports = 8000
deny = true
E
"#;

#[test]
fn a_policy_that_is_not_confirmed_returns_to_the_one_before() {
    let script = r#"
        capture
        cat more >>host.toml
        ./tacit reload --confirm 8 --control host.sock | head -1
        ask 192.0.2.2 8000 word
        ./tacit reload --control host.sock 2>&1 | grep -o 'waits for a confirmation'
        ./tacit restart --control host.sock 2>&1 | grep -o 'waits for a confirmation'
        taken_back() { grep -q policy-taken-back host.log; }
        until_true taken_back
        ask 192.0.2.2 8000 word
        ask 192.0.2.2 4433 marked
        ./tacit confirm --control host.sock
        ./tacit reload --confirm 300 --control host.sock | head -1
        ./tacit confirm --control host.sock
        ask 192.0.2.2 8000 word
        ./tacit reload --control host.sock | head -1
        seen marked"#;
    Machines::new("unmatched = \"permit\"", TLS).expect(
        &format!("{DENY}{script}"),
        "
policy generation 2; added: denied
ECONNREFUSED
waits for a confirmation
waits for a confirmation
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
the installed policy needs no confirmation
policy generation 4; added: denied
the agent keeps the installed policy, because you have confirmed it
ECONNREFUSED
policy generation 5: no rule changed
0
",
    );
}

#[test]
fn a_capture_that_is_not_confirmed_ends_and_leaves_what_was_there_before() {
    let script = r#"
        cat more >>host.toml
        for before in nothing guard; do
            [ $before = nothing ] || ./tacit agent --host --guard --policy host.toml
            capture --confirm 6
            ask 192.0.2.2 8000 word
            wait $agent
            ask 192.0.2.2 8000 word
            [ "$(ask 192.0.2.2 4433 clear)" = ECONNREFUSED ] && echo refused || echo in clear
        done
        capture --confirm 300
        ./tacit confirm --control host.sock
        ask 192.0.2.2 4433 marked
        seen marked"#;
    Machines::new("unmatched = \"permit\"", TLS).expect(
        &format!("{DENY}{script}"),
        "
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
in clear
ECONNREFUSED
ECONNREFUSED
refused
the agent keeps the installed policy, because you have confirmed it
answer to marked from ::ffff:127.0.0.1
0
",
    );
}
