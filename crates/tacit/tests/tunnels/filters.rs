//! Tests the filter rules for packets inside the tunnels of a run.

use crate::Scenario;

/// Rules with `ipsec` permit more than the filters before them.
const RULES: &str = r#"
[[rule]]
name = "web"
filter = "permit"
tunnel = "branch"
protocol = "tcp"
remote-ports = 80
opened-by = "local"
[[rule]]
name = "rest"
filter = "deny"
tunnel = "branch"
[[rule]]
name = "tcp"
direction = "outbound"
remote = "10.2.0.0/24"
ipsec = { ike = "branch" }
[[rule]]
name = "ping"
direction = "outbound"
protocol = "icmp"
remote = "10.2.0.0/24"
ipsec = { ike = "branch" }
"#;

#[test]
fn filters_deny_packets_of_tunnels_until_a_reload_removes_them() {
    let steps = r#"agent
        asks() {
            enrolled bash -c '
                curl -sS -m 20 http://10.2.0.1/
                ping -c 1 -W 1 10.2.0.1 >/dev/null && echo pong || echo denied'
        }
        asks
        control show filters --json | python3 -c "
import json, sys
for one in json.load(sys.stdin)['filters']:
    print(one['name'], one['tunnel'], one['packets'] > 0)"
        control show stats --json | python3 -c "
import json, sys
drops = {one['reason']: one['count'] for one in json.load(sys.stdin)['drops']}
print('filter', drops['filter'])"
        ordinary ./tacit explain --policy private/run.toml \
            --packet 'to-tunnel branch icmp 10.1.0.1 > 10.2.0.1 type 8' |
            sed -n '1s/ (line.*//p'
        sed -i '/^name = "rest"/,/^tunnel/{s/^filter.*/filter = "permit"/}' private/run.toml
        control reload | head -n 1
        asks
        clear"#;
    let text = Scenario { rules: RULES, inner: "\"10.1.0.1\"", steps }.output();
    assert_eq!(
        text,
        "from behind\ndenied\nweb ['branch'] True\nrest ['branch'] True\nfilter 1\n\
         to-tunnel branch icmp 10.1.0.1 > 10.2.0.1 type 8 code 0: deny (silent), because rule \
         `rest`\n\
         policy generation 2; changed: rest\nfrom behind\npong\nonly UDP 4500\n"
    );
}
