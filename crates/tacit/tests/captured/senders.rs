//! Tests rules that select programs of a captured host by user, control group or executable.

use crate::machines::Machines;

/// What scripts need to act as another user, or in a control group.
const SENDERS: &str = r#"
chmod a+rx . && chmod a+r peer.py
python=$(readlink -f /usr/bin/python3)
cgroups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
group=tacit-$$
make_group() { mkdir "$cgroups/$group" "$cgroups/$group/inner"; }
end_group() { rmdir "$cgroups/$group/inner" "$cgroups/$group"; } 2>/dev/null
trap 'finish; end_group' EXIT
as_user() {
    timeout 60 setpriv --reuid=54321 --regid=54321 --clear-groups $python "$@"
}
in_group() { (echo $BASHPID >"$cgroups/$1/cgroup.procs" && "${@:2}"); }
ask() { timeout 20 $python peer.py ask "$@"; }
"#;

const TLS: &str = "tls = { trust = \"ca\", server-name = \"far.example\" }";

fn rule(name: &str, port: u16, rest: &str) -> String {
    format!(
        "[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\nremote = \"192.0.2.2\"\n\
         remote-ports = {port}\n{rest}\n"
    )
}

/// Runs a script as root: only root can become another user, and make control groups.
fn expect(rules: &[String], script: &str, wanted: &str) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user and make control groups");
        return;
    }
    let script = format!("{SENDERS}\n{script}");
    Machines::new("unmatched = \"permit\"", &rules.concat()).expect(&script, wanted);
}

#[test]
fn the_kernel_tells_users_apart_and_the_agent_finds_the_same_rule() {
    let rules = [
        rule("of-user", 4433, &format!("user = \"54321\"\n{TLS}")),
        rule("of-root", 4433, "user = \"root\"\ndeny = true"),
        rule("logged", 8001, "user = [\"54321\", \"daemon\"]\npermit = true\nlog = true"),
        rule("denied", 8001, "deny = \"prohibited\""),
        rule("of-group", 8004, "group = \"54321\"\ndeny = true"),
        rule("rest", 8004, "permit = true\nlog = true"),
    ];
    expect(
        &rules,
        r#"
        serve far 8001; serve far 8004
        capture
        as_user peer.py ask 192.0.2.2 8004 word
        ask 192.0.2.2 8004 word
        as_user peer.py ask 192.0.2.2 4433 marked
        ask 192.0.2.2 4433 marked
        as_user peer.py ask 192.0.2.2 8001 word
        ask 192.0.2.2 8001 word
        connections of-user of-root logged denied of-group rest
        seen marked"#,
        "
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
EHOSTUNREACH
1 0 1 0 0 1
0
",
    );
}

/// The kernel does not know the user of a socket that its program has closed.
#[test]
fn what_a_closed_socket_still_sends_stays_captured() {
    let rules = [rule("of-user", 4433, &format!("user = \"54321\"\n{TLS}"))];
    expect(
        &rules,
        r#"
        cat >leave.py <<'END'
import socket
for size in (1, 100_000, 2_000_000):
    connection = socket.create_connection(("192.0.2.2", 4433))
    connection.sendall(b"marked" * size)
    connection.close()
print("left")
END
        chmod a+r leave.py
        capture
        as_user leave.py
        ended() { [ "$(ss -Htn dst 192.0.2.2 | wc -l)" = 0 ]; }
        until_true ended
        connections of-user
        seen marked"#,
        "
left
3
0
",
    );
}

#[test]
fn a_rule_for_a_control_group_reaches_those_below_it_and_waits_for_it() {
    let rules = [
        rule("of-group", 4433, &format!("cgroup = \"GROUP\"\n{TLS}")),
        rule("inner", 8001, "cgroup = \"/GROUP/inner\"\ndeny = true"),
    ];
    expect(
        &rules,
        r#"
        sed -i "s/GROUP/$group/" host.toml
        serve far 8001
        capture
        make_group
        inner_is_denied() {
            [ "$(in_group $group/inner ask 192.0.2.2 8001 word)" = ECONNREFUSED ]
        }
        until_true inner_is_denied
        in_group $group ask 192.0.2.2 4433 marked
        in_group $group/inner ask 192.0.2.2 4433 marked
        in_group $group ask 192.0.2.2 8001 word
        connections of-group inner
        seen marked
        end_group; make_group
        until_true inner_is_denied
        in_group $group ask 192.0.2.2 4433 marked
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
2 0
0
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_program_is_known_if_the_helper_may_look_and_gets_the_strictest_rule_otherwise() {
    let rules = [
        rule("of-program", 8001, "program = \"PYTHON\"\npermit = true\nlog = true"),
        rule("others", 8001, "deny = true"),
        rule("denied", 8004, "program = \"/usr/bin/other\"\ndeny = true"),
        rule("rest", 8004, "permit = true"),
    ];
    expect(
        &rules,
        r#"
        sed -i "s:PYTHON:$python:" host.toml
        serve far 8001; serve far 8004
        capture
        ask 192.0.2.2 8001 word
        ask 192.0.2.2 8004 word
        kill $agent; wait $agent 2>/dev/null
        until_true ./tacit agent --host --remove 2>/dev/null
        start setpriv --bounding-set=-sys_ptrace \
            ./tacit agent --host --policy host.toml --control host.sock 2>host.log
        until_true agent_ready host.log
        ask 192.0.2.2 8001 word
        ask 192.0.2.2 8004 word
        connections of-program others denied rest"#,
        "
answer to word from ::ffff:192.0.2.1
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
ECONNREFUSED
0 1 1 0
",
    );
}

/// Units are control groups in slices; `start_unit` does what systemd does with `NFTSet=`, and a
/// `systemctl` prints a version of systemd that has it.
const UNIT: &str = r#"
unit=tacit-$$.service slice=tacit$$.slice
sed -i "s/UNIT/$unit/" host.toml
trap 'finish; rmdir "$cgroups/$slice/$unit" "$cgroups/$slice"' EXIT
mkdir programs
printf '#!/bin/sh\necho "systemd 257 (257.9-1)"\n' >programs/systemctl
chmod +x programs/systemctl
export PATH=$PWD/programs:$PATH
mount -t tmpfs none /run
mkdir -p "/run/systemd/system/$unit.d"
cat >"/run/systemd/system/$unit.d/50-tacit.conf" <<'D'
# Written by `tacit agent --host --drop-ins`: the control group of this unit becomes known
# to the nftables rules before the first process of the unit starts.
[Service]
NFTSet=cgroup:inet:tacit_units:units
D
make_unit() { mkdir -p "$cgroups/$slice/$unit"; }
start_unit() {
    make_unit
    python3 -c 'import nft, os, struct, sys
print(nft.add("tacit_units", "units", struct.pack("=Q", os.stat(sys.argv[1]).st_ino)))' \
        "$cgroups/$slice/$unit"
}
in_unit() { in_group "$slice/$unit" "$@"; }
count_units() {
    python3 -c 'import nft
print(len(nft.elements("tacit_units", "units")))'
}
serve far 8001
"#;

fn unit_rules() -> [String; 3] {
    [
        rule("unit", 4433, &format!("unit = \"UNIT\"\n{TLS}")),
        rule("denied", 8001, "unit = \"UNIT\"\ndeny = true"),
        "[[rule]]\nname = \"others\"\ndirection = \"outbound\"\nremote-ports = \"1-9999\"\n\
         permit = true\n"
            .to_owned(),
    ]
}

#[test]
fn a_rule_for_a_unit_decides_about_its_first_packet_and_other_flows_pass_the_agent_by() {
    let script = format!(
        r#"{UNIT}
        ./tacit agent --host --guard --policy host.toml
        start_unit
        in_unit ask 192.0.2.2 4433 marked
        capture
        in_unit ask 192.0.2.2 8001 word
        in_unit ask 192.0.2.2 4433 marked
        ask 192.0.2.2 8001 word
        connections unit denied others
        in_unit mkdir "$cgroups/$slice/$unit/inner"
        in_group "$slice/$unit/inner" ask 192.0.2.2 8001 word
        rmdir "$cgroups/$slice/$unit/inner"
        kill -9 $(pgrep -P $agent)
        refused() {{ [ "$(in_unit ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }}
        until_true refused
        ask 192.0.2.2 8001 word
        seen marked"#
    );
    let wanted = "
0
ECONNREFUSED
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
1 1 0
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
0
";
    expect(&unit_rules(), &script, wanted);
}

#[test]
fn without_what_systemd_adds_the_agent_decides_about_units_until_the_helper_has_added_it() {
    let script = format!(
        r#"{UNIT}
        make_unit
        capture
        in_unit ask 192.0.2.2 4433 marked
        python3 peer.py flush
        in_unit ask 192.0.2.2 4433 marked
        in_unit ask 192.0.2.2 8001 word
        ask 192.0.2.2 8001 word
        has_unit() {{ [ "$(count_units 2>/dev/null)" = 1 ]; }}
        until_true has_unit
        in_unit ask 192.0.2.2 4433 marked
        restored() {{ grep -c 'removed the nftables rules for systemd units' host.log; }}
        before=$(restored)
        python3 -c 'import nft; print("without rules", nft.remove_rules("tacit_units"))'
        restored_again() {{ [ "$(restored)" -gt $before ]; }}
        until_true restored_again
        rm "/run/systemd/system/$unit.d/50-tacit.conf"
        to_agent() {{ ask 192.0.2.2 8001 word >/dev/null; [ "$(connections others)" -gt 1 ]; }}
        until_true to_agent
        in_unit ask 192.0.2.2 8001 word
        until_true grep -q unit-not-matched host.log
        grep -c unit-not-matched host.log
        seen marked"#
    );
    let wanted = "
answer to marked from ::ffff:127.0.0.1
flushed 0
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
without rules 0
ECONNREFUSED
1
0
";
    expect(&unit_rules(), &script, wanted);
}

#[test]
fn a_rule_with_the_alias_of_a_unit_is_refused_at_the_start_and_by_a_reload() {
    let script = format!(
        r#"{UNIT}
        touch /run/systemd/system/true.service
        ln -s true.service /run/systemd/system/other.service
        make_unit
        sed "s/$unit/other.service/" host.toml >alias.toml
        ./tacit agent --host --policy alias.toml --control host.sock 2>&1 |
            grep -o '`other.service` is an alias of `true.service`'
        capture
        cp host.toml good.toml; cp alias.toml host.toml
        ./tacit reload --control host.sock 2>&1 |
            grep -o '`other.service` is an alias of `true.service`'
        in_unit ask 192.0.2.2 4433 marked
        seen marked"#
    );
    let wanted = "
`other.service` is an alias of `true.service`
`other.service` is an alias of `true.service`
answer to marked from ::ffff:127.0.0.1
0
";
    expect(&unit_rules(), &script, wanted);
}

#[test]
fn with_a_systemd_that_is_too_old_drop_ins_do_not_count() {
    let script = format!(
        r#"{UNIT}
        sed -i s/257/254/ programs/systemctl
        make_unit
        capture
        in_unit ask 192.0.2.2 8001 word
        ask 192.0.2.2 8001 word
        connections denied others
        until_true grep -q unit-not-matched host.log
        grep -c unit-not-matched host.log"#
    );
    let wanted = "
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
1 1
1
";
    expect(&unit_rules(), &script, wanted);
}
