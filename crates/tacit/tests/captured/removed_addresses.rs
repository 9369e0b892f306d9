//! Tests that no byte leaves in clear if the address of a program is removed from the host while a
//! connection is open. The route to the removed address leads to the other machine.

use crate::containers::BOX;
use crate::machines::{Machines, SERVED, TLS};

/// The addresses that are removed, and programs that use them.
///
/// ```text
///   pushing FROM TO PORT   sends a marked word again and again, and reads the answers
///   pushing any TO PORT CA NAME   the same with TLS, and reads nothing
/// ```
const ADDRESSES: &str = r#"
ip route add default via 192.0.2.2; ip -6 route add default via 2001:db8::2
ip addr add 10.79.0.5/32 dev v0; ip addr add 2001:db8:79::5/128 dev v0 nodad
in_far ip route add 10.79.0.5 via 192.0.2.1
in_far ip -6 route add 2001:db8:79::5 via 2001:db8::1
remove() { ip addr del 10.79.0.5/32 dev v0; ip addr del 2001:db8:79::5/128 dev v0; }
cat >pushing.py <<'END'
import socket, ssl, sys, time
source, to, port, trust, name = (sys.argv[1:] + ["", ""])[:5]
family = socket.AF_INET6 if ":" in to else socket.AF_INET
client = socket.socket(family)
if source != "any":
    client.bind((source, 0))
client.settimeout(3)
client.connect((to, int(port)))
if trust:
    context = ssl.create_default_context(cafile=trust)
    client = context.wrap_socket(client, server_hostname=name)
client.settimeout(1)
try:
    for number in range(100000 if trust else 200):
        client.sendall(b"marked" * (1000 if trust else 1))
        if not trust:
            client.recv(4096)
            time.sleep(0.01)
        if number == 20:
            open(f"pushed.{to}.{port}", "w")
    print("continued")
except OSError:
    open(f"stopped.{to}.{port}", "w")
END
pushed() { [ -e "pushed.$1" ]; }; stopped() { [ -e "stopped.$1" ]; }
"#;

fn machines(settings: &str) -> Machines {
    Machines::new(settings, &format!("{TLS}{SERVED}"))
}

#[test]
fn an_address_of_a_client_that_is_removed() {
    machines("unmatched = \"permit\"").expect(
        &format!(
            r#"{ADDRESSES}
            capture
            start python3 pushing.py 10.79.0.5 192.0.2.2 4433
            start python3 pushing.py 2001:db8:79::5 2001:db8::2 4433
            until_true pushed 192.0.2.2.4433; until_true pushed 2001:db8::2.4433
            remove
            until_true stopped 192.0.2.2.4433; until_true stopped 2001:db8::2.4433
            sleep 1; seen marked"#
        ),
        "
0
",
    );
}

/// A server that reads nothing until an address is removed, so that the agent has data for it.
const SLOW: &str = r#"
import os, socket, threading, time
server = socket.create_server(("::", 7070), family=socket.AF_INET6, dualstack_ipv6=True)
def serve(client):
    while not os.path.exists("removed"):
        time.sleep(0.02)
    while client.recv(65536):
        pass
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"#;

#[test]
fn an_address_of_a_server_that_is_removed() {
    let machines = machines("unmatched = \"permit\"");
    machines.write("slow.py", SLOW);
    machines.expect(
        &format!(
            r#"{ADDRESSES}
            start python3 slow.py; until_true serving "" 7070
            capture
            push() {{ start_far python3 pushing.py any $1 7070 ca.pem 192.0.2.1; }}
            push 10.79.0.5; push 2001:db8:79::5
            until_true stopped 10.79.0.5.7070; until_true stopped 2001:db8:79::5.7070
            remove; touch removed
            sleep 2; seen marked"#
        ),
        "
0
",
    );
}

#[test]
fn an_interface_of_containers_that_is_removed() {
    machines("unmatched = \"permit\"\nforwarded = [\"br0\"]").expect(
        &format!(
            r#"{ADDRESSES}{BOX}
            capture
            start_box python3 pushing.py any 192.0.2.2 4433
            start_box python3 pushing.py any 2001:db8::2 4433
            until_true pushed 192.0.2.2.4433; until_true pushed 2001:db8::2.4433
            seen marked
            ip link del br0
            until_true stopped 192.0.2.2.4433; until_true stopped 2001:db8::2.4433
            sleep 1; seen marked"#
        ),
        "
0
0
",
    );
}
