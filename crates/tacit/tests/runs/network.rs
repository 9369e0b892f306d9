//! Sets up a network for one test. Runs programs in this network, with and without `tacit run`.
//!
//! ```text
//!   direct    program, without tacit run ─────────────────────────────> server   clear.example
//!   relayed   program ──> agent of the run ───────────────────────────> server   clear.example
//!   handed    program, with a socket from the agent of the run ───────> server   clear.example
//!   tls       program ──> agent of the run ══ TLS ══> far agent ──────> server   tls.example
//! ```
//!
//! The last column is the name to which the program connects. The network is a namespace. Servers
//! listen at 10.9.8.7 (`clear.example`). For each server, an agent in the server role (the far
//! agent) listens at 10.9.8.8 (`tls.example`). A route delivers packets to both addresses locally.
//! No interface has these addresses, because connections to addresses of interfaces stay inside a
//! run. The default route drops all other packets.
//!
//! The names `dual.clear.example` and `dual.tls.example` also have an IPv6 address. A route to this
//! address exists only if the test requests IPv6. `two.clear.example` and `two.tls.example` also
//! have the address 10.9.8.6. A test can request that this address refuses connections. If the
//! tests run as root, they start programs as an ordinary user.

use std::process::Output;

use crate::harness::{Lab, text_of};
use crate::public::Public;

/// Whose programs they are: a user that the test's own `/etc/passwd` knows.
const ORDINARY_ID: &str = "54321";

/// How long a script may take, on a machine with much other load.
const SECONDS_MAX: &str = "600";

/// Where the sources of peers are.
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers");

/// What every script begins with. `$USER_OF_RUNS` becomes the ordinary user.
const BEGIN: &str = r#"
set -u
mount --bind resolv.conf /etc/resolv.conf
mount --bind nsswitch.conf /etc/nsswitch.conf
mount --bind hosts /etc/hosts
cp /etc/passwd passwd; echo "tester:x:54321:54321::$PWD/scratch:/bin/sh" >>passwd
mount --bind passwd /etc/passwd
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=$PWD/scratch
mkdir -m 1777 temporary; export TMPDIR=$PWD/temporary
export PEERS LC_ALL=C
# Sockets of other tests of root are not there.
mkdir -p /run/tacit 2>/dev/null && mount -t tmpfs -o mode=0700 none /run/tacit
ip link set lo up
ip route add local 10.9.8.7/32 dev lo
ip route add local 10.9.8.8/32 dev lo
ip link add v0 type veth peer name v1
ip link set v0 up
ip link set v1 up
ip addr add 192.168.77.1/24 dev v0
ip route add default via 192.168.77.2

background=()
case $USER_OF_RUNS in
unshare*)
    # One namespace for all: an agent answers nobody from another.
    $USER_OF_RUNS sleep 600 & background+=($!)
    until [ "$(cat /proc/$!/comm)" = sleep ]; do sleep 0.01; done
    USER_OF_RUNS="nsenter --user --preserve-credentials --target $!" ;;
esac
# Starts what runs until the test ends.
start() { "$@" & background+=($!); }
# The same as the ordinary user.
start_ordinary() { ordinary exec "$@" & background+=($!); }
finish() { for pid in "${background[@]}"; do kill "$pid"; done 2>/dev/null; wait; }
trap finish EXIT
ordinary() {
    local how=(); [ "$1" != exec ] || { how=(exec); shift; }
    "${how[@]}" $USER_OF_RUNS "$@"
}
# Waits until a server listens on a port.
await() {
    local give_up_at=$((SECONDS + 60))
    until ss -Hltn "src 10.9.8.7:$1 or src 0.0.0.0:$1" | grep -q .; do
        [ $SECONDS -lt $give_up_at ] || { echo "no server listens on port $1"; exit 99; }
        sleep 0.02
    done
}
# Waits until a command succeeds.
until_true() {
    local give_up_at=$((SECONDS + 60))
    until "$@"; do
        [ $SECONDS -lt $give_up_at ] || { echo "in vain: $*"; tail -n 20 -- *.log; exit 98; }
        sleep 0.02
    done
}
# Whether the agent at a control socket has a run that the agent before it, which still serves open
# connections, gave away; the rest is how to become a user who may ask.
succeeded() {
    local at=$1; shift
    ls $at.* >/dev/null 2>&1 && "$@" ./tacit show runs --json --control $at 2>/dev/null |
        grep -q '"name"'
}
# A program as it is, and under tacit.
direct() { ordinary timeout 200 "$@"; }
RUN_OPTIONS=
run() { ordinary timeout 60 ./tacit run --policy run.toml $RUN_OPTIONS -- "$@"; }
# The same, and the agent relays all connections: no program gets a socket of the host's network.
relayed() { RUN_OPTIONS="$RUN_OPTIONS --path relay" run "$@"; }
"#;

/// What answers in every network.
const SERVE: &str = r#"
start python3 "$PEERS/resolver.py" 53 $NAMES
[ ! -e far.toml ] || start ./tacit agent --quiet --policy far.toml --control far.sock 2>far.log
until_true [ -e resolver.ready ]
[ ! -e far.toml ] || until_true [ -e far.sock ]
"#;

/// Names of every network, with their addresses.
const NAMES: &str = "clear.example 10.9.8.7 tls.example 10.9.8.8 \
     dual.clear.example 10.9.8.7 dual.clear.example 2001:db8::7 \
     dual.tls.example 10.9.8.8 dual.tls.example 2001:db8::8 \
     two.clear.example 10.9.8.6 two.clear.example 10.9.8.7 \
     two.tls.example 10.9.8.6 two.tls.example 10.9.8.8";
/// What a network has whose default route is for IPv6 too.
const IPV6: &str = "
echo 1 >/proc/sys/net/ipv6/ip_nonlocal_bind
ip -6 route add local 2001:db8::7/128 dev lo
ip -6 route add local 2001:db8::8/128 dev lo
ip -6 addr add 2001:db8:77::1/64 dev v0 nodad
ip -6 route add default via 2001:db8:77::2
";

/// How a program is started under tacit.
pub struct Way {
    pub name: &'static str,
    /// The name of its server, which selects the rule.
    pub host: &'static str,
    /// The function of the scripts that starts it.
    pub command: &'static str,
}

impl Way {
    /// The ways of `tacit run`: relayed, handed, and with TLS.
    pub const OF_RUNS: [Self; 3] = [
        Self { name: "relayed", host: "clear.example", command: "relayed" },
        Self { name: "handed", host: "clear.example", command: "run" },
        Self { name: "tls", host: "tls.example", command: "run" },
    ];
}

/// What one test needs.
#[derive(Clone)]
pub struct Network {
    ports: Vec<u16>,
    setup: String,
    rules: String,
    builds: Vec<String>,
    ipv6: bool,
    as_root: bool,
}

impl Network {
    /// A network whose `clear.example` and `tls.example` serve these ports; `setup` is a script
    /// that starts the servers at 10.9.8.7.
    pub fn new(ports: &[u16], setup: &str) -> Self {
        let [setup, rules] = [setup, ""].map(str::to_owned);
        let ports = ports.to_vec();
        let builds = Vec::new();
        Self { ports, setup, rules, builds, ipv6: false, as_root: false }
    }

    /// Rules before those for `clear.example` and `tls.example`.
    pub fn with_rules(mut self, rules: &str) -> Self {
        self.rules += rules;
        self
    }

    /// A further script that starts servers.
    pub fn with_setup(mut self, setup: &str) -> Self {
        self.setup += "\n";
        self.setup += setup;
        self
    }

    /// A shell command that builds a program beforehand, from sources in `$PEERS`.
    pub fn with_build(mut self, command: &str) -> Self {
        self.builds.push(command.to_owned());
        self
    }

    /// IPv6 works in the network.
    pub fn with_ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    /// Programs run as root, where the one who tests is root.
    pub fn with_root(mut self) -> Self {
        self.as_root = true;
        self
    }

    /// The network for an ordinary user's programs, and for root's.
    pub fn for_each_user(self) -> [Self; 2] {
        [self.clone(), self.with_root()]
    }

    /// Runs a script in the network; in it are `run CMD` (under tacit), `relayed CMD` (the same,
    /// with all connections relayed) and `direct CMD`.
    pub fn script(&self, script: &str) -> Output {
        self.script_in(&self.prepared(), script)
    }

    /// Runs a script and expects it to succeed; returns standard output.
    pub fn ok(&self, script: &str) -> String {
        let output = self.script(script);
        assert!(output.status.success(), "{}", text_of(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a shell script as it is and in these ways, each with `$HOST` as the server's name;
    /// expects the same output and status of all, and returns it.
    pub fn compare(&self, program: &str, ways: &[Way]) -> String {
        let public = self.prepared();
        std::fs::write(public.directory.join("program.sh"), program).unwrap();
        let mut script = "go() { local way=$1 host=$2; shift 2
                HOST=$host \"$@\" bash program.sh >$way.out 2>$way.err
                echo \"status $?\" >>$way.out; }
             go direct clear.example direct\n"
            .to_owned();
        for Way { name, host, command } in ways {
            script += &format!("go {name} {host} {command}\n");
        }
        let output = self.script_in(&public, &script);
        assert!(output.status.success(), "{}", text_of(&output));
        let read = |name: &str| {
            let bytes = std::fs::read(public.directory.join(name)).unwrap();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            text.replace("tls.example", "clear.example")
                .replace("10.9.8.8", "10.9.8.7")
                .replace("2001:db8::8", "2001:db8::7")
        };
        let direct = read("direct.out");
        for Way { name, .. } in ways {
            let out = read(&format!("{name}.out"));
            let err = read(&format!("{name}.err"));
            let told = || format!("{}\n{err}\n{}", read("direct.err"), text_of(&output));
            assert!(out == direct, "{name}:\n{}\n{}", difference(&out, &direct), told());
        }
        direct
    }

    fn prepared(&self) -> Public {
        let lab = Lab::new();
        lab.tacit(&[
            "ca",
            "issue",
            "tls.example",
            "--san",
            "dual.tls.example",
            "--san",
            "two.tls.example",
        ]);
        for build in &self.builds {
            let mut command = lab.command("bash");
            let output = command.args(["-c", build]).env("PEERS", PEERS).output().unwrap();
            assert!(output.status.success(), "see scripts/install-deps.sh: {}", text_of(&output));
        }
        lab.write("run.toml", self.run_policy());
        if !self.ports.is_empty() {
            lab.write("far.toml", self.far_policy());
        }
        lab.write("resolv.conf", "nameserver 127.0.0.1\n");
        lab.write("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
        lab.write("hosts", "127.0.0.1 localhost\n::1 localhost\n");
        let public = Public::of(&lab);
        let peers = public.directory.join("peers");
        std::fs::create_dir(&peers).unwrap();
        for file in std::fs::read_dir(PEERS).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), peers.join(file.file_name())).unwrap();
        }
        public
    }

    fn script_in(&self, public: &Public, script: &str) -> Output {
        let is_root = rustix::process::geteuid().is_root();
        let user = if self.as_root {
            String::new()
        } else if is_root {
            format!("setpriv --reuid={ORDINARY_ID} --regid={ORDINARY_ID} --clear-groups")
        } else {
            format!("unshare --user --map-user={ORDINARY_ID} --map-group={ORDINARY_ID}")
        };
        let ipv6 = if self.ipv6 { IPV6 } else { "" };
        let script = format!("{BEGIN}\n{ipv6}\n{SERVE}\n{}\n{script}", self.setup);
        let mut command = std::process::Command::new("timeout");
        command.args(["--kill-after=5", SECONDS_MAX, "unshare"]);
        command.args(if is_root { &["-nm"][..] } else { &["-rnm"] });
        command.args(["bash", "-c", &script]).current_dir(&public.directory);
        command
            .env("PEERS", public.directory.join("peers"))
            .env("USER_OF_RUNS", user)
            .env("NAMES", NAMES);
        command.env_remove("XDG_RUNTIME_DIR").output().unwrap()
    }

    fn run_policy(&self) -> String {
        let Self { rules, .. } = self;
        let mut policy = format!("version = 1\n[trust.ca]\nca = \"ca.pem\"\n{rules}");
        if self.ports.is_empty() {
            return policy;
        }
        for (name, action) in [("clear", "permit = true"), ("tls", "tls = { trust = \"ca\" }")] {
            policy += &format!(
                "[[rule]]\nname = \"{name}\"\ndirection = \"outbound\"\n\
                 remote = [\"{name}.example\", \"dual.{name}.example\", \
                 \"two.{name}.example\"]\n\
                 remote-ports = {:?}\n{action}\n",
                self.ports
            );
        }
        policy
    }

    fn far_policy(&self) -> String {
        let identity = "[identity.far]\ncert = \"tls.example.pem\"\nkey = \"tls.example.key\"\n";
        let rule = |(number, (port, at)): (usize, (&u16, &&str))| {
            format!(
                "[[rule]]\nname = \"far-{number}\"\nlisten = \"{at}:{port}\"\n\
                 connect = \"10.9.8.7:{port}\"\nclear = true\n\
                 tls = {{ role = \"server\", identity = \"far\", client-cert = \"none\" }}\n"
            )
        };
        let at: &[_] = if self.ipv6 { &["10.9.8.8", "[2001:db8::8]"] } else { &["10.9.8.8"] };
        let listens = self.ports.iter().flat_map(|port| at.iter().map(move |at| (port, at)));
        format!("version = 1\n{identity}{}", listens.enumerate().map(rule).collect::<String>())
    }
}

/// Two texts from where they begin to differ.
fn difference(text: &str, wanted: &str) -> String {
    let same = text.lines().zip(wanted.lines()).take_while(|(one, other)| one == other).count();
    let rest = |text: &str| text.lines().skip(same).map(|line| format!("{line}\n")).collect();
    let [text, wanted]: [String; 2] = [text, wanted].map(rest);
    format!("{text}\ninstead of\n{wanted}")
}
