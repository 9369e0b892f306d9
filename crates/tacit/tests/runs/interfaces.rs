//! Tests sockets of runs that are bound to an interface of the host.

use crate::network::Network;

/// Echoes TCP and UDP on port 5000 of 10.9.8.7 and 2001:db8::7.
const SERVER: &str = r#"
cat >echo_both.py <<'P'
import socket, threading
def datagrams(server):
    while True:
        data, peer = server.recvfrom(100)
        server.sendto(data, peer)
def connections(server):
    while True:
        client, _ = server.accept()
        client.sendall(client.recv(100))
        client.close()
threads = []
for family, at in ((socket.AF_INET6, "2001:db8::7"), (socket.AF_INET, "10.9.8.7")):
    server = socket.socket(family, socket.SOCK_DGRAM)
    server.bind((at, 5000))
    threads.append(threading.Thread(target=datagrams, args=[server]))
    server = socket.create_server((at, 5000), family=family)
    threads.append(threading.Thread(target=connections, args=[server]))
for thread in threads:
    thread.start()
P
start python3 echo_both.py
await 5000
"#;

/// Connects and sends with sockets that are bound to `v0`. The last lines are a query for a name,
/// and a port of no rule.
const CLIENT: &str = r#"
cat >bound.py <<'P'
import errno, socket, struct
STREAM, DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
OF_VERSION = {
    socket.AF_INET: ("10.9.8.7", (socket.IPPROTO_IP, 50)),
    socket.AF_INET6: ("2001:db8::7", (socket.IPPROTO_IPV6, 76)),
}
def bound(family, kind, option=None):
    one = socket.socket(family, kind)
    one.settimeout(20)
    if option:
        # IP_UNICAST_IF or IPV6_UNICAST_IF.
        one.setsockopt(*option, struct.pack("!I", socket.if_nametoindex("v0")))
    else:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"v0")
    return one
for family, (to, unicast) in OF_VERSION.items():
    for kind, option in ((STREAM, None), (DGRAM, None), (DGRAM, unicast)):
        one = bound(family, kind, option)
        one.connect((to, 5000))
        one.sendall(b"hello")
        print(one.recv(5).decode(), one.getsockname()[0], one.getpeername()[0])
        one.close()
    for option in (None, unicast):
        one = bound(family, DGRAM, option)
        one.sendto(b"hello", (to, 5000))
        data, peer = one.recvfrom(5)
        print(data.decode(), peer[0])
one = bound(socket.AF_INET, DGRAM)
name = b"\5clear\7example\0"
one.sendto(b"id\1\0\0\1\0\0\0\0\0\0" + name + b"\0\1\0\1", ("10.9.8.7", 53))
answer, peer = one.recvfrom(512)
print(answer[:2].decode(), *peer)
print(errno.errorcode[bound(socket.AF_INET, STREAM).connect_ex(("10.9.8.7", 5001))])
P
"#;

const ANSWERS: &str = "hello 192.168.77.1 10.9.8.7\n\
    hello 192.168.77.1 10.9.8.7\n\
    hello 192.168.77.1 10.9.8.7\n\
    hello 10.9.8.7\n\
    hello 10.9.8.7\n\
    hello 2001:db8:77::1 2001:db8::7\n\
    hello 2001:db8:77::1 2001:db8::7\n\
    hello 2001:db8:77::1 2001:db8::7\n\
    hello 2001:db8::7\n\
    hello 2001:db8::7\n\
    id 10.9.8.7 53\n\
    ECONNREFUSED\n";

/// Rules for one program, so that the owner of a bound socket must be found too.
fn rules() -> String {
    let python = std::fs::canonicalize("/usr/bin/python3").unwrap();
    let rule = |protocol: &str| {
        format!(
            "[[rule]]\nname = \"{protocol}\"\ndirection = \"outbound\"\n\
             protocol = \"{protocol}\"\nprogram = \"{}\"\n\
             remote = [\"10.9.8.7\", \"2001:db8::7\"]\nremote-ports = 5000\npermit = true\n",
            python.display()
        )
    };
    ["tcp", "udp"].map(rule).concat()
}

#[test]
fn a_socket_that_is_bound_to_an_interface_of_the_host_is_captured() {
    let network = Network::new(&[], SERVER).with_ipv6().with_rules(&rules());
    let said = network.ok(&format!(
        "{CLIENT}
         run /usr/bin/python3 bound.py
         relayed /usr/bin/python3 bound.py"
    ));
    assert_eq!(said, ANSWERS.repeat(2));
}

#[test]
fn a_bound_socket_has_the_present_address_of_its_interface() {
    let network = Network::new(&[], SERVER).with_ipv6().with_rules(&rules());
    let said = network.ok(r#"
        cat >follow.py <<'P'
import os, socket, time
def source():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"v0")
    one.settimeout(20)
    one.connect(("10.9.8.7", 5000))
    one.send(b"hello")
    one.recv(5)
    return one.getsockname()[0]
print(source())
open("scratch/first", "w").close()
while not os.popen("hostname -I").read().startswith("192.168.77.9 "):
    time.sleep(0.05)
print(source())
P
        run /usr/bin/python3 follow.py >followed & client=$!
        until_true [ -e scratch/first ]
        ip addr add 192.168.77.9/32 dev v0
        ip addr del 192.168.77.1/24 dev v0
        wait $client; cat followed"#);
    assert_eq!(said, "192.168.77.1\n192.168.77.9\n");
}
