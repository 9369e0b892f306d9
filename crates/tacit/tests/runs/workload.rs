//! Tests `tacit workload`. The client and the server each run under `tacit run`.

use crate::comparison::Comparison;

/// What does not depend on the machine of reports on standard input.
const COUNTS: &str = r#"
counts() { /usr/bin/python3 -c 'import json, sys
report = json.load(sys.stdin)
figures = report["figures"]
print(report["mode"], figures.get("connections"), figures.get("mb"), sorted(figures))'; }
client() {
    mode=$1; shift
    ./tacit workload $mode client "$@" --connect $HOST:7000 --json - | counts
}
client interactive --seconds 100ms --warm-up 10ms --bytes 100
client request-reply --seconds 100ms --warm-up 10ms --reply 1MiB --rate 50
client stream out --bytes 3MiB --connections 2
client stream in --bytes 3MiB --connections 2
client connect --connections 20
client ramp --connections 20 --step 5 --ramps 2 --pause 20ms
client start-stop --connections 20
"#;

const WORKLOAD: Comparison = Comparison {
    ports: &[7000],
    servers: &["start ./tacit workload ramp server --listen 10.9.8.7:7000 >/dev/null; await 7000"],
    script: COUNTS,
    wanted: &["connect 20", "\nstream None 6.29146 ", "\nstart-stop None", "interactive None"],
    ..Comparison::NONE
};

#[test]
fn a_client_measures_the_same_things_under_a_run() {
    let same = WORKLOAD.compare();
    assert_eq!(same.lines().count(), 8, "{same}");
}
