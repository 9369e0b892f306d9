//! Tests what a guard installs at boot if the policy of the host has an error. No byte of a
//! protected flow may leave the host in clear.

use crate::containers::BOX;
use crate::machines::{Machines, TLS};

/// What the scripts share.
const STEPS: &str = r#"
guard() {
    ./tacit agent --host --guard --last-policy last.policy --policy host.toml 2>guard.log; echo $?
}
client() { in_far timeout 20 python3 peer.py ask 192.0.2.1 "$@"; }
tree() { echo $1; for child in $(pgrep -P $1); do tree $child; done; }
# Captures, and waits until the policy is stored.
capture_and_store() {
    rm -f last.policy
    capture --last-policy last.policy
    until_true [ -e last.policy ]
}
# What a power failure leaves: neither processes nor nftables rules.
lose_power() {
    kill -9 $(tree $agent)
    removed() { ./tacit agent --host --remove 2>/dev/null; }
    until_true removed
}
"#;

const SERVED: &str = r#"
[[rule]]
name = "served"
direction = "inbound"
local-ports = 7070
tls = { identity = "host", client-cert = "none" }
"#;

fn expect(machines: &Machines, script: &str, wanted: &str) {
    machines.expect(&format!("{STEPS}{script}"), wanted);
}

#[test]
fn a_guard_installs_the_last_policy_if_the_policy_has_an_error() {
    let machines = Machines::new("unmatched = \"permit\"", &format!("{TLS}{SERVED}"));
    machines.change("host.toml", |host| {
        host.replace("version = 1\n", "version = 1\ninclude = \"more.toml\"\n")
    });
    let more = "[[rule]]\nname = \"denied\"\ndirection = \"outbound\"\nremote = \"192.0.2.2\"\n\
                remote-ports = 8000\ndeny = true\n";
    machines.write("more.toml", more);
    expect(
        &machines,
        r#"
        serve host 7070; serve host 7071; serve far 8002
        capture_and_store
        ask 192.0.2.2 4433 marked
        stat -c %a last.policy
        lose_power
        ask 192.0.2.2 8000 word
        mv more.toml less.toml
        guard
        grep -o 'warning.last-policy-installed.*' guard.log
        ask 192.0.2.2 4433 marked
        ask 2001:db8::2 4433 marked
        client 7070 marked
        client 7071 word
        ask 192.0.2.2 8000 word
        ask 192.0.2.2 8002 word
        # What is there stays.
        rm last.policy; guard
        grep -o 'warning.guard-changed-nothing.*' guard.log
        ask 192.0.2.2 4433 marked
        mv less.toml more.toml
        guard
        capture_and_store
        ask 192.0.2.2 4433 marked
        ls last.policy
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
600
answer to word from ::ffff:192.0.2.1
78
warning[last-policy-installed]: the nftables rules of the last policy that an agent installed are \
         in force, from last.policy
ECONNREFUSED
ECONNREFUSED
ECONNREFUSED
answer to word from ::ffff:192.0.2.2
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
78
warning[guard-changed-nothing]: the nftables rules that the host has stay in force
ECONNREFUSED
0
answer to marked from ::ffff:127.0.0.1
last.policy
0
",
    );
}

#[test]
fn a_policy_is_stored_when_it_is_installed_and_one_with_confirm_when_it_is_confirmed() {
    expect(
        &Machines::new("unmatched = \"permit\"", TLS),
        r#"
        rule() {
            printf '%s\n' '[[rule]]' "name = \"$1\"" 'direction = "outbound"' \
                "remote-ports = $2" 'deny = true' >>host.toml
        }
        look() { tail -n +2 last.policy | cmp - host.toml && echo stored; }
        capture_and_store; look
        rule second 8002; ./tacit reload --control host.sock >/dev/null; look
        rule third 8003; ./tacit reload --confirm 60 --control host.sock >/dev/null
        grep -c third last.policy
        ./tacit confirm --control host.sock >/dev/null; look
        cp last.policy before
        rule fourth 8004; ./tacit reload --confirm 1 --control host.sock >/dev/null
        until_true grep -q 'policy-taken-back' host.log
        echo wrong >>host.toml
        ./tacit reload --control host.sock >/dev/null 2>&1; echo $?
        cmp before last.policy && echo same"#,
        "
stored
stored
0
stored
1
same
",
    );
}

#[test]
fn a_host_without_a_policy_that_can_be_used_is_closed() {
    let script = r#"
        serve host 22; serve host 7070; serve host 7071
        capture_and_store
        lose_power
        cp last.policy good
        echo wrong >>host.toml
        close() {
            guard
            grep -o 'cannot be used either: .*' guard.log
            ask 192.0.2.2 4433 marked
        }
        open() { ./tacit agent --host --remove; }
        echo x >>last.policy; close
        ask 2001:db8::2 8000 marked
        for port in 7070 7071 22; do client $port word; done
        in_box timeout 2 python3 peer.py ask 192.0.2.2 8000 marked || echo none
        open
        head -c 100 good >last.policy; close; open
        sed '1s/ 1 / 2 /' good >last.policy; close; open
        sed 's/4433/4434/' good >last.policy; close; open
        cp good last.policy; chmod 666 last.policy; close; open
        rm last.policy; close; open
        ln -s good last.policy; close; open
        in_box_ask 192.0.2.2 8000 word
        seen marked"#;
    expect(
        &Machines::new("unmatched = \"permit\"", &format!("{TLS}{SERVED}")),
        &format!("{BOX}{script}"),
        "
78
cannot be used either: it is damaged: its checksum is wrong
ECONNREFUSED
ECONNREFUSED
ECONNREFUSED
ECONNREFUSED
answer to word from ::ffff:192.0.2.2
none
78
cannot be used either: it is truncated
ECONNREFUSED
78
cannot be used either: it has version 2 of the format; this tacit reads 1
ECONNREFUSED
78
cannot be used either: it is damaged: its checksum is wrong
ECONNREFUSED
78
cannot be used either: other users can write to it (mode 0666; the agent uses 0600)
ECONNREFUSED
78
cannot be used either: No such file or directory (os error 2)
ECONNREFUSED
78
cannot be used either: it is not a regular file
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
0
",
    );
}
