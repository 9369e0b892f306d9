//! Tests `tacit doctor`, and `tacit run` on a host that refuses namespaces.

use serde_json::Value;
use tacit_sys::sandbox;

use crate::harness::text_of;
use crate::job::as_each_user;

/// The second line of an error about namespaces.
const NEXT_STEP: &str = "    fix: run `tacit doctor`, which checks what this host allows";

/// Runs `tacit run` and `tacit doctor` under a command that takes something away, and expects both
/// to name it.
fn refused(prefix: &str, wanted: &str) {
    let script = format!(
        "try() {{ {prefix} ./tacit run --policy run.toml -- echo ran; echo $?; \
         {prefix} ./tacit doctor; echo $?; }}\ntry 2>&1"
    );
    for output in as_each_user(&script) {
        let text = text_of(&output);
        let said = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = said.lines().collect();
        assert!(
            lines[0].starts_with("tacit: error[no-namespace]: cannot ")
                && lines[0].contains(wanted),
            "{text}"
        );
        assert_eq!(lines[1..3], [NEXT_STEP, "125"], "{text}");
        let network = lines[3].strip_prefix("network namespace");
        assert!(
            network.is_some_and(|line| line.contains("NO ") && line.contains(wanted)),
            "{text}"
        );
        assert_eq!(lines.last(), Some(&"1"), "{text}");
    }
}

#[test]
fn doctor_finds_nothing_wrong_where_runs_work() {
    for output in as_each_user(
        "./tacit doctor && ./tacit doctor --json >$scratch/json && \
                                cat $scratch/json >&2",
    ) {
        let text = text_of(&output);
        assert!(output.status.success(), "{text}");
        let said = String::from_utf8_lossy(&output.stdout);
        let found: Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!(found["run-works"], true);
        let findings = found["findings"].as_array().unwrap();
        for one in findings {
            let shown = said.lines().any(|line| {
                line.starts_with(one["name"].as_str().unwrap())
                    && line.contains(one["note"].as_str().unwrap())
            });
            assert!(shown, "{one}: {text}");
            let present = one["present"].as_bool().unwrap();
            assert!(present || !one["needed"].as_bool().unwrap(), "{one}");
        }
        for name in ["network namespace", "nftables rules", "program start", "hidden files"] {
            let is_there = |one: &Value| one["name"] == name && one["present"] == true;
            assert!(findings.iter().any(is_there), "{name}: {text}");
        }
        let sandbox = findings.iter().find(|one| one["name"] == "sandbox").unwrap();
        let is_whole = sandbox::has_call_filters() && sandbox::has_file_confinement();
        assert_eq!(sandbox["present"], is_whole, "{sandbox}");
    }
}

#[test]
fn runs_work_in_a_user_namespace_of_the_caller() {
    let script = "unshare -Ur ./tacit doctor | tail -1\n\
                  unshare -Ur ./tacit run --policy run.toml -- echo ran\n\
                  unshare --user --map-current-user ./tacit run --policy run.toml -- echo ran\n\
                  setpriv --no-new-privs ./tacit run --policy run.toml -- echo ran";
    for output in as_each_user(script) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "`tacit run` works on this host\nran\nran\nran\n", "{}", text_of(&output));
    }
}

#[test]
fn a_refused_namespace_is_reported_with_the_setting() {
    let within = |setting: &str| {
        // In a namespace of its own a process may change the limits of those below it.
        format!(
            "unshare --user --map-current-user --keep-caps sh -c 'echo 0 >/proc/sys/user/{setting} \
             && exec \"$@\"' sh"
        )
    };
    refused(&within("max_net_namespaces"), "user.max_net_namespaces is 0");
    refused("python3 refuse.py", "seccomp filter");
    let limited = within("max_user_namespaces");
    let is_root = rustix::process::geteuid().is_root();
    let users = if is_root {
        format!("setpriv --reuid=54321 --regid=54321 --clear-groups {limited}")
    } else {
        limited
    };
    let script = format!(
        "[ $(id -u) = 54321 ] && exit; try() {{ {users} ./tacit run --policy run.toml -- true; \
         echo $?; }}; try 2>&1"
    );
    let outputs = as_each_user(&script);
    let text = text_of(&outputs[0]);
    assert!(text.contains("user.max_user_namespaces is 0") && text.contains("125"), "{text}");
}

#[test]
fn a_chroot_is_named_as_the_reason() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can go into a chroot");
        return;
    }
    let script = "[ $(id -u) = 0 ] || exit 0\n\
        for one in proc dev tmp; do mkdir -p $scratch/root/$one; done\n\
        chmod 1777 $scratch/root/tmp\n\
        chmod 755 $scratch\n\
        cp tacit run.toml ca.pem $scratch/root\n\
        for file in $(ldd tacit | grep -o '/[^ ]*'); do cp --parents $file $scratch/root; done\n\
        unshare -m sh -c 'mount --bind /proc $1/proc && mount --bind /dev $1/dev && \
        exec chroot --userspec=54321:54321 $1 /tacit run --policy run.toml -- true' sh \
        $scratch/root 2>&1; echo $?";
    let outputs = as_each_user(script);
    let text = text_of(&outputs[0]);
    assert!(text.contains("in a chroot") && text.contains("125"), "{text}");
}

#[test]
fn a_run_that_could_not_start_leaves_no_agent_behind() {
    // Many at once, so that some agents are up before their launcher gives up. An agent that
    // survives keeps the pipe open, and this waiting.
    let script = "try() { python3 refuse.py ./tacit run --policy run.toml -- true 2>&1; \
                  echo $? >>$scratch/codes; }\n\
                  said=$(for number in $(seq 30); do try & done; wait)\n\
                  grep -c '^125$' $scratch/codes";
    for output in as_each_user(script) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said.trim_end(), "30", "{}", text_of(&output));
    }
}
