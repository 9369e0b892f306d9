//! Tests the warnings of `tacit check` about the host on which the command runs.

use crate::machines::Machines;

#[test]
fn check_warns_about_what_would_cut_this_host_off() {
    let rules = "[[rule]]\nname = \"all\"\ndirection = \"outbound\"\nremote = \"192.0.2.0/24\"\n\
                 tls = { trust = \"ca\", server-name = \"far.example\" }\n\
                 [[rule]]\nname = \"served\"\ndirection = \"inbound\"\n\
                 local-ports = [22, 15001]\n\
                 tls = { identity = \"host\", client-cert = \"none\" }\n";
    Machines::new("unmatched = \"permit\"", rules).expect(
        r#"
        warnings() {
            ./tacit check host.toml 2>&1 |
                sed -n 's/^host.toml:\([0-9]*\):.*\[\(.*\)\]: .*/\1 \2/p'
        }
        unset SSH_CONNECTION
        echo nameserver 127.0.0.53 >resolv.conf
        mount --bind resolv.conf /etc/resolv.conf
        sed -i 's/, 15001//' host.toml
        warnings
        echo ---
        sed -i 's/= \[22\]/= [22, 15001]/' host.toml
        echo nameserver 192.0.2.2 >resolv.conf
        ip rule add priority 99 fwmark 0x10000000/0x10000000 lookup 100
        export SSH_CONNECTION="192.0.2.2 40000 192.0.2.1 22"
        warnings
        ./tacit check host.toml 2>&1 | grep -o 'routing rule with priority 99'"#,
        "
---
2 mark-in-use
9 resolver-cut-off
9 session-cut-off
14 session-cut-off
14 agent-captured
routing rule with priority 99
",
    );
}
