//! Tests rules that apply only at certain times (`when`). The tests use the real clock.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::harness::{Lab, connect, echo, free_port};
use crate::peers::{is_reset, ping};

/// The day of the week in so many days, in UTC.
fn day_in(days: u64) -> &'static str {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // 1970 began on a Thursday.
    let day = now.as_secs() / 86_400 + days;
    ["thu", "fri", "sat", "sun", "mon", "tue", "wed"][usize::try_from(day % 7).unwrap()]
}

#[test]
fn a_rule_decides_only_while_its_window_is_open() {
    let lab = Lab::new();
    let app = echo().port();
    let [closed, open, shared] = [(); 3].map(|()| free_port());
    let rule = |name: &str, port: u16, days: &str, action: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\nlisten = \"127.0.0.1:{port}\"\n{action}\n\
             when = {{ days = {days}, zone = \"UTC\" }}\n"
        )
    };
    let permit = format!("connect = \"127.0.0.1:{app}\"\npermit = true");
    // Wide enough that the day may change while this runs.
    let now = format!("[\"{}\", \"{}\"]", day_in(0), day_in(1));
    let other = format!("[\"{}\", \"{}\"]", day_in(3), day_in(4));
    let agent = lab.agent(
        &[
            rule("closed", closed, &other, &permit),
            rule("open", open, &now, &permit),
            rule("shared-deny", shared, &other, "deny = true"),
            rule("shared", shared, &now, &permit),
        ]
        .concat(),
    );
    assert!(is_reset(&mut connect(("127.0.0.1", closed))));
    assert!(ping(&mut connect(("127.0.0.1", open))));
    assert!(ping(&mut connect(("127.0.0.1", shared))), "the deny does not apply now");
    let rules = agent.show("rules");
    let hits: Vec<_> = rules["rules"].as_array().unwrap().iter().map(|r| &r["hits"]).collect();
    assert_eq!(hits, [0, 1, 0, 1], "{rules}");
}
