//! Tests how the link of a run is chosen. Also tests the limits that all runs of one link share.

use serde_json::Value;

use crate::fits::assert_fits;
use crate::link_scripts::RULES;
use crate::links::LINK;
use crate::network::Network;

/// Links with numbers as names, and `shown`, which prints what `tacit show runs` prints about the
/// link of a run.
const NUMBERED: &str = r#"
chmod 777 .
kill $LINK; until_true [ ! -e $AT ]
cat >link.toml <<'END'
version = 1
[link.01]
[link.02]
[link.03]
[[rule]]
name = "out"
link = ["01", "02", "03"]
direction = "outbound"
remote = "10.9.8.7"
remote-ports = 8080
permit = true
END
AT=03; serve
shown() {
    rm -f opened shown
    linked bash -c 'curl -s -o /dev/null http://10.9.8.7:8080/; touch opened
        until [ -e shown ]; do sleep 0.05; done' 2>>run.log & run=$!
    until_true [ -e opened ]
    for format in "" --json; do
        nsenter --net --target $NEAR $USER_OF_RUNS ./tacit show runs $format \
            --control $TMPDIR/tacit-run-*/agent.sock | tr '\n' ' '; echo
    done
    touch shown; wait $run
}
"#;

#[test]
fn option_environment_and_policy_choose_a_link_in_this_order() {
    let network = Network::new(&[8080], &format!("{LINK}\n{NUMBERED}")).with_rules(RULES);
    let said = network.ok(r#"
        OPTION_LINK= ; shown
        printf '[link.03]\ndefault = true\n' >>run.toml; shown
        export TACIT_LINK=02; shown
        OPTION_LINK="--link 01"; shown
        for AT in 01 02 03; do state 'link["name"], link["opened"]'; done"#);
    let lines: Vec<_> = said.lines().collect();
    let choices = ["- (default)", "03 (policy)", "02 (environment)", "01 (option)"];
    assert_eq!(lines.len(), 2 * choices.len() + 3, "{said}");
    for (shown, choice) in lines.chunks(2).zip(choices) {
        let [text, json] = shown else { panic!("{said}") };
        assert!(text.contains(choice), "{choice}: {text}");
        assert_fits("show-runs", json);
        let json: Value = serde_json::from_str(json).unwrap();
        let link = &json["runs"][0]["link"];
        let name = link["name"].as_str().unwrap_or("-");
        assert_eq!(format!("{name} ({})", link["decided-by"].as_str().unwrap()), choice);
    }
    assert_eq!(lines[8..], ["01 1", "02 1", "03 1"], "{said}");
}

#[test]
fn a_link_has_no_more_runs_than_its_policy_allows() {
    let said = Network::new(&[8080], LINK).with_rules(RULES).ok(r#"
        chmod 777 .
        sed -i 's/^sockets = 16/&\nruns = 1/' link.toml; kill -HUP $LINK
        until_true grep -q link-reloaded link.log
        linked bash -c 'touch began; until [ -e over ]; do sleep 0.05; done' 2>/dev/null & run=$!
        until_true [ -e began ]
        linked true 2>told; echo $?
        grep -o 'the limit of 1 runs of the link is reached' told | head -1
        ordinary ./tacit link status $AT | grep ^runs
        touch over; wait $run; until_true idle
        linked true 2>/dev/null; echo $?"#);
    let limit = "the limit of 1 runs of the link is reached";
    assert_eq!(said, format!("125\n{limit}\nruns      1 of 1\n0\n"));
}

#[test]
fn two_runs_of_a_link_do_not_listen_at_one_address() {
    let rules = "[[rule]]\nname = \"in\"\ndirection = \"inbound\"\nlisten = \"10.9.8.7:8099\"\n\
                 local-ports = 80\npermit = true\n";
    let said = Network::new(&[], LINK).with_rules(rules).ok(r#"
        linked python3 -m http.server --bind 0.0.0.0 80 >/dev/null 2>&1 & background+=($!)
        until_true curl -s -o /dev/null http://10.9.8.7:8099/
        linked python3 -m http.server --bind 0.0.0.0 80 2>told; echo $?
        grep -o 'Address already in use' told | head -1
        curl -s -o /dev/null -w '%{http_code}\n' http://10.9.8.7:8099/"#);
    assert_eq!(said, "125\nAddress already in use\n200\n");
}
