//! Which CPUs a run's program has, and its agent's threads.

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
    assert_eq!(word("plain"), word("all"), "nothing is placed without a word");
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
