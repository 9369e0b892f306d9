//! Tests new policies that an operator must confirm in time. Without a confirmation, the agent must
//! install the previous policy again.

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
        ./tacit confirm --control host.sock 2>&1 | grep -o 'was not confirmed in time'
        ./tacit reload --confirm 300 --control host.sock | head -1
        ./tacit confirm --control host.sock
        ask 192.0.2.2 8000 word
        ./tacit reload --control host.sock | head -1
        ./tacit confirm --control host.sock
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
was not confirmed in time
policy generation 4; added: denied
the agent keeps the installed policy, because you have confirmed it
ECONNREFUSED
policy generation 5: no rule changed
the installed policy needs no confirmation
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

/// Denies TCP to one port of the far machine, and permits it to another.
fn filters(denied: u16, permitted: u16) -> String {
    let rule = |name: &str, port: u16, action: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nprotocol = \"tcp\"\nremote = \"192.0.2.2\"\n\
             remote-ports = {port}\n{action}\n"
        )
    };
    rule("closed", denied, "filter = \"deny\"\ndiscard = \"reset\"")
        + &rule("open", permitted, "filter = \"permit\"")
}

#[test]
fn filters_that_are_not_confirmed_give_way_to_those_of_the_guard() {
    let machines = Machines::new("unmatched = \"permit\"", TLS);
    for (name, denied, permitted) in [("guard.toml", 8000, 8001), ("new.toml", 8001, 8000)] {
        machines.write("filters", &filters(denied, permitted));
        machines.ok(&format!("cat host.toml filters >{name}"));
    }
    machines.expect(
        r#"
        serve far 8001
        both() { ask 192.0.2.2 8000 word; ask 192.0.2.2 8001 word; }
        ./tacit agent --host --guard --policy guard.toml
        both
        cp new.toml host.toml
        capture --confirm 6
        both
        ask 192.0.2.2 4433 marked
        wait $agent
        grep -c 'policy-taken-back.*restored the earlier nftables rules' host.log
        both
        ask 192.0.2.2 4433 marked
        cp guard.toml host.toml
        capture
        both
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
1
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
0
",
    );
}
