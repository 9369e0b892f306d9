//! Provides rules and scripts for the tests of two kinds of links: links within one kernel, and
//! links between hosts.

/// The rules of runs.
pub const RULES: &str = "[[rule]]\nname = \"numbers\"\ndirection = \"outbound\"\n\
    remote = [\"10.9.8.7\", \"10.9.9.9\", \"2001:db8::7\"]\nremote-ports = \"8080-8095\"\n\
    permit = true\n[[rule]]\nname = \"udp\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
    remote = \"10.9.8.7\"\npermit = true\n";

/// Writes `connect.py`, which prints the error of `connect` for each address and port.
pub const CONNECT: &str = r#"
cat >connect.py <<'END'
import errno, socket, sys
for at in sys.argv[1:]:
    host, port = at.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 5)
        print(at, "connected")
    except OSError as error:
        print(at, errno.errorcode.get(error.errno, error))
END
"#;

/// Exchanges a datagram with a server, and sends one to a port without a server.
pub const DATAGRAMS: &str = r#"
cat >udp.py <<'END'
import socket
for port in (7777, 7778):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.settimeout(5)
    sender.connect(("10.9.8.7", port))
    sender.send(b"sent")
    try:
        print(sender.recv(100))
    except OSError as error:
        print(type(error).__name__)
END
cat >echo.py <<'END'
import socket
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("10.9.8.7", 7777))
open("echo.ready", "w").close()
while True:
    payload, peer = echo.recvfrom(100)
    echo.sendto(payload + b" back", peer)
END
start python3 echo.py; until_true [ -e echo.ready ]
linked python3 udp.py 2>/dev/null
until_true idle
"#;

/// Writes `rights.py`, which prints for each thread of some processes: the mode of seccomp, whether
/// the thread has no new privileges, and the capabilities that a server of links does not need.
pub const RIGHTS: &str = r#"
cat >rights.py <<'END'
import os, sys
for process in sys.argv[1:]:
    task = f"/proc/{process}/task"
    for thread in os.listdir(task):
        status = open(f"{task}/{thread}/status")
        fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        kept = int(fields["CapEff"], 16) | int(fields["CapPrm"], 16)
        # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_NET_BIND_SERVICE.
        needed = 1 << 1 | 1 << 2 | 1 << 10
        print(fields["Seccomp"].strip(), fields["NoNewPrivs"].strip(), kept & ~needed)
END
"#;

/// Starts a server at port 8090 whose queue is full, so the kernel repeats the first packet of
/// further clients, until the file `accept` exists.
pub const FULL: &str = r#"
cat >full.py <<'END'
import os, socket, time
listener = socket.socket()
listener.bind(("10.9.8.7", 8090))
listener.listen(0)
first = socket.create_connection(("10.9.8.7", 8090))
open("full", "w").close()
while not os.path.exists("accept"):
    time.sleep(0.02)
accepted = []
while True:
    accepted.append(listener.accept())
END
start python3 full.py; until_true [ -e full ]
"#;
