//! Sets up the captured host and a second machine on one network link. Both machines are network
//! namespaces, and a tap records the packets on the link.
//!
//! ```text
//!   programs ── host 192.0.2.1, 2001:db8::1 ══ link, tap ══ far 192.0.2.2, 2001:db8::2 ── servers
//!                                                           port 4433: TLS, served by an agent
//! ```
//!
//! The tap writes every packet on the link to a file. Tests put the word `marked` into all data
//! that must not be sent in clear, and search the file for this word.

use std::process::{Command, Output};

use crate::harness::{Lab, text_of};
use crate::public::Public;

/// What every script begins with; it runs in the host.
const BEGIN: &str = r#"
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$PWD/scratch LC_ALL=C
background=()
# Starts what runs until the test ends.
start() { "$@" & background+=($!); }
finish() { for pid in "${background[@]}"; do kill "$pid"; done 2>/dev/null; wait; }
trap finish EXIT
# Waits until a command succeeds.
until_true() {
    for try in $(seq 500); do "$@" && return; sleep 0.02; done
    echo "in vain: $*"; cat *.log; exit 98
}
ip link set lo up
start unshare -n sleep 600; far=$!
apart() { [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
in_far() { nsenter -t $far -n "$@"; }
# Starts what runs on the far machine until the test ends.
start_far() { start nsenter -t $far -n "$@"; }
ip link add v0 type veth peer name v1
ip link set v1 netns $far
ip link set v0 up; in_far ip link set lo up; in_far ip link set v1 up
ip addr add 192.0.2.1/24 dev v0; in_far ip addr add 192.0.2.2/24 dev v1
ip addr add 2001:db8::1/64 dev v0 nodad; in_far ip addr add 2001:db8::2/64 dev v1 nodad
until_true ping -c 1 -W 1 192.0.2.2 >/dev/null

serving() { $1 ss -Hltn "sport = :$2" | grep -q .; }
# Serves on a port of the far machine, or of the host: `serve far PORT`.
serve() {
    local begin=start there=
    [ $1 != far ] || { begin=start_far; there=in_far; }
    $begin python3 peer.py serve $2
    until_true serving "$there" $2
}
start_far python3 peer.py tap v1 tap.out
until_true [ -e tap.out.ready ]
serve far 8000
start_far ./tacit agent --no-supervisor --policy far.toml --control far.sock 2>far.log
until_true serving in_far 4433
# How often a word was on the wire in clear.
seen() { python3 peer.py count tap.out "$@"; }
# One request and its answer, or why there is none: `ask ADDRESS PORT WORD`.
ask() { timeout 20 python3 peer.py ask "$@"; }
agent_ready() { grep -q 'run-began run=host' $1; }
# Captures the host.
capture() {
    start ./tacit agent --host --policy host.toml --control host.sock "$@" 2>host.log
    agent=${background[-1]}
    until_true agent_ready host.log
}
connections() { ./tacit show rules --json --control host.sock | python3 peer.py hits "$@"; }
"#;

/// Servers, clients and the tap.
const PEER: &str = r#"
import errno, json, socket, ssl, struct, sys, threading, time

def answer(connection, peer):
    with connection:
        while True:
            try:
                line = connection.recv(4096)
                if not line:
                    return
                connection.sendall(b"answer to %s from %s" % (line, peer.encode()))
            except OSError:
                return

def serve(port):
    server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    while True:
        connection, peer = server.accept()
        threading.Thread(target=answer, args=(connection, peer[0]), daemon=True).start()

def tap(interface, name):
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    packets.bind((interface, 0))
    with open(name, "wb", buffering=0) as out:
        open(name + ".ready", "w")
        while True:
            try:
                out.write(packets.recv(65536))
            except OSError:
                return

def count(name, *words):
    time.sleep(0.1)
    seen = open(name, "rb").read()
    print(*(seen.count(word.encode()) for word in words))

def reason(error):
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "timeout"
    return errno.errorcode.get(error.errno, type(error).__name__)

def ask(host, port, word, trust=None, name=None):
    try:
        connection = socket.create_connection((host, int(port)), timeout=8)
        if trust:
            context = ssl.create_default_context(cafile=trust)
            connection = context.wrap_socket(connection, server_hostname=name or host)
        connection.sendall(word.encode())
        print(connection.recv(4096).decode("ascii", "replace") or "end")
    except OSError as error:
        print(reason(error))

def hold(host, port, word, name):
    """Opens a connection, and sends on it when a file is there."""
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(b"first")
    connection.recv(4096)
    open(name + ".open", "w")
    import os
    while not os.path.exists(name):
        time.sleep(0.02)
    try:
        connection.sendall(word.encode())
        print(connection.recv(4096).decode() or "end")
    except OSError as error:
        print(reason(error))

def hits(*rules):
    shown = json.load(sys.stdin)
    print(*(rule["hits"] for name in rules for rule in shown["rules"] if rule["name"] == name))

def counted(*rules):
    shown = {rule["name"]: rule["kernel-hits"] for rule in json.load(sys.stdin)["rules"]}
    print(*(shown[name] for name in rules))

def send(host, port, count):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(int(count)):
        client.sendto(b"word", (host, int(port)))

def flood(host, port, word):
    """Sends datagrams without end, whether they are refused or not."""
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    open("flood.ready", "w")
    while True:
        try:
            client.sendto(word.encode(), (host, int(port)))
        except OSError:
            pass

def flush():
    """What `nft flush ruleset` does: it deletes every table."""
    def message(kind, flags, sequence, body):
        return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body
    def family(family, resource):
        return struct.pack(">BBH", family, 0, resource)
    batch = message(16, 1, 1, family(0, 10)) + message(10 << 8 | 2, 5, 2, family(0, 0))
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    kernel.send(batch + message(17, 1, 3, family(0, 10)))
    print("flushed", -struct.unpack("=i", kernel.recv(4096)[16:20])[0])

command, *arguments = sys.argv[1:]
if command == "serve":
    serve(int(arguments[0]))
else:
    globals()[command](*arguments)
"#;

/// The far machine serves TLS.
const FAR: &str = r#"
version = 1
[identity.far]
cert = "far.example.pem"
key = "far.example.key"
[[rule]]
name = "far"
listen = ["192.0.2.2:4433", "[2001:db8::2]:4433"]
connect = "127.0.0.1:8000"
tls = { role = "server", identity = "far", client-cert = "none" }
"#;

/// What most policies of the host begin with; port 4433 of the far machine is protected.
pub const TLS: &str = r#"
[[rule]]
name = "tls"
direction = "outbound"
remote = ["192.0.2.2", "2001:db8::2"]
remote-ports = 4433
tls = { trust = "ca", server-name = "far.example" }
"#;

/// Port 7070 of the host is captured.
pub const SERVED: &str = r#"
[[rule]]
name = "served"
direction = "inbound"
local-ports = 7070
tls = { identity = "host", client-cert = "none" }
"#;

/// Two machines for one test.
pub struct Machines {
    public: Public,
}

impl Machines {
    /// The host has these rules, and these settings in `[host]`.
    pub fn new(settings: &str, rules: &str) -> Self {
        let lab = Lab::new();
        for name in ["far.example", "192.0.2.1"] {
            lab.tacit(&["ca", "issue", name]);
        }
        let tables = "[trust.ca]\nca = \"ca.pem\"\n[identity.host]\ncert = \"192.0.2.1.pem\"\n\
                      key = \"192.0.2.1.key\"\n";
        lab.write("host.toml", format!("version = 1\n[host]\n{settings}\n{tables}{rules}"));
        lab.write("far.toml", FAR);
        lab.write("peer.py", PEER);
        lab.write("nft.py", include_str!("../peers/nft.py"));
        Self { public: Public::of(&lab) }
    }

    /// Writes a file into the directory of the scripts.
    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.public.directory.join(name), text).unwrap();
    }

    /// Changes a file.
    pub fn change(&self, name: &str, change: impl FnOnce(&str) -> String) {
        let path = self.public.directory.join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, change(&text)).unwrap();
    }

    /// Runs a script in the host and expects it to succeed; returns standard output.
    pub fn ok(&self, script: &str) -> String {
        let output = self.script(script);
        assert!(output.status.success(), "{}", text_of(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The same; the output must be this.
    pub fn expect(&self, script: &str, wanted: &str) {
        let said = self.ok(script);
        let log = std::fs::read_to_string(self.public.directory.join("host.log"));
        assert_eq!(
            said,
            wanted.strip_prefix('\n').unwrap_or(wanted),
            "{said}\n{}",
            log.unwrap_or_default()
        );
    }

    fn script(&self, script: &str) -> Output {
        let is_root = rustix::process::geteuid().is_root();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "100", "unshare"]);
        command.args(if is_root { &["-nm"][..] } else { &["-rnm"] });
        command.args(["bash", "-c", &format!("{BEGIN}\n{script}")]);
        command.current_dir(&self.public.directory).env_remove("XDG_RUNTIME_DIR");
        command.output().unwrap()
    }
}
