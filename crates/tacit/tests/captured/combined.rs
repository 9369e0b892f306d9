//! Tests a captured host with many settings at the same time. The settings are rules by name, rules
//! for senders, rules with time windows, containers, and audit mode. Other tests use each setting
//! alone.

use crate::containers::BOX;
use crate::machines::{Machines, TLS};
use crate::names::{self, NAMED};

#[test]
fn rules_by_name_are_audited_and_enforced_by_a_reload() {
    let machines = names::machines("unmatched = \"permit\"\nmode = \"audit\"", NAMED);
    machines.change("far.toml", |far| {
        far.replace("client-cert = \"none\"", "client-cert = \"none\", accept = \"both\"")
    });
    names::expect(
        &machines,
        r#"
        set_mode() {
            sed -i "s/^mode = .*/mode = \"$1\"/" host.toml
            ./tacit reload --control host.sock 2>/dev/null | grep -o 'policy generation .'
        }
        capture
        lookup far.example
        ask 192.0.2.2 4433 audited
        ./tacit show audit --control host.sock --json | python3 -c "
import json, sys
for rule in json.load(sys.stdin)['rules']: print(rule['rule'], rule['would'], rule['total'])"
        seen audited
        set_mode enforce
        ask 192.0.2.2 4433 marked
        lookup far.example 28
        ask 2001:db8::2 4433 marked
        set_mode audit
        lookup www.far.example
        ask 192.0.2.2 4433 again >/dev/null
        [ $(seen again) != 0 ] && echo in clear again
        seen marked"#,
        "
192.0.2.2
answer to audited from ::ffff:127.0.0.1
named tls 1
2
policy generation 2
answer to marked from ::ffff:127.0.0.1
2001:db8::2
answer to marked from ::ffff:127.0.0.1
policy generation 3
192.0.2.2
in clear again
0
",
    );
}

#[test]
fn names_that_containers_look_up_have_their_rules() {
    let settings = "unmatched = \"permit\"\nforwarded = [\"br0\"]";
    let script = r#"
        in_box_lookup() { in_box python3 client.py lookup "$@"; }
        capture
        in_box_lookup far.example
        in_box_ask 192.0.2.2 4433 marked
        ask 192.0.2.2 4433 marked
        in_box_ask 192.0.2.2 8000 word
        kill -9 $(pgrep -P $agent)
        refused() { [ "$(in_box_ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
        until_true refused
        in_box_lookup far.example 1 192.0.2.2 tcp
        seen marked"#;
    names::expect(
        &names::machines(settings, NAMED),
        &format!("{BOX}{script}"),
        "
192.0.2.2
answer to marked from ::ffff:127.0.0.1
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
0
",
    );
}

fn rule(name: &str, port: u16, rest: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\nremote = \"192.0.2.2\"\n\
         remote-ports = {port}\n{rest}\n"
    )
}

#[test]
fn rules_for_senders_pass_over_flows_of_containers() {
    let rules = [
        rule("of-root", 8001, "user = \"root\"\npermit = true"),
        rule("others", 8001, "deny = true"),
        rule("of-program", 8002, "program = \"/usr/bin/other\"\ndeny = true"),
        rule("rest", 8002, "permit = true"),
        rule("of-user", 4433, "user = \"daemon\"\ndeny = true"),
        rule("tls", 4433, "tls = { trust = \"ca\", server-name = \"far.example\" }"),
    ];
    let script = r#"
        serve far 8001; serve far 8002
        capture
        for port in 8001 8002 4433; do
            ask 192.0.2.2 $port marked-$port
            in_box_ask 192.0.2.2 $port marked-$port
        done
        connections of-user tls
        seen marked-4433"#;
    Machines::new("unmatched = \"permit\"\nforwarded = [\"br0\"]", &rules.concat()).expect(
        &format!("{BOX}{script}"),
        "
answer to marked-8001 from ::ffff:192.0.2.1
ECONNREFUSED
answer to marked-8002 from ::ffff:192.0.2.1
answer to marked-8002 from ::ffff:192.0.2.1
answer to marked-4433 from ::ffff:127.0.0.1
answer to marked-4433 from ::ffff:127.0.0.1
0 2
0
",
    );
}

#[test]
fn a_rule_for_a_user_comes_before_one_by_name_for_the_same_address() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let rules = rule("of-user", 4433, "user = \"54321\"\ndeny = true");
    names::expect(
        &names::machines("unmatched = \"permit\"", &format!("{rules}{NAMED}")),
        r#"
        chmod a+rx . && chmod a+r peer.py
        as_user() {
            timeout 60 setpriv --reuid=54321 --regid=54321 --clear-groups \
                $(readlink -f /usr/bin/python3) peer.py ask "$@"
        }
        capture
        as_user 192.0.2.2 4433 marked
        lookup far.example
        ask 192.0.2.2 4433 marked
        as_user 192.0.2.2 4433 marked
        seen marked"#,
        "
ECONNREFUSED
192.0.2.2
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
0
",
    );
}

/// Waits for a real minute to end: time windows follow the clock of the host.
#[test]
fn open_connections_of_a_window_that_ends_stay_with_the_agent() {
    let denied = rule("later", 8001, "deny = true\nwhen = { from = \"AT\", zone = \"UTC\" }");
    let rules = format!("{TLS}when = {{ until = \"AT\", zone = \"UTC\" }}\n{denied}");
    Machines::new("unmatched = \"permit\"", &rules).expect(
        r#"
        # The next minute that begins in at least 15 seconds.
        at=$((($(date +%s) + 74) / 60 * 60))
        sed -i "s/AT/$(date -u -d @$at '+%Y-%m-%d %H:%M')/" host.toml
        serve far 8001
        capture
        start python3 peer.py hold 192.0.2.2 4433 marked-held go >held.out
        until_true [ -e go.open ]
        ask 192.0.2.2 8001 word; ask 192.0.2.2 4433 marked
        sleep $((at - $(date +%s)))
        denied() { [ "$(ask 192.0.2.2 8001 word)" = ECONNREFUSED ]; }
        until_true denied
        ask 192.0.2.2 4433 afterwards >/dev/null
        [ $(seen afterwards) != 0 ] && echo afterwards in clear
        touch go
        until_true [ -s held.out ]
        cat held.out
        seen marked"#,
        "
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
afterwards in clear
answer to marked-held from ::ffff:127.0.0.1
0
",
    );
}
