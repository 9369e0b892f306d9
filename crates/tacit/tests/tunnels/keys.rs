//! Tests `tacit trace --ike`, which records the keys of tunnels. With these keys, tshark must
//! decrypt a packet capture of the tunnels.

use crate::{Scenario, WEB};

/// Writes what passes the interface to a capture. Batches of datagrams are divided, so that the
/// capture has each.
const RECORDED: &str = r#"
    cat >tap.py <<'PYTHON'
@TAP@
PYTHON
    ip link set w0 gso_max_segs 1; behind ip link set w1 gso_max_segs 1
    python3 tap.py w0 wire.pcap >tap.out 2>&1 & tap=$!
    until_true grep -q ready tap.out
    # decrypted KEYS FILTER: counts packets that tshark decrypts with these settings.
    decrypted() {
        sed 's/^/-o/' $1 | xargs -d '\n' tshark -r wire.pcap -Y "$2" 2>tshark.log | wc -l
    }
"#;

/// A trace, a program that transfers a file before and after new keys, and the end of both.
const TRACED: &str = r#"
    agent
    ordinary exec ./tacit trace --ike branch --keylog scratch/keys --for 1m \
        --control scratch/control >trace.out 2>trace.err & trace=$!
    until_true grep -q 'tracing tunnels to' trace.err
    enrolled bash -c 'curl -sS -m 20 http://10.2.0.1/; touch scratch/up
        while [ ! -e scratch/more ]; do sleep 0.1; done
        curl -sS -m 20 http://10.2.0.1/; touch scratch/done
        while [ ! -e scratch/end ]; do sleep 0.1; done' & program=$!
    until_true [ -e scratch/up ]
    swan --rekey --child net >rekey 2>&1 || fail rekey
    swan --rekey --ike tacit >rekey 2>&1 || fail rekey
    rekeyed() { control show ike --json | grep -q '"rekeyed": 1'; }
    until_true rekeyed
    touch scratch/more; until_true [ -e scratch/done ]
    control show traces | grep -o 'tunnels to \[ike.branch\]'
    touch scratch/end; wait $program
    kill $trace; wait $trace; kill $tap; wait $tap
    cp scratch/keys keys
"#;

fn scenario(steps: &str) -> String {
    let recorded = RECORDED.replace("@TAP@", include_str!("../packet/tap.py"));
    let steps = format!("{recorded}\n{steps}");
    Scenario { rules: WEB, inner: "\"10.1.0.1\"", steps: &steps }.output()
}

#[test]
fn tshark_decrypts_tunnels_with_the_keys_of_a_trace() {
    let text = scenario(&format!(
        r#"{TRACED}
        until_true grep -q 'trace-started.*tunnels to' agent.log
        [ "$(stat -c %a scratch/keys)" = 600 ] || fail mode
        all=$(decrypted keys esp)
        good=$(decrypted keys 'esp.icv_good == 1 and not _ws.malformed')
        [ "$all" -ge 12 ] && [ "$good" = "$all" ] || fail "decrypted $good of $all"
        [ "$(decrypted keys 'esp.icv_good == 1 and http')" -ge 4 ] || fail http
        spis=$(grep -c esp_sa keys); [ "$spis" = 4 ] || fail "$spis rows of two tunnels"
        messages=$(decrypted keys 'isakmp.exchangetype != 34')
        opened=$(decrypted keys 'isakmp.exchangetype != 34 and isakmp.enc.decrypted and
            not _ws.malformed')
        [ "$messages" -ge 6 ] && [ "$opened" = "$messages" ] || fail "$opened of $messages"
        # One nibble of each key is another one.
        python3 -c '
import re, sys
def change(found):
    return found[1] + "%x" % (int(found[2], 16) ^ 1)
for line in sys.stdin:
    print(re.sub(r"((?:0x|,)\w{{71}})(\w)(?=[\",])", change, line), end="")
' <keys >other
        [ "$(decrypted other esp)" = "$all" ] || fail "$(cat tshark.log)"
        [ "$(decrypted other 'esp.icv_good == 1')" = 0 ] || fail 'with another key'
        # A short message without payloads can look well-formed with any key: count messages by
        # an encrypted field that has one value only, the group of the key exchange (X25519).
        exchange='isakmp.exchangetype == 36 and isakmp.key_exchange.dh_group == 31'
        [ "$(decrypted keys "$exchange")" -ge 2 ] || fail 'no encrypted key exchange'
        [ "$(decrypted other "$exchange")" = 0 ] || fail 'messages with another key'
        echo decrypted"#
    ));
    let wanted = "from behind\ntunnels to [ike.branch]\nfrom behind\ndecrypted\n";
    let mut lines: Vec<_> = text.lines().collect();
    let mut wanted: Vec<_> = wanted.lines().collect();
    lines.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
}

#[test]
fn keys_of_tunnels_are_not_written_if_the_policy_forbids_it() {
    let text = scenario(
        r#"
        printf '[agent]\ntrace = false\n' >>private/run.toml
        agent
        control trace --ike branch --keylog scratch/keys 2>&1 | grep -o 'disables traces'
        [ ! -e scratch/keys ] || fail keys
        sed -i 's/trace = false/trace = true/' private/run.toml; control reload >/dev/null
        control trace --ike other --keylog scratch/keys 2>&1 | grep -o 'has no \[ike.other\]'
        control trace --ike branch --pcap scratch/x 2>&1 | grep -o 'cannot be used with'"#,
    );
    assert_eq!(text, "disables traces\nhas no [ike.other]\ncannot be used with\n");
}
