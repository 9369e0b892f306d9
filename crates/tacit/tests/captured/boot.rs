//! Tests which nftables rules a guard (`tacit agent --host --guard`) installs at boot if the policy
//! of the host has an error. No byte of a protected flow may leave the host in clear.

use crate::containers::BOX;
use crate::machines::{Machines, SERVED, TLS};

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
warning[last-policy-installed]: the nftables rules of last.policy are in force: this file \
         contains the last policy that an agent installed
ECONNREFUSED
ECONNREFUSED
ECONNREFUSED
answer to word from ::ffff:192.0.2.2
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
78
warning[guard-changed-nothing]: `tacit agent --host --guard` changes nothing: the nftables rules \
         that tacit installed after the boot are in force
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
fn a_policy_that_cannot_be_stored_leaves_no_older_one_and_is_stored_later() {
    let rule = |port| {
        format!(
            "[[rule]]\nname = \"to-{port}\"\ndirection = \"outbound\"\nremote-ports = {port}\n\
             deny = true\n"
        )
    };
    let machines = Machines::new("unmatched = \"permit\"", TLS);
    machines.write("one.toml", &rule(8002));
    machines.write("two.toml", &rule(8003));
    expect(
        &machines,
        r#"
        command() { ./tacit "$@" --control host.sock 2>&1; }
        warned() { grep -o 'warning.policy-not-stored.: the policy was not stored: [A-Z][a-z]* '; }
        stored() { [ -e last.policy ] && tail -n +2 last.policy | cmp -s - $1; }
        capture_and_store
        # The agent cannot write: a directory is where its file would be.
        mkdir -p last.policy.new/full
        cat one.toml >>host.toml; cp host.toml tightened.toml
        command reload | warned
        ls last.policy 2>&1 | grep -o 'No such file'
        # Neither a reload that is taken back nor the time loses the policy.
        cat two.toml >>host.toml
        command reload --confirm 1 | warned
        until_true grep -q 'policy-taken-back' host.log
        grep -c policy-not-stored host.log
        rm -r last.policy.new
        until_true stored tightened.toml
        until_true grep -q 'policy-stored' host.log
        mkdir last.policy.new
        command reload --confirm 60 | warned
        command confirm | warned
        rmdir last.policy.new
        until_true stored host.toml && echo confirmed
        # A policy without [host] would be in force with the old one.
        cp host.toml good.toml
        sed -i '/^\[host\]$/,/^unmatched/d' host.toml
        command reload |
            grep -o 'it has no .host.. At the next boot, the guard (tacit-host-guard.service)'
        stored good.toml && echo same"#,
        "
warning[policy-not-stored]: the policy was not stored: Is 
No such file
warning[policy-not-stored]: the policy was not stored: Is 
1
warning[policy-not-stored]: the policy was not stored: Is 
confirmed
it has no [host]. At the next boot, the guard (tacit-host-guard.service)
same
",
    );
}

/// What a program leaves that restores stored nftables rules at boot: a table of this name, without
/// a comment or with that of another boot.
const RESTORED: &str = r#"
import socket, sys
from nft import *
comment = attribute(6, bytes([0, len(sys.argv[1]) + 1]) + sys.argv[1].encode() + b"\0")
table = text(1, "tacit") + (comment if sys.argv[1] else b"")
batch = message(16, 1, b"", 0, 10) + message(10 << 8, 0x405, table, 1) + message(17, 1, b"", 0, 10)
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
kernel.send(batch)
print("restored", -struct.unpack("=i", kernel.recv(4096)[16:20])[0])
"#;

#[test]
fn a_guard_does_not_trust_nftables_rules_of_another_boot() {
    let machines = Machines::new("unmatched = \"permit\"", TLS);
    machines.write("restored.py", RESTORED);
    expect(
        &machines,
        r#"
        said() {
            guard; grep -o 'warning.[a-z-]*.' guard.log
            ask 192.0.2.2 4433 marked
        }
        capture_and_store
        lose_power
        echo wrong >>host.toml
        for comment in '' 'of boot 5d0c2f7e-4f1c-4c3e-9a55-0f1de2b4a2c1'; do
            python3 restored.py "$comment"
            said
            ./tacit agent --host --remove
        done
        # That of this boot stays, but not without its routing rules.
        said; said
        ip rule del priority 1 lookup 31425
        said
        ip rule show | grep -c 'lookup 31425'
        seen marked"#,
        "
restored 0
78
warning[last-policy-installed]
ECONNREFUSED
restored 0
78
warning[last-policy-installed]
ECONNREFUSED
78
warning[last-policy-installed]
ECONNREFUSED
78
warning[guard-changed-nothing]
ECONNREFUSED
78
warning[last-policy-installed]
ECONNREFUSED
1
0
",
    );
}

#[test]
fn a_guard_says_that_the_last_policy_is_in_audit_mode() {
    expect(
        &Machines::new("unmatched = \"permit\"\nmode = \"audit\"", TLS),
        r#"
        capture_and_store
        lose_power
        echo wrong >>host.toml
        guard
        grep -o 'warning.[a-z-]*.' guard.log
        grep -c 'no nftables rules, because last.policy, .* has mode = "audit"' guard.log"#,
        "
78
warning[last-policy-audits]
1
",
    );
}

#[test]
fn a_host_without_a_policy_that_can_be_used_is_closed() {
    let script = r#"
        serve host 22; serve host 7070
        capture_and_store
        lose_power
        cp last.policy good
        echo wrong >>host.toml
        close() {
            guard
            cannot_use="cannot use last.policy, the last policy that an agent installed"
            sed -n "s/.*$cannot_use: //p" guard.log
            ask 192.0.2.2 4433 marked
        }
        open() { ./tacit agent --host --remove; }
        echo x >>last.policy; close
        ask 2001:db8::2 8000 marked
        for port in 7070 22; do client $port word; done
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
the file is damaged: its checksum is wrong
ECONNREFUSED
ECONNREFUSED
timeout
answer to word from ::ffff:192.0.2.2
none
78
the file is truncated
ECONNREFUSED
78
the file has version 2 of the format, but this tacit reads only version 1
ECONNREFUSED
78
the file is damaged: its checksum is wrong
ECONNREFUSED
78
other users can write to the file (mode 0666; the agent uses 0600)
ECONNREFUSED
78
No such file or directory (os error 2)
ECONNREFUSED
78
the file is not a regular file
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
0
",
    );
}

const PACKETS: &str = r#"
import socket, sys

def send(kind, protocol, word, port, own_port=0):
    end = socket.socket(socket.AF_INET, kind, protocol)
    if own_port:
        end.bind(("0.0.0.0", own_port))
    try:
        end.sendto(word, ("192.0.2.2", port))
    except OSError:
        pass

end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if sys.argv[1] == "answer":
    end.bind(("192.0.2.1", 5000))
    open("packets.ready", "w")
    while True:
        _, peer = end.recvfrom(99)
        try:
            end.sendto(b"marked-answer", peer)
        except OSError:
            pass
if sys.argv[1] == "ask":
    end.sendto(b"question", ("192.0.2.1", 5000))
else:
    for port in (67, 547, 5000):
        send(socket.SOCK_DGRAM, 0, b"marked-datagram", port)
    for protocol in (47, 50, 132):
        send(socket.SOCK_RAW, protocol, b"marked-raw", 0)
    send(socket.SOCK_RAW, 1, bytes([8, 0, 0, 0, 0, 1, 0, 1]) + b"marked-echo", 0)
    send(socket.SOCK_DGRAM, 0, b"of-dhcp", 67, 68)
"#;

#[test]
fn a_closed_host_sends_no_packets_but_those_of_ssh_dhcp_and_neighbours() {
    let machines = Machines::new("unmatched = \"permit\"", TLS);
    machines.write("packets.py", PACKETS);
    expect(
        &machines,
        r#"
        start python3 packets.py answer
        until_true [ -e packets.ready ]
        serve host 22
        packets() {
            python3 packets.py send; in_far python3 packets.py ask
            # The replies have the words too.
            sleep 0.5
            seen marked-datagram marked-raw marked-echo marked-answer
        }
        before=$(packets); dhcp=$(seen of-dhcp)
        [[ " $before " = *" 0 "* ]] || echo all
        echo wrong >>host.toml
        guard
        [ "$(packets)" = "$before" ] && echo none
        [ $(seen of-dhcp) -gt $dhcp ] && echo dhcp
        ip neigh flush dev v0; in_far ip neigh flush dev v1
        client 22 word
        in_far timeout 20 python3 peer.py ask 2001:db8::1 22 word
        # A program with the port of SSH opens nothing.
        kill ${background[-1]}; until_true eval '! serving "" 22'
        python3 - <<'P'
import errno, socket
end = socket.socket()
end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
end.bind(("192.0.2.1", 22))
print(errno.errorcode[end.connect_ex(("192.0.2.2", 8000))])
P"#,
        "
all
78
none
dhcp
answer to word from ::ffff:192.0.2.2
answer to word from 2001:db8::2
ECONNREFUSED
",
    );
}
