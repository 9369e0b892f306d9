//! Tests that the files of the policy stay hidden from programs of a run, even when the files are
//! replaced.

use crate::network::Network;

/// Identities with keys in the places where the usual tools have them: `plain/id.key` as an editor
/// or `mv` replaces it, `live/` as certbot, `mount/` as Kubernetes, and `whole/`, a directory of
/// its own. The certificate of all is `alice.pem`.
const KEYS: [&str; 4] = ["plain/id.key", "live/privkey.pem", "mount/tls.key", "whole/web.key"];

const LAY_OUT: &str = "
lay_out() {
    mkdir plain live archive mount mount/..1 whole; chmod 700 whole
    for at in plain/id.key archive/privkey1.pem mount/..1/tls.key whole/web.key new.key; do
        cp alice.key $at; chmod 600 $at
    done
    ln -s ../archive/privkey1.pem live/privkey.pem
    ln -s ..1 mount/..data; ln -s ..data/tls.key mount/tls.key
    chown -R $1 plain live archive mount whole new.key
}
replace() {
    cp -p new.key plain/.new; mv plain/.new plain/id.key
    cp -p new.key archive/privkey2.pem; ln -sfn ../archive/privkey2.pem live/privkey.pem
    mkdir mount/..2; chown $1 mount/..2; cp -p new.key mount/..2/tls.key
    ln -s ..2 mount/..tmp; mv -T mount/..tmp mount/..data
    cp -p new.key whole/.new; mv whole/.new whole/web.key
}
# Names one more key in the policy.
name_key() {
    printf '[identity.later]\\ncert = \"alice.pem\"\\nkey = \"%s\"\\n' $1 >>run.toml
}
control() { ordinary ./tacit $1 --control $TMPDIR/tacit-run-*/agent.sock >/dev/null; }";

fn network() -> Network {
    let mut rules = String::new();
    for (number, key) in KEYS.into_iter().enumerate() {
        rules += &format!(
            "[identity.id{number}]\ncert = \"alice.pem\"\nkey = \"{key}\"\n\
             [[rule]]\nname = \"rule{number}\"\ndirection = \"outbound\"\n\
             remote = \"10.9.8.{number}\"\ntls = {{ trust = \"ca\", identity = \"id{number}\" }}\n"
        );
    }
    Network::new(&[], "").with_rules(&rules)
}

/// What a program reads of every key, after `$changes`, which a shell outside makes.
fn reads(owner: &str, changes: &str) -> String {
    reads_below("", owner, changes)
}

/// The same of a program that another one starts.
fn reads_below(starter: &str, owner: &str, changes: &str) -> String {
    let all = KEYS.join(" ");
    format!(
        "{LAY_OUT}
         lay_out {owner}
         direct cat {all} | grep -c PRIVATE
         run {starter} bash -c 'cat {all} 2>/dev/null | grep -c PRIVATE; ls whole | grep -c .
                      echo $PPID >scratch/new; mv scratch/new scratch/begun
                      until [ -e scratch/changed ]; do sleep 0.02; done; sleep 0.5
                      for key in {all}; do cat $key 2>/dev/null | grep -c PRIVATE; done' &
         until [ -e scratch/begun ]; do sleep 0.02; done
         {changes}
         touch scratch/changed; wait $!
         cat {all} | grep -c PRIVATE"
    )
}

#[test]
fn what_takes_the_place_of_a_hidden_file_is_hidden() {
    for (network, owner) in network().for_each_user().into_iter().zip(["54321", "0"]) {
        let said = network.ok(&reads(owner, &format!("replace {owner}")));
        let lines: Vec<_> = said.lines().collect();
        assert_eq!(lines, ["8", "0", "0", "0", "0", "0", "0", "8"], "as {owner}: {said}");
    }
}

#[test]
fn a_helper_that_was_killed_has_a_successor_that_hides_as_well() {
    let kill = "kill -9 $(pgrep -P $(cat scratch/begun) -x tacit-helper); sleep 1; replace 54321";
    let said = network().ok(&reads("54321", kill));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["8", "0", "0", "0", "0", "0", "0", "8"], "{said}");
}

/// Starts a program and takes other mounts itself, before the launcher has a turn.
const APART: &str = r#"
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **arguments) {
    if (fork() == 0) {
        execvp(arguments[1], arguments + 1);
        _exit(127);
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        perror("unshare");
    wait(NULL);
}
"#;

#[test]
fn a_program_that_takes_other_mounts_at_once_leaves_files_hidden_in_those_it_had() {
    let network = network()
        .with_build(&format!("cat >apart.c <<'END'\n{APART}\nEND\ncc -static -o apart apart.c"));
    // On one CPU the launcher has no turn as soon as the program runs.
    let one_cpu = "taskset -pc $(taskset -cp $$ | grep -o '[0-9]*$') $$ >/dev/null
                   chrt --batch -p 0 $$";
    let reads = reads_below("./apart", "54321", "replace 54321");
    let said = network.ok(&format!("{one_cpu}\n{reads}"));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["8", "0", "0", "0", "0", "0", "0", "8"], "{said}");
}

/// Takes all that the kernel gives the user to watch directories, and that of the helper.
const TAKE_ALL: &str = r#"
import ctypes, os, signal, subprocess, sys, time
call = ctypes.CDLL(None).inotify_init
while call() >= 0: pass
search = ["pgrep", "-P", str(os.getppid()), "-x", "tacit-helper"]
os.kill(int(subprocess.run(search, capture_output=True).stdout), signal.SIGKILL)
until = time.monotonic() + 1
while time.monotonic() < until: call()
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"#;

#[test]
fn a_program_that_takes_all_watches_of_its_user_leaves_the_helper_its_own() {
    // Others test at the same time: another user, or a limit below that of the machine.
    let alone = "case $USER_OF_RUNS in
         setpriv*) owner=54322; USER_OF_RUNS=${USER_OF_RUNS//54321/54322}; chown 54322 scratch ;;
         *) owner=54321; echo 20 >/proc/sys/user/max_inotify_instances ;;
         esac";
    let reads = reads_below("/usr/bin/python3 take-all.py", "$owner", "replace $owner");
    let said =
        network().ok(&format!("{alone}\ncat >take-all.py <<'END'\n{TAKE_ALL}\nEND\n{reads}"));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["8", "0", "0", "0", "0", "0", "0", "8"], "{said}");
}

/// What a program reads of `own/tls/id.key`, after `before` and then `$changes` of a shell outside.
fn reads_in_swapped_directory(before: &str, changes: &str) -> String {
    let rules = "[identity.id]\ncert = \"alice.pem\"\nkey = \"own/tls/id.key\"\n\
                 [[rule]]\nname = \"rule\"\ndirection = \"outbound\"\nremote = \"10.9.8.1\"\n\
                 tls = { trust = \"ca\", identity = \"id\" }\n";
    Network::new(&[], "").with_rules(rules).ok(&format!(
        "{LAY_OUT}
         mount --make-rshared /
         mkdir -p own/tls own/new; cp alice.key own/tls/id.key; cp alice.key own/new/id.key
         mkdir own/alien; openssl ecparam -name prime256v1 -genkey -noout -out own/alien/id.key
         chmod 600 own/*/id.key; chown -R 54321 own
         run bash -c 'cat own/tls/id.key 2>/dev/null | grep -c PRIVATE; {before}
                      touch scratch/begun
                      until [ -e scratch/changed ]; do sleep 0.02; done; sleep 0.5
                      cat own/tls/id.key 2>/dev/null | grep -c PRIVATE' &
         until [ -e scratch/begun ]; do sleep 0.02; done
         {changes}
         touch scratch/changed; wait $!
         grep -c PRIVATE own/tls/id.key"
    ))
}

#[test]
fn a_key_in_a_directory_that_takes_the_place_of_another_is_hidden() {
    let swap = "mv own/tls own/old; mv own/new own/tls";
    let alien = "mv own/tls own/old; mv own/alien own/tls";
    let refused = "! control reload >/dev/null 2>&1 || echo taken";
    for changes in [swap, &format!("{alien}; {refused}")] {
        let said = reads_in_swapped_directory("", changes);
        assert_eq!(said.lines().collect::<Vec<_>>(), ["0", "0", "2"], "{changes}: {said}");
    }
}

#[test]
fn a_key_that_comes_into_a_directory_of_the_programs_making_is_hidden() {
    let before = "mv own/tls own/moved; mkdir own/tls";
    let changes =
        "! control reload >/dev/null 2>&1 || echo taken; mv own/new/id.key own/tls/id.key";
    let said = reads_in_swapped_directory(before, changes);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["0", "0", "2"], "{said}");
}

/// The kernel sends no event to watchers of directories of a mount.
#[test]
fn a_reload_that_is_refused_hides_the_keys_of_the_installed_policy() {
    let changes = "mount --bind own/alien own/tls
                   ! control reload >/dev/null 2>&1 || echo taken";
    let said = reads_in_swapped_directory("", changes);
    assert_eq!(said.lines().collect::<Vec<_>>(), ["0", "0", "2"], "{said}");
}

/// What a program reads, after `look`, of a key that the policy names since `change`.
fn reads_later_key(change: &str, look: &str) -> String {
    format!(
        "{LAY_OUT}
         lay_out 54321
         run bash -c 'echo $PPID >scratch/new; mv scratch/new scratch/begun
                      until [ -e scratch/changed ]; do sleep 0.02; done
                      {look}
                      cat plain/later.key | grep -c PRIVATE' &
         until [ -e scratch/begun ]; do sleep 0.02; done
         cp -p new.key plain/later.key
         {change}
         touch scratch/changed; wait $!
         grep -c PRIVATE plain/later.key"
    )
}

#[test]
fn a_key_that_a_reload_names_is_hidden_from_then_on() {
    let said =
        network().ok(&reads_later_key("name_key plain/later.key; control reload", "sleep 0.5"));
    assert_eq!(said.lines().collect::<Vec<_>>(), ["0", "2"], "{said}");
}

#[test]
fn more_keys_than_a_run_hides_are_reported() {
    let said = network().ok(&format!(
        "{LAY_OUT}
         lay_out 54321
         RUN_OPTIONS='--log scratch/run.log'
         run sh -c 'touch scratch/begun
                    until [ -e scratch/changed ]; do sleep 0.02; done' &
         until [ -e scratch/begun ]; do sleep 0.02; done
         mkdir many; tee $(printf 'many/%s.key ' $(seq 1030)) <new.key >/dev/null
         chmod 600 many/*; chown -R 54321 many
         printf '[identity.n%s]\ncert = \"alice.pem\"\nkey = \"many/%s.key\"\n' \
             $(for i in $(seq 1030); do echo $i $i; done) >>run.toml
         control reload 2>&1
         until_true grep -q files-not-hidden scratch/run.log
         touch scratch/changed; wait $!
         grep files-not-hidden scratch/run.log"
    ));
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("tacit hides at most 1024 files"), "{said}");
}

#[test]
fn a_key_that_the_policy_of_a_successor_names_is_hidden_from_then_on() {
    let said =
        network().ok(&reads_later_key("name_key plain/later.key; control restart", "sleep 0.5"));
    assert_eq!(said.lines().collect::<Vec<_>>(), ["0", "2"], "{said}");
}

/// The helper does nothing for longer than the agent waits for an answer.
#[test]
fn a_key_that_a_reload_names_is_hidden_by_a_helper_that_was_slow() {
    let change = "helper=$(pgrep -P $(cat scratch/begun) -x tacit-helper)
         kill -STOP $helper; control reload; name_key plain/later.key; control reload; sleep 8
         kill -CONT $helper";
    let look = "for i in $(seq 225); do grep -q PRIVATE plain/later.key || break; sleep 0.2; done";
    let said = network().ok(&reads_later_key(change, look));
    assert_eq!(said.lines().collect::<Vec<_>>(), ["0", "2"], "{said}");
}

#[test]
fn in_a_private_directory_that_the_program_starts_in_files_are_hidden_one_by_one() {
    let program = "cat web.key | grep -c PRIVATE; touch ../scratch/begun
                   until [ -e ../scratch/changed ]; do sleep 0.02; done; sleep 0.5
                   cat web.key ../plain/later.key | grep -c PRIVATE";
    let said = network().ok(&format!(
        "{LAY_OUT}
         lay_out 54321
         cd whole; ordinary timeout 60 ../tacit run --policy ../run.toml -- sh -c '{program}' &
         cd ..; until [ -e scratch/begun ]; do sleep 0.02; done
         replace 54321; cp -p new.key plain/later.key
         name_key plain/later.key; control reload
         sleep 0.5; touch scratch/changed; wait $!
         grep -c PRIVATE whole/web.key"
    ));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["0", "0", "2"], "{said}");
}

#[test]
fn a_private_directory_that_a_reload_names_has_its_files_hidden_from_programs_in_it() {
    let program = "cd later; touch ../scratch/begun
                   until [ -e ../scratch/named ]; do sleep 0.02; done; sleep 0.5
                   grep -c PRIVATE new.key; touch ../scratch/read
                   until [ -e ../scratch/changed ]; do sleep 0.02; done; sleep 0.5
                   grep -c PRIVATE new.key";
    let said = network().ok(&format!(
        "{LAY_OUT}
         lay_out 54321
         mkdir later; chmod 700 later; cp -p new.key later/new.key; chown -R 54321 later
         run sh -c '{program}' &
         until [ -e scratch/begun ]; do sleep 0.02; done
         name_key later/new.key; control restart
         sleep 0.5; touch scratch/named; until [ -e scratch/read ]; do sleep 0.02; done
         cp -p new.key later/.new; mv later/.new later/new.key
         sleep 0.5; touch scratch/changed; wait $!
         grep -c PRIVATE later/new.key"
    ));
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, ["0", "0", "2"], "{said}");
}

#[test]
fn a_run_does_not_start_with_a_directory_of_another_mount_namespace() {
    let elsewhere = "sleep 30 & at=$!
         until [ -e /proc/$at/ns/mnt ]; do sleep 0.02; done
         unshare -m nsenter --mount=/proc/$at/ns/mnt --wd=. \
             ./tacit run --policy run.toml -- cat alice.key";
    let opened = "run cat /dev/fd/5/alice.key 5<.";
    let allowed = "ordinary timeout 60 ./tacit run --inherit-fd 5 --policy run.toml -- \
                   sh -c 'ls /dev/fd/5/alice.key >/dev/null && echo allowed' 5<.";
    let said = network().ok(&format!(
        "{LAY_OUT}
         lay_out 54321
         {elsewhere} 2>&1; echo $?; kill $at; {opened} 2>&1; echo $?; {allowed}"
    ));
    let lines: Vec<_> = said.lines().collect();
    let [working, _, "125", opened, _, "125", "allowed"] = lines[..] else { panic!("{said}") };
    assert!(working.contains("cannot determine the working directory"), "{said}");
    assert!(opened.contains("file descriptor 5: it is a directory"), "{said}");
}
