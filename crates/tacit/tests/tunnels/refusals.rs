//! Tests that tacit rejects a tunnel if the gateway assigns an address that another rule contains.
//! Also tests that tacit ends a tunnel if the gateway's certificate expires. The last test checks
//! that datagrams of other hosts do not disturb a tunnel.

use crate::certificates::CERTIFICATES;
use crate::{Scenario, WEB};

#[test]
fn an_assigned_address_that_another_rule_names_is_refused() {
    let rules = format!(
        "{WEB}[[rule]]\nname = \"database\"\ndirection = \"outbound\"\nremote = \"10.1.0.0/24\"\n\
         permit = true\n"
    );
    let steps = "agent
        enrolled bash -c 'curl -sS -m 3 http://10.2.0.1/; ip -4 -o address show | grep -c 10.1.0.1
            touch scratch/up; while [ ! -e scratch/end ]; do sleep 0.1; done' 2>&1 & program=$!
        until_true [ -e scratch/up ]
        control show ike | grep -o 'an address in .remote. of rule .database.'
        until_true grep -q 'ike-failed.*kind=assigned-address-refused' agent.log
        installed 0 || fail installed
        touch scratch/end; wait $program
        clear";
    let text = Scenario { rules: &rules, inner: "\"gateway\"", steps }.output();
    assert_eq!(text, "0\nan address in `remote` of rule `database`\nonly UDP 4500\n");
}

#[test]
fn a_run_that_is_refused_leaves_no_device_and_no_peer_in_the_agent() {
    let rules = format!(
        "{WEB}[[rule]]\nname = \"served\"\ndirection = \"inbound\"\n\
         listen = \"0.0.0.0:7999\"\nlocal-ports = 7999\npermit = true\n"
    );
    let steps = "start python3 -m http.server 7999 --bind 0.0.0.0 >/dev/null 2>&1; other=$!
        listened() { ss -Hltn 'sport = 7999' | grep -q .; }
        until_true listened
        agent; service=$!
        for round in 1 2 3; do
            enrolled true 2>>refused && fail 'a run without its port'
        done
        three_refused() { [ $(grep -c 'run-refused.*7999' agent.log) = 3 ]; }
        until_true three_refused
        devices() {
            for process in $service $(tree $service); do ls -l /proc/$process/fd; done |
                grep -c /net/tun
        }
        none() { [ $(devices) = 0 ] && ! control show ike --json | grep -q 10.99.0.2; }
        until_true none
        kill $other
        free() { ! listened; }
        until_true free
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1/
            touch scratch/up; while [ ! -e scratch/end ]; do sleep 0.1; done' & program=$!
        until_true [ -e scratch/up ]
        none && fail 'the run has no TUN device'
        touch scratch/end; wait $program
        until_true none
        clear";
    let inner = r#"["10.1.0.1", "fd01::1"]"#;
    let text = Scenario { rules: &rules, inner, steps }.output();
    assert_eq!(text, "from behind\nonly UDP 4500\n");
}

#[test]
fn a_tunnel_ends_when_the_certificate_of_the_gateway_expires() {
    let steps = format!(
        "{CERTIFICATES}
        mkdir ca; touch ca/index; echo 01 >ca/serial
        cat >ca.conf <<END
[ca]
default_ca = default
[default]
database = ca/index
new_certs_dir = ca
serial = ca/serial
default_md = sha256
policy = any
x509_extensions = leaf
[any]
commonName = supplied
[leaf]
subjectAltName = DNS:gw.example
basicConstraints = critical,CA:false
END
        certificate_until() {{
            openssl req -new -newkey \"$@\" -nodes -subj /CN=gw -keyout gw.key -out gw.csr &&
                openssl ca -batch -notext -config ca.conf -cert ca.pem -keyfile ca.key -in gw.csr \
                    -out gw.pem -startdate 200101000000Z \
                    -enddate $(date -u -d '+15 seconds' +%y%m%d%H%M%SZ)
        }}
        use_certificates ec -pkeyopt ec_paramgen_curve:P-256
        certificate_until ec -pkeyopt ec_paramgen_curve:P-256 >openssl.log 2>&1 ||
            fail \"$(cat openssl.log)\"
        cp gw.pem swanctl/x509; cp gw.key swanctl/private
        swan --load-all >load 2>&1 || fail \"$(cat load)\"
        agent
        enrolled bash -c 'curl -sS -m 10 http://10.2.0.1/; touch scratch/up
            while [ ! -e scratch/end ]; do sleep 0.1; done
            curl -sS -m 2 http://10.2.0.1/ 2>&1 | grep -o \"timed out\"' & program=$!
        until_true [ -e scratch/up ]
        installed 1 || fail 'no tunnel'
        expired() {{ grep -q 'ike-failed.*kind=peer-no-longer-trusted' agent.log; }}
        for second in $(seq 40); do expired && break; sleep 0.5; done
        expired || fail 'the certificate has not expired'
        empty() {{ ! swan --list-sas | grep -q ESTABLISHED; }}
        until_true empty
        touch scratch/end; wait $program
        clear"
    );
    let text = Scenario { rules: WEB, inner: "\"10.1.0.1\"", steps: &steps }.output();
    assert_eq!(text, "from behind\ntimed out\nonly UDP 4500\n");
}

#[test]
fn datagrams_of_strangers_do_not_disturb_tunnels_and_are_counted() {
    let steps = r#"cat >flood.py <<'END'
import os, socket, struct, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
def message(spi, version, length):
    head = os.urandom(8) + spi + struct.pack("!BBBBII", 0, version, 37, 8, 1, length)
    return bytes(4) + head + bytes(28)
kinds = [message(os.urandom(8), 0x20, 56), message(os.urandom(8), 0x20, 57),
         message(os.urandom(8), 0x10, 56)]
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for kind in kinds:
        sender.sendto(kind, ("10.99.0.1", 4500))
END
        agent
        enrolled bash -c 'curl -sS -m 20 http://10.2.0.1/; touch scratch/up
            while [ ! -e scratch/flood ]; do sleep 0.1; done
            curl -sS -m 20 http://10.2.0.1/big | cmp - web/big && echo same
            while [ ! -e scratch/end ]; do sleep 0.1; done' & program=$!
        until_true [ -e scratch/up ]
        behind python3 flood.py 4 & flood=$!
        touch scratch/flood
        swan --rekey --ike tacit >rekey 2>&1 || fail "$(cat rekey)"
        control reload >/dev/null || fail reload
        enrolled true || fail 'no other run'
        wait $flood
        control show sa | grep -o 'unknown-spi\|malformed' | sort -u
        touch scratch/end; wait $program
        clear"#;
    let text = Scenario { rules: WEB, inner: "\"10.1.0.1\"", steps }.output();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let wanted = ["from behind", "malformed", "only UDP 4500", "same", "unknown-spi"];
    assert_eq!(lines, wanted, "{text}");
}
