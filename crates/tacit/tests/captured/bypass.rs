//! Tests that captured traffic of a host cannot bypass the agent. In most tests, programs or other
//! hosts try to bypass the agent, for example with forged packets. Another test installs a new
//! policy while a captured connection is open.

use crate::machines::{Machines, TLS};

/// What the scripts use beside the commands of every script.
const PROGRAMS: &str = r#"
cat >bypass.py <<'P'
import errno, os, socket, struct, sys

def checksum(data):
    total = sum(struct.unpack(">%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff

def forge(source, source_port, to, to_port):
    """Sends a SYN in the name of another."""
    segment = struct.pack(">HHIIBBHHH", source_port, to_port, 7, 0, 5 << 4, 2, 8192, 0, 0)
    addresses = socket.inet_aton(source) + socket.inet_aton(to)
    whole = addresses + struct.pack(">BBH", 0, 6, len(segment)) + segment
    segment = segment[:16] + struct.pack(">H", checksum(whole)) + segment[18:]
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    head = struct.pack(">BBHHHBBH", 0x45, 0, 40, 1, 0, 64, 6, 0) + addresses
    raw.sendto(head + segment, (to, 0))

def reason(error):
    return "timeout" if isinstance(error, TimeoutError) else errno.errorcode[error.errno]

def exchange(client, word):
    try:
        client.sendall(word.encode())
        print(client.recv(4096).decode("ascii", "replace"))
    except OSError as error:
        print(reason(error))

def open_from(port, to, to_port, word, go):
    """Opens a connection from a port where a listener leaves every SYN without an answer."""
    listener, client = socket.socket(), socket.socket()
    for one in listener, client:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.settimeout(3)
        one.bind(("192.0.2.1", port))
    import ctypes
    code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    program = struct.pack("HL", 1, ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, 26, program)
    listener.listen()
    open(go + ".ready", "w")
    while not os.path.exists(go):
        pass
    try:
        client.connect((to, to_port))
        exchange(client, word)
    except OSError as error:
        print(reason(error))

def send_first(source, source_port, to, to_port):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.bind((source, source_port))
    sender.sendto(b"first", (to, to_port))

def answer(port):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("192.0.2.1", port))
    open("answer.ready", "w")
    data, peer = server.recvfrom(4096)
    try:
        server.sendto(b"answered", peer)
        print("sent")
    except OSError as error:
        print(reason(error))

def send_from(port, to, to_port):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.bind(("192.0.2.1", port))
    try:
        client.sendto(b"word", (to, to_port))
        print("sent")
    except OSError as error:
        print(reason(error))

def lead(client, to, port):
    client.settimeout(1)
    try:
        client.connect((to, port))
        client.send(b"marked")
        print("sent")
    except OSError as error:
        print(reason(error))

def route_v4(option, by, to, port):
    """By another machine first: a datagram, and a connection."""
    for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
        client = socket.socket(socket.AF_INET, kind)
        route = bytes([option, 7, 4]) + socket.inet_aton(by) + b"\0"
        client.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, route)
        lead(client, to, port)

def route_v6(by, to, port):
    for kind in socket.SOCK_DGRAM, socket.SOCK_STREAM:
        client = socket.socket(socket.AF_INET6, kind)
        header = bytes([0, 2, 4, 0, 0, 0, 0, 0]) + socket.inet_pton(socket.AF_INET6, by)
        client.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR, header)
        lead(client, to, port)

def foreign(kind, address, port):
    """A socket with an address that this host does not have; this needs no capability."""
    one = socket.socket(socket.AF_INET6, kind)
    one.setsockopt(socket.IPPROTO_IPV6, 78, 1)
    one.bind((address, port))
    return one

def from_foreign(source, to, port):
    lead(foreign(socket.SOCK_DGRAM, source, 0), to, port)

def backwards(kind, to, port, decoy, word):
    """What it sends looks like the answer to a flow that it has opened in the name of `to`."""
    kind = getattr(socket, kind)
    opener, client = foreign(kind, to, port), foreign(kind, decoy, 4000)
    opener.setblocking(False)
    opener.connect_ex((decoy, 4000))
    client.settimeout(1)
    try:
        if kind == socket.SOCK_DGRAM:
            opener.send(b"decoy")
            client.sendto(word.encode(), (to, port))
        else:
            client.setsockopt(socket.IPPROTO_TCP, 34, 1)
            client.sendto(word.encode(), socket.MSG_FASTOPEN, (to, port))
        print("sent")
    except OSError as error:
        print(reason(error))

def speak(port, go):
    """Accepts a client, and sends when a file is there."""
    server = socket.create_server(("::", port), family=socket.AF_INET6)
    open(go + ".listens", "w")
    client, _ = server.accept()
    open(go + ".open", "w")
    while not os.path.exists(go):
        pass
    client.sendall(b"marked")
    open(go + ".sent", "w")
    client.settimeout(3)
    exchange(client, "marked")

def listen_tls(to, port):
    import ssl
    client = socket.create_connection((to, port), timeout=20)
    ssl._create_unverified_context().wrap_socket(client).recv(100)

def on_wire(*addresses):
    seen = open("tap.out", "rb").read()
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        print(seen.count(socket.inet_pton(family, address)))

def rewrite(to, instead):
    """What `nft add rule ip nat output ip daddr TO dnat to INSTEAD` does."""
    from nft import append, attribute, compare, expression, nest, number
    expressions = [
        expression("payload", number(1, 1), number(2, 1), number(3, 16), number(4, 4)),
        compare(0, socket.inet_aton(to)),
        expression("immediate", number(1, 1), nest(2, attribute(1, socket.inet_aton(instead)))),
        expression("nat", number(1, 1), number(2, 2), number(3, 1)),
    ]
    print("rewritten", *append("output", 3, -100, expressions))

command, *arguments = sys.argv[1:]
globals()[command](*(int(one) if one.isdigit() else one for one in arguments))
P
bypass() { timeout 20 python3 bypass.py "$@"; }
far_bypass() { in_far timeout 20 python3 bypass.py "$@"; }
"#;

fn expect(machines: &Machines, script: &str, wanted: &str) {
    machines.expect(&format!("{PROGRAMS}\n{script}"), wanted);
}

fn permitting(rules: &str) -> Machines {
    Machines::new("unmatched = \"permit\"", rules)
}

#[test]
fn a_connection_that_was_captured_stays_so_when_a_new_policy_captures_less() {
    expect(
        &permitting(TLS),
        r#"
        capture
        for name in reloaded restarted; do
            start python3 peer.py hold 192.0.2.2 4433 marked-$name $name >$name.out
            until_true [ -e $name.open ]
        done
        sed -i 's/remote-ports = 4433/remote-ports = 4499/' host.toml
        ./tacit reload --control host.sock | head -1
        touch reloaded
        until_true [ -s reloaded.out ]
        cat reloaded.out
        ./tacit restart --control host.sock >/dev/null
        started() { grep -c 'run-began run=host' host.log | grep -qx 2; }
        until_true started
        touch restarted
        until_true [ -s restarted.out ]
        cat restarted.out
        seen marked"#,
        "
policy generation 2; changed: tls
answer to marked-reloaded from ::ffff:127.0.0.1
answer to marked-restarted from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_forged_syn_does_not_make_a_connection_of_a_program_an_answer() {
    expect(
        &permitting(TLS),
        r#"
        capture
        start python3 bypass.py open_from 5555 192.0.2.2 4433 marked go >opened.out
        until_true [ -e go.ready ]
        far_bypass forge 192.0.2.2 4433 192.0.2.1 5555
        sleep 0.2
        touch go
        until_true [ -s opened.out ]
        cat opened.out
        seen marked"#,
        "
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

/// A host that denies datagrams to this address.
fn denying_udp(remote: &str) -> Machines {
    permitting(&format!(
        "[[rule]]\nname = \"denied\"\ndirection = \"outbound\"\nprotocol = \"udp\"\nremote = \
         \"{remote}\"\ndeny = true\n"
    ))
}

#[test]
fn a_peer_that_sends_first_opens_no_way_past_a_deny() {
    expect(
        &denying_udp("192.0.2.2"),
        r#"
        capture
        far_bypass send_first 192.0.2.2 5002 192.0.2.1 6000
        bypass send_from 6000 192.0.2.2 5002
        start python3 bypass.py answer 6001 >answer.out
        until_true [ -e answer.ready ]
        far_bypass send_first 192.0.2.2 5003 192.0.2.1 6001
        until_true [ -s answer.out ]
        cat answer.out"#,
        "
EPERM
sent
",
    );
}

#[test]
fn a_foreign_source_address_opens_no_way_past_a_deny() {
    expect(
        &denying_udp("2001:db8::2"),
        r#"
        capture
        bypass from_foreign 2001:db8:77::9 2001:db8::3 5002
        bypass from_foreign 2001:db8:77::9 2001:db8::2 5002
        seen marked"#,
        "
sent
EPERM
0
",
    );
}

#[test]
fn a_flow_that_a_program_opens_in_the_name_of_its_peer_opens_no_way() {
    let rules = ["udp", "tcp"].map(|protocol| {
        format!(
            "[[rule]]\nname = \"{protocol}\"\ndirection = \"outbound\"\nprotocol = \
             \"{protocol}\"\nremote = \"2001:db8::2\"\nremote-ports = 5002\ndeny = true\n"
        )
    });
    expect(
        &permitting(&rules.concat()),
        r#"
        for last in 3 9; do in_far ip addr add 2001:db8::$last/64 dev v1 nodad; done
        capture
        bypass backwards SOCK_DGRAM 2001:db8::3 5003 2001:db8::9 free
        bypass backwards SOCK_DGRAM 2001:db8::2 5002 2001:db8::9 marked
        bypass backwards SOCK_STREAM 2001:db8::2 5002 2001:db8::9 marked >stream.out
        seen marked
        sent() { [ "$(seen decoy)" -ge 2 ] && [ "$(seen free)" -ge 1 ]; }
        until_true sent"#,
        "
sent
EPERM
0
",
    );
}

#[test]
fn answers_stay_with_the_agent_when_the_host_loses_the_address() {
    let rules = "[[rule]]\nname = \"served\"\ndirection = \"inbound\"\nlocal-ports = 7070\ntls = \
                 { identity = \"host\", client-cert = \"none\" }\n";
    expect(
        &permitting(rules),
        r#"
        ip addr add 2001:db8::7/64 dev v0 nodad
        start python3 bypass.py speak 7070 go >speak.out
        until_true [ -e go.listens ]
        capture
        start_far python3 bypass.py listen_tls 2001:db8::7 7070
        until_true [ -e go.open ]
        ip addr del 2001:db8::7/64 dev v0
        touch go
        until_true [ -s speak.out ]
        ls go.sent
        seen marked"#,
        "
go.sent
0
",
    );
}

#[test]
fn what_the_hosts_nat_leads_to_a_captured_address_is_refused() {
    expect(
        &permitting(TLS),
        r#"
        serve far 8001
        capture
        ip route add 198.51.100.0/24 dev v0
        bypass rewrite 198.51.100.7 192.0.2.2
        # The helper sees that there is NAT.
        refused() { [ "$(ask 198.51.100.7 4433 other)" = ECONNREFUSED ]; }
        until_true refused
        ask 198.51.100.7 4433 marked
        ask 198.51.100.7 8001 word
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
rewritten 0 0 0
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn packets_with_a_source_route_do_not_leave() {
    expect(
        &permitting(TLS),
        r#"
        capture
        for first in 192.0.2.9 192.0.2.10 2001:db8::9; do
            ip neigh add $first lladdr 02:00:00:00:00:09 dev v0
        done
        bypass route_v4 131 192.0.2.9 192.0.2.2 4433
        bypass route_v4 137 192.0.2.10 192.0.2.2 4433
        bypass route_v6 2001:db8::9 2001:db8::2 4433
        sleep 0.2
        bypass on_wire 192.0.2.9 192.0.2.10 2001:db8::9"#,
        "
EPERM
timeout
EPERM
timeout
EPERM
timeout
0
0
0
",
    );
}
