//! Tests `tacit oci-hook`, the hook for OCI runtimes. The runtimes crun and runc call the hook.
//! Either tacit protects a container before its program starts, or the container does not start.

use crate::machines::{Machines, TLS};

/// Runs a container on a bridge, whose program is BusyBox: `container RUNTIME NAME SCRIPT`. A
/// second hook, after that of tacit, gives it a network; a tap on the bridge records what it sends.
const RUNTIME: &str = r#"
# crun knows no machine with both versions of control groups.
mount -t cgroup2 none /sys/fs/cgroup
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link add br0 type bridge; ip addr add 172.31.0.1/24 dev br0; ip link set br0 up
in_far ip route add 172.31.0.0/24 via 192.0.2.1
for file in /proc/sys/net/bridge/bridge-nf-call-*tables; do [ ! -e $file ] || echo 0 >$file; done
mkdir -p root/bin root/dev root/proc state
cp $(command -v busybox) root/bin/busybox
cat >connect.sh <<'S'
pid=$(sed 's/.*"pid":\([0-9]*\).*/\1/')
ip link add b0 type veth peer name b1; ip link set b1 netns $pid
ip link set b0 master br0; ip link set b0 up
nsenter -t $pid -n sh -c 'ip link set lo up; ip link set b1 up; ip addr add 172.31.0.2/24 dev b1
    ip route add default via 172.31.0.1'
S
start python3 peer.py tap br0 box.out
until_true [ -e box.out.ready ]
left() { python3 peer.py count box.out "$@"; }
runtime() {
    case $1 in
    crun) shift; crun --cgroup-manager=disabled --root=$PWD/state "$@" ;;
    runc) shift; runc --root=$PWD/state "$@" ;;
    esac
}
container() {
    NAME=$2 SCRIPT=$3 ENROL=${ENROL:-$PWD/enrol.sock} python3 - >config.json <<'C'
import json, os
hook = {"path": os.path.abspath("tacit"),
        "args": ["tacit", "oci-hook", "--agent", os.environ["ENROL"]]}
connect = {"path": "/bin/sh", "args": ["sh", os.path.abspath("connect.sh")],
           "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]}
print(json.dumps({
    "ociVersion": "1.0.2",
    "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "env": ["PATH=/bin"],
                "args": ["/bin/busybox", "sh", "-c", os.environ["SCRIPT"]]},
    "root": {"path": "root", "readonly": True},
    "annotations": {"tacit.run": os.environ["NAME"]},
    "hooks": {"createRuntime": [hook, connect], "poststop": [hook]},
    "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
    "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "network")]},
}))
C
    timeout 60 bash -c "$(declare -f runtime); runtime $1 run $2" 2>$2.log
}
serve_runs() {
    start ./tacit agent --enrol enrol.sock --policy host.toml --control host.sock 2>host.log
    agent=${background[-1]}
    until_true [ -e enrol.sock ]
}
"#;

/// Runs a script with both runtimes.
fn with_each(machines: &Machines, script: &str, wanted: &str) {
    for runtime in ["crun", "runc"] {
        if !is_installed(runtime) {
            println!("skipped: {runtime} is not installed");
            continue;
        }
        machines.expect(&format!("{RUNTIME}\nruntime={runtime}\n{script}"), wanted);
    }
}

fn is_installed(program: &str) -> bool {
    let found = std::process::Command::new(program).arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}

fn machines() -> Machines {
    Machines::new("unmatched = \"permit\"", TLS)
}

#[test]
fn a_container_is_protected_before_its_program_starts() {
    with_each(
        &machines(),
        r#"
        serve_runs
        container $runtime web "
            printf marked | busybox nc -w 20 192.0.2.2 4433; echo
            printf word | busybox nc -w 20 192.0.2.2 8000; echo"
        ended() { grep -q 'run-ended run=web' host.log; }
        until_true ended
        seen marked; left marked
        rm -r enrol.sock state box.out*"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:172.31.0.2
0
0
",
    );
}

#[test]
fn a_container_does_not_start_if_the_hook_fails() {
    with_each(
        &machines(),
        r#"
        container $runtime web "echo started" && echo succeeded
        grep -c 'hook' web.log
        hook() { ./tacit oci-hook --agent enrol.sock 2>&1 | head -1; }
        printf '{"id":"a","status":"created"}' | hook
        head -c 70000 /dev/zero | hook
        printf '{"id":"a","status":"stopped"}' | ./tacit oci-hook --agent enrol.sock; echo $?
        printf '{"id":"a","status":"created","pid":%s}' $$ | hook
        rm -r state box.out*"#,
        "
1
tacit: error[container-state]: the container's state has no `pid`, so \
the container has no process yet
tacit: error[container-state]: the container runtime sent a container state of \
more than 65536 bytes
0
tacit: error[container-not-protected]: cannot capture the traffic of the container, so \
the container does not start: the requested network namespace is that of tacit itself
",
    );
}

#[test]
fn a_container_whose_helper_and_launcher_are_killed_is_refused_and_not_in_clear() {
    with_each(
        &machines(),
        r#"
        serve_runs
        start container $runtime web "busybox sleep 90" >/dev/null
        began() { grep -q 'run-began run=web' host.log; }
        until_true began
        is_running() { runtime $runtime state web 2>/dev/null | grep -q running; }
        until_true is_running
        process=$(runtime $runtime state web | sed -n 's/.*"pid" *: *\([0-9]*\).*/\1/p')
        from_web() { nsenter -t $process -n timeout 20 python3 peer.py ask "$@"; }
        until_true nsenter -t $process -n ping -c 1 -W 1 192.0.2.2 >/dev/null
        from_web 192.0.2.2 4433 marked
        launcher=$(sed -n 's/.*run-began run=web pid=\([0-9]*\).*/\1/p' host.log)
        kill -9 $(pgrep -x -P $launcher tacit-helper)
        replaced() { grep -q 'helper-replaced run=web' host.log; }
        until_true replaced
        from_web 192.0.2.2 4433 marked
        kill -9 $launcher
        refused() { [ "$(from_web 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
        until_true refused
        from_web 192.0.2.2 8000 word
        kill -9 $process
        wait ${background[-1]}
        seen marked; left marked
        rm -r enrol.sock box.out*"#,
        "
answer to marked from ::ffff:127.0.0.1
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:172.31.0.2
0
0
",
    );
}
