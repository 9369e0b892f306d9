//! Kills each process of tacit in turn, and tests that no packet is sent in clear afterwards.

use crate::{ASKS, web};

/// Each process of a run in turn: the launcher, the supervisor, the agent, the signer, the helper.
#[test]
fn nothing_is_sent_in_clear_after_any_process_of_a_run_is_killed() {
    let steps = format!(
        r#"is_tacit() {{ case $(readlink /proc/$1/exe) in */tacit) ;; *) false ;; esac; }}
        victims() {{
            local pid
            for pid in $launcher $(tree $launcher); do is_tacit $pid && echo $pid; done
        }}
        killed=0
        round() {{
            : >scratch/said
            {ASKS}
            all=($(victims)); victim=${{all[$1]:-}}
            if [ -n "$victim" ]; then
                cat /proc/$victim/comm >>names
                others=$(tree $launcher)
                kill -9 $victim
                killed=$((killed + 1))
                sleep 2
            fi
            kill -KILL $launcher ${{others:-}} $(tree $launcher) 2>/dev/null
            wait $launcher 2>/dev/null
            [ -n "$victim" ]
        }}
        while round $killed; do :; done
        sort names | uniq
        clear"#
    );
    let text = web(&steps);
    let lines: Vec<&str> = text.lines().collect();
    let [names @ .., wire] = &lines[..] else { panic!("{text}") };
    assert!(names.len() >= 4, "{text}");
    assert_eq!(*wire, "only UDP 4500", "{text}");
}

#[test]
fn nothing_is_sent_in_clear_after_all_processes_of_a_serving_agent_are_killed() {
    let text = web("agent; service=$!
        enrolled bash -c 'while [ ! -e scratch/end ]; do
            curl -sS -m 2 http://10.2.0.1/ >>scratch/said 2>&1; sleep 0.1; done' & program=$!
        said() { [ \"$(grep -c 'from behind' scratch/said 2>/dev/null)\" -ge \"$1\" ]; }
        until_true said 1
        kill -9 $service $(tree $service)
        refused() { grep -q 'connect to server' scratch/said; }
        until_true refused; sleep 2
        touch scratch/end
        clear");
    assert_eq!(text, "only UDP 4500\n");
}
