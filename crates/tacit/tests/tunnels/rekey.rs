//! Tests that both sides can replace the keys of a tunnel while a program transfers data.

use crate::Scenario;

const STREAM: &str = r#"
[[rule]]
name = "stream"
direction = "outbound"
remote = "10.2.0.0/24"
remote-ports = 9009
ipsec = { ike = "branch" }
[[rule]]
name = "clear"
direction = "outbound"
remote = "10.2.0.0/24"
permit = true
"#;

/// The agent replaces the keys of packets about each eleven seconds, because of their data. charon
/// replaces those of packets and of IKE in between.
#[test]
fn both_sides_replace_keys_under_a_stream_of_a_run_and_it_is_exact_without_a_stall() {
    let steps = r#"
        sed -i 's/^inner.*/&\nlifetime-bytes = "24MiB"/' private/run.toml
        start nsenter -t $peer -n python3 "$PEERS/echo_stream.py" serve 10.2.0.1 9009 served
        until_true listens 9009
        ordinary exec ./tacit agent --policy private/run.toml --control scratch/control \
            --enrol scratch/enrol --audit scratch/audit 2>agent.log &
        until_true [ -e scratch/enrol ]
        enrolled python3 "$PEERS/echo_stream.py" send 10.2.0.1 9009 42 2000000 >streamed &
        program=$!
        until_true installed 1
        for round in 1 2; do
            sleep 2; swan --rekey --ike tacit >rekey 2>&1 || fail "$(cat rekey)"
            sleep 2; swan --rekey --child net >rekey 2>&1 || fail "$(cat rekey)"
            sleep 14
        done
        wait $program || fail "the program"
        until_true [ -s served ]
        cat streamed served
        rekeyed() { [ $(grep -c $1 scratch/audit) -ge $2 ]; }
        until_true rekeyed ike-rekeyed 2; until_true rekeyed tunnel-rekeyed 4
        of_ike=$(grep -c ike-rekeyed scratch/audit)
        of_child=$(grep -c tunnel-rekeyed scratch/audit)
        [ $of_ike = 2 ] && [ $of_child -ge 4 ] || fail "$of_ike $of_child"
        ! grep -q ike-failed scratch/audit || fail "$(grep ike-failed scratch/audit)"
        clear"#;
    let text = Scenario { rules: STREAM, inner: "\"10.1.0.1\"", steps }.output();
    let lines: Vec<&str> = text.lines().collect();
    let [sent, served, wire] = lines[..] else { panic!("{text}") };
    assert!(sent.starts_with("sent exact=True "), "{text}");
    for end in [sent, served] {
        assert!(end.contains("worst=0 ") || end.contains("worst=1 "), "{text}");
    }
    assert_eq!(wire, "only UDP 4500");
}
