//! Tests one host from the installation to the removal of tacit. The host has daemons from before
//! the installation, a periodic job, a container and an SSH session. All of these must continue
//! during audit mode and enforcement. They must also continue when the agent restarts, and each
//! time that processes of the agent are killed. A tap records which bytes are on the network link.

use crate::containers::BOX;
use crate::machines::{Machines, SERVED, TLS};

/// The programs of the host. None of them is started again or knows of tacit.
///
/// Data of protected programs begins with `clear` until the policy is enforced, then with `marked`,
/// and after the removal with `removed`. Data of flows without a rule begins with `open`.
const PROGRAMS: &str = r#"
cat >daemon.py <<'P'
"""Keeps a connection open and sends words on it; connects again when it ends. Logs each event."""
import errno, sys, time
from socket import create_connection

def talk(host, port, words, name, log):
    with create_connection((host, int(port)), timeout=8) as connection:
        log.write("connected\n")
        while True:
            word = open(words).read() + "-" + name
            connection.sendall(word.encode())
            answer = connection.recv(4096).decode("ascii", "replace")
            if not answer.startswith("answer to " + word):
                return log.write("ended\n")
            log.write("answer to %s\n" % word)
            time.sleep(0.05)

host, port, words, name = sys.argv[1:]
with open(name + ".log", "w", buffering=1) as log:
    while True:
        try:
            talk(host, port, words, name, log)
        except OSError as error:
            log.write(errno.errorcode.get(error.errno, str(error)) + "\n")
        time.sleep(0.05)
P
words() { printf %s $1 >word.new; mv word.new word; }
words clear; printf open >open-word
job() { while sleep 0.2; do ask 192.0.2.2 4433 $(cat word)-job; done >job.log; }
# Waits until a program's log has this line, from now on.
sees() { local from=$(wc -l <$1.log); until_true seen_since $from "$1" "$2"; }
seen_since() { tail -n +$(($1 + 1)) $2.log | grep -q "^$3"; }
all_get() { for name in app boxed job; do sees $name "answer to $1-$name"; done; }
all_are() { for name in app boxed job; do sees $name $1; done; }
# What no rule is about: a daemon's connection, a container's, and the SSH session.
undisturbed() {
    for name in plain boxed-plain; do
        sees $name "answer to open-$name"
        grep -v '^answer to' $name.log | sed "s/^/$name: /"
    done
    echo "$1" >&${session[1]}
    read -r -t 60 line <&${session[0]}
    echo "ssh: $line"
}
client() { in_far timeout 20 python3 peer.py ask 192.0.2.1 7070 "$@"; }
tree() { echo $1; for child in $(pgrep -P $1); do tree $child; done; }

# The daemon of SSH wants this directory.
mount -t tmpfs none /run && mkdir /run/sshd
ssh-keygen -q -t ed25519 -N '' -f scratch/host
ssh-keygen -q -t ed25519 -N '' -f scratch/key
start $(command -v sshd) -D -e -f /dev/null -o ListenAddress=192.0.2.1 -o UsePAM=no \
    -o HostKey=$PWD/scratch/host -o AuthorizedKeysFile=$PWD/scratch/key.pub \
    -o PidFile=none -o StrictModes=no 2>sshd.log
until_true serving '' 22
start python3 daemon.py 192.0.2.2 4433 word app
start python3 daemon.py 192.0.2.2 8000 open-word plain
start_box python3 daemon.py 192.0.2.2 4433 word boxed
start_box python3 daemon.py 192.0.2.2 8000 open-word boxed-plain
serve host 7070
start job
coproc session {
    in_far ssh -F none -i scratch/key -o StrictHostKeyChecking=no -o LogLevel=ERROR \
        -o UserKnownHostsFile=/dev/null root@192.0.2.1 cat 2>ssh.log
}
background+=($session_PID)
until_true [ -e app.log -a -e boxed.log -a -e plain.log -a -e boxed-plain.log -a -e job.log ]
"#;

const STEPS: &str = r#"
echo "- before"
all_get clear; client clear-client; undisturbed before

echo "- audit"
./tacit agent --host --guard --policy host.toml 2>/dev/null
capture
all_get clear; client clear-client; undisturbed audit
grep -v '^answer to' app.log boxed.log
./tacit show audit --control host.sock --json | python3 -c "
import json, sys
for rule in json.load(sys.stdin)['rules']: print(rule['rule'], rule['would'], rule['total'] > 0)"

echo "- enforcement"
sed -i 's/^mode = .*/mode = "enforce"/' host.toml
./tacit reload --control host.sock | cut -d';' -f 1
# What programs opened while the policy was replaced may be relayed as before.
./tacit close --stale --control host.sock >/dev/null
words marked
all_get marked; client marked-client ca.pem; undisturbed enforcement
client clear-late | tr -c 'a-zA-Z\n' . | cut -c 1-3
seen 'answer to clear-late'

echo "- restart"
grep -c connected app.log boxed.log >connected
./tacit restart --control host.sock >/dev/null
restarted() { grep -c 'run-began run=host' host.log | grep -qx 2; }
until_true restarted
all_get marked; client marked-client ca.pem; undisturbed restart
grep -c connected app.log boxed.log | cmp - connected

echo "- kill of the agent"
kill -9 $(pgrep -P $agent)
all_are ECONNREFUSED; client marked-client ca.pem; undisturbed kill
capture
all_get marked; client marked-client ca.pem; undisturbed capture

echo "- kill of all its processes"
kill -9 $(tree $agent)
all_are ECONNREFUSED; client marked-client ca.pem; undisturbed kill
capture
all_get marked; client marked-client ca.pem; undisturbed capture

echo "- removal"
seen marked
kill $agent; wait $agent
all_are ECONNREFUSED
words removed
removed() { ./tacit agent --host --remove 2>/dev/null; }
until_true removed
in_clear() { [ $(seen removed-$1) != 0 ]; }
for name in app boxed job; do until_true in_clear $name; done
client removed-client; undisturbed removal
seen marked
for word in clear-app clear-boxed clear-job clear-client open-plain; do
    [ $(seen $word) != 0 ] && echo "$word was on the wire"
done"#;

/// What the steps print.
const SEEN: &str = "
- before
answer to clear-client from ::ffff:192.0.2.2
plain: connected
boxed-plain: connected
ssh: before
- audit
answer to clear-client from ::ffff:192.0.2.2
plain: connected
boxed-plain: connected
ssh: audit
app.log:connected
boxed.log:connected
tls tls True
served tls True
- enforcement
policy generation 2
answer to marked-client from ::ffff:192.0.2.2
plain: connected
boxed-plain: connected
ssh: enforcement
...
0
- restart
answer to marked-client from ::ffff:192.0.2.2
plain: connected
boxed-plain: connected
ssh: restart
- kill of the agent
ECONNREFUSED
plain: connected
boxed-plain: connected
ssh: kill
answer to marked-client from ::ffff:192.0.2.2
plain: connected
boxed-plain: connected
ssh: capture
- kill of all its processes
ECONNREFUSED
plain: connected
boxed-plain: connected
ssh: kill
answer to marked-client from ::ffff:192.0.2.2
plain: connected
boxed-plain: connected
ssh: capture
- removal
0
answer to removed-client from ::ffff:192.0.2.2
plain: connected
boxed-plain: connected
ssh: removal
0
clear-app was on the wire
clear-boxed was on the wire
clear-job was on the wire
clear-client was on the wire
open-plain was on the wire
";

#[test]
fn programs_of_a_host_live_through_the_whole_life_of_its_policy() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can run a daemon of SSH");
        return;
    }
    let settings = "unmatched = \"permit\"\nmode = \"audit\"\nforwarded = [\"br0\"]";
    let machines = Machines::new(settings, &format!("{TLS}{SERVED}"));
    // The far machine is in the middle of its own migration.
    machines.change("far.toml", |far| {
        far.replace("client-cert = \"none\"", "client-cert = \"none\", accept = \"both\"")
    });
    machines.expect(&format!("{BOX}{PROGRAMS}{STEPS}"), SEEN);
}
