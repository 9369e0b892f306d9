//! Tests which CPUs execute the program of a run, and the threads of its agent.

use crate::network::Network;

/// Policies with engines and placements beside the usual rules, and what a program may use.
const SETUP: &str = r#"
allowed() { sed -n 's/^Cpus_allowed_list:\s*//p' /proc/$1/status; }
with() { cp run.toml $1.toml; printf "$2" >>$1.toml; }
run_with() {
    local policy=$1.toml; shift
    ordinary timeout 60 ./tacit run --policy $policy -- "$@"
}
own="sed -n s/^Cpus_allowed_list:\s*//p /proc/self/status"
# A program that says what it may use, and stays.
stay() {
    run_with $1 sh -c "$own >scratch/$2; until [ -e scratch/done ]; do sleep 0.05; done"
}
# Waits for a file of a run's program, and prints it.
file() { until_true [ -s $1 ]; cat $1; }
"#;

/// The first and the last CPU, for a script; none where there is only one.
fn two_cpus() -> Option<String> {
    let cpus = tacit_sys::schedule::allowed_cpus().unwrap();
    let [first, .., last] = cpus.as_slice() else {
        println!("skipped: placement, which needs a second CPU");
        return None;
    };
    Some(format!("first={first} last={last}\n"))
}

fn network(cpus: &str) -> Network {
    Network::new(&[], &format!("{cpus}{SETUP}"))
}

#[test]
fn a_program_keeps_off_the_cpus_of_engines() {
    let Some(cpus) = two_cpus() else { return };
    let said = network(&cpus).ok("with engine \"\\n[engine]\\ncpus = \\\"$last\\\"\\n\"
         echo plain $(run $own)
         echo engine $(run_with engine $own)
         echo all $(allowed self) last $last");
    let word = |key: &str| {
        let mut words = said.split_whitespace().skip_while(|word| *word != key);
        words.nth(1).unwrap_or_else(|| panic!("no {key}: {said}")).to_owned()
    };
    assert_eq!(word("plain"), word("all"), "without `placement` no thread is bound");
    let engine = word("engine");
    assert_ne!(engine, word("all"));
    assert!(engine.split([',', '-']).all(|cpu| cpu != word("last")), "{said}");
}

#[test]
fn programs_that_run_at_the_same_time_share_cpus_with_their_agents_and_not_with_each_other() {
    let Some(cpus) = two_cpus() else { return };
    // Runs know of each other within a network, and this one is the test's own.
    let said = network(&cpus).ok("with split \"\\n[agent]\\nplacement = \\\"split\\\"\\n\"
         export XDG_RUNTIME_DIR=$PWD/scratch
         for one in a b; do
             stay split $one &
             pids=\"${pids:-} $!\"
             file scratch/$one >/dev/null
         done
         echo programs $(file scratch/a) $(file scratch/b)
         for at in $(ls -d scratch/tacit-run-*/agent.sock); do
             ordinary ./tacit show engines --json --control $at | grep '\"cpu\"'
         done
         touch scratch/done; wait $pids");
    let line = said.lines().find_map(|line| line.strip_prefix("programs ")).unwrap();
    let mut programs: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(programs.len(), 2, "{said}");
    assert_ne!(programs[0], programs[1], "{said}");
    let mut of_agents: Vec<&str> = said
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"cpu\": "))
        .map(|cpu| cpu.trim_end_matches(','))
        .collect();
    programs.sort_unstable();
    of_agents.sort_unstable();
    assert_eq!(programs, of_agents, "{said}");
}

#[test]
fn one_cpu_holds_the_program_and_the_whole_agent() {
    let Some(cpus) = two_cpus() else { return };
    let said = network(&cpus).ok(
        "with one \"\\n[agent]\\nplacement = \\\"one-cpu\\\"\\nplacement-cpus = \\\"$last\\\"\\n\"
         export XDG_RUNTIME_DIR=$PWD/scratch
         stay one a & pid=$!
         echo program $(file scratch/a) last $last
         for status in $(grep -l tacit-agent /proc/[0-9]*/comm 2>/dev/null); do
             directory=${status%/comm}
             tr '\\0' ' ' <$directory/cmdline 2>/dev/null | grep -q 'one.toml' || continue
             for task in $directory/task/*; do
                 echo thread $(sed -n 's/^Cpus_allowed_list:\\s*//p' $task/status)
             done
         done
         touch scratch/done; wait $pid",
    );
    let word = |line: &str, at: usize| line.split_whitespace().nth(at).unwrap().to_owned();
    let program = said.lines().find(|line| line.starts_with("program ")).unwrap();
    let last = word(program, 3);
    assert_eq!(word(program, 1), last, "{said}");
    let threads: Vec<_> = said.lines().filter(|line| line.starts_with("thread ")).collect();
    assert!(threads.len() >= 3, "control, log and a worker: {said}");
    assert!(threads.iter().all(|line| word(line, 1) == last), "{said}");
}

/// A server that returns lines, and a program that asks it from one CPU after the other.
const ECHO: &str = r#"
cat >echo.py <<'P'
import socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
Server(("10.9.8.7", 9000), Echo).serve_forever()
P
start python3 echo.py
await 9000
cat >asks.py <<'P'
import os, socket, sys
to = socket.create_connection((sys.argv[1], 9000))
lines = to.makefile("rb")
for cpu in sys.argv[2:]:
    os.sched_setaffinity(0, {int(cpu)})
    number = 0
    while not os.path.exists("scratch/leave-" + cpu):
        line = b"%s %d\n" % (cpu.encode(), number)
        number += 1
        to.sendall(line)
        assert lines.readline() == line
P
cat >blocks.py <<'P'
import os, random, socket, sys, threading, time
to = socket.create_connection((sys.argv[1], 9000))
cpus = [int(cpu) for cpu in sys.argv[2:]]
program, moving = threading.get_native_id(), True
def move():
    turn = 0
    while moving:
        os.sched_setaffinity(program, {cpus[turn % 2]})
        turn += 1
        time.sleep(0.05)
threading.Thread(target=move, daemon=True).start()
end = time.monotonic() + 2
while time.monotonic() < end:
    block = random.randbytes(random.choice([1, 300, 2000, 17000, 100000]))
    threading.Thread(target=to.sendall, args=(block,)).start()
    answer = b""
    while len(answer) < len(block):
        more = to.recv(1 << 16)
        assert more, "the connection ended"
        answer += more
    assert answer == block, "not the same bytes"
moving = False
print("whole", flush=True)
while not os.path.exists("scratch/done"):
    time.sleep(0.02)
P
cat >threads.py <<'P'
import json, subprocess, sys
shown = subprocess.run(["./tacit", "show", "engines", "--json", "--control", sys.argv[1]],
                       capture_output=True, check=True).stdout
for thread in json.loads(shown)["threads"]:
    print(thread["thread"], thread["cpu"], thread["relays"], thread["handed"], thread["left"])
P
export XDG_RUNTIME_DIR=$PWD/scratch
threads() { ordinary python3 threads.py "$(ls -d scratch/tacit-run-*/agent.sock)"; }
carried_on() { threads | grep -q "^data-cpu-$1 $1 1 "; }
"#;

#[test]
fn a_connection_follows_its_program_to_another_cpu() {
    let Some(cpus) = two_cpus() else { return };
    for host in ["tls.example", "clear.example"] {
        let said = Network::new(&[9000], &format!("{cpus}{ECHO}")).ok(&format!(
            "relayed python3 asks.py {host} $last $first & asking=$!
             for cpu in $last $first; do
                 until_true carried_on $cpu && echo carried
                 touch scratch/leave-$cpu
             done
             wait $asking; echo status $?"
        ));
        assert_eq!(said, "carried\ncarried\nstatus 0\n", "{host}");
    }
}

#[test]
fn bytes_arrive_whole_while_a_program_changes_its_cpu() {
    let Some(cpus) = two_cpus() else { return };
    for host in ["tls.example", "clear.example"] {
        let said = Network::new(&[9000], &format!("{cpus}{ECHO}")).ok(&format!(
            "relayed python3 blocks.py {host} $first $last >whole & asking=$!
             until_true [ -s whole ]; cat whole
             sum() {{ threads | awk '{{ h += $4; l += $5 }} END {{ print h, l }}'; }}
             equal() {{ sum >sums; read -r handed left <sums; [ $handed = $left ]; }}
             until_true equal; cat sums
             touch scratch/done; wait $asking; echo status $?"
        ));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!((lines[0], lines[2]), ("whole", "status 0"), "{host}: {said}");
        // The script waits until each connection that left a thread was taken by another.
        let (handed, _) = lines[1].split_once(' ').unwrap();
        assert!(handed.parse::<u32>().unwrap() >= 2, "{host}: {said}");
    }
}

#[test]
fn a_policy_that_places_threads_otherwise_lets_connections_stay() {
    let Some(cpus) = two_cpus() else { return };
    for line in ["placement = \\\"none\\\"", "workers = 1"] {
        let said = Network::new(&[9000], &format!("{cpus}{ECHO}")).ok(&format!(
            "printf \"\\n[agent]\\n{line}\\n\" >>run.toml
             run python3 blocks.py tls.example $first $last >whole & asking=$!
             until_true [ -s whole ]
             threads | sed 's/ .*//'
             touch scratch/done; wait $asking"
        ));
        assert_eq!(said, "data-0\n", "{line}");
    }
}
