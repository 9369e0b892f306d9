//! Tests `tacit agent --host` with rules that match DNS names. The kernel must capture traffic to
//! the addresses that programs get for these names.

use crate::machines::Machines;

/// A client of resolvers.
pub const CLIENT: &str = r#"
import errno, os, socket, struct, sys

CODES = ["no error", "format error", "server failure", "no such name", "not implemented", "refused"]

def reason(error):
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "timeout"
    return errno.errorcode.get(error.errno, type(error).__name__)

def encode(name):
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"

def exchange(message, server, transport):
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    kind = socket.SOCK_STREAM if transport == "tcp" else socket.SOCK_DGRAM
    client = socket.socket(family, kind)
    client.settimeout(8)
    client.connect((server, 53))
    if transport == "tcp":
        client.sendall(struct.pack(">H", len(message)) + message)
        length = client.recv(2)
        return client.recv(struct.unpack(">H", length)[0]) if length else b""
    client.send(message)
    return client.recv(4096)

def look_up(name, kind="1", server="192.0.2.2", transport="udp"):
    """The addresses of a name with their TTLs, or why there are none."""
    question = encode(name) + struct.pack(">HH", int(kind), 1)
    message = struct.pack(">HHHHHH", os.getpid() & 0xffff, 0x100, 1, 0, 0, 0) + question
    try:
        answer = exchange(message, server, transport)
    except OSError as error:
        return reason(error)
    if not answer:
        return "end"
    code, count = answer[3] & 15, struct.unpack_from(">H", answer, 6)[0]
    if code:
        return CODES[code]
    found, at = [], 12 + len(question)
    for _ in range(count):
        while answer[at] and answer[at] < 0xc0:
            at += 1 + answer[at]
        at += 2 if answer[at] else 1
        kind, _, ttl, length = struct.unpack_from(">HHIH", answer, at)
        at += 10
        if kind not in (1, 28):
            at += length
            continue
        family = socket.AF_INET6 if kind == 28 else socket.AF_INET
        found.append((socket.inet_ntop(family, answer[at:at + length]), ttl))
        at += length
    return sorted(found)

def lookup(*arguments):
    found = look_up(*arguments)
    print(found if isinstance(found, str) else " ".join(a for a, _ in found) or "no records")

def ttls(*arguments):
    print(*(ttl for _, ttl in look_up(*arguments)))

def many(first, last):
    """Looks up many names of one domain."""
    codes = [look_up("n%d.far.example" % number) for number in range(int(first), int(last))]
    print(len(codes), {one if isinstance(one, str) else "found" for one in codes})

command, *arguments = sys.argv[1:]
globals()[command](*arguments)
"#;

/// What the scripts begin with.
const BEGIN: &str = r#"
cat >zone <<'Z'
far.example A 192.0.2.2
far.example AAAA 2001:db8::2
www.far.example A 192.0.2.2
leads.org CNAME far.example
other.org A 192.0.2.2
Z
start_far python3 names.py zone asked 192.0.2.2 2001:db8::2
until_true [ -e asked.ready ]
lookup() { timeout 20 python3 client.py lookup "$@"; }
"#;

/// TLS by name; nothing says which server name the handshake has.
pub const NAMED: &str = r#"
[[rule]]
name = "named"
direction = "outbound"
remote = "far.example"
remote-ports = 4433
tls = { trust = "ca" }
"#;

pub fn machines(settings: &str, rules: &str) -> Machines {
    let machines = Machines::new(settings, rules);
    machines.write("client.py", CLIENT);
    machines.write("names.py", include_str!("../peers/names.py"));
    machines
}

pub fn expect(machines: &Machines, script: &str, wanted: &str) {
    machines.expect(&format!("{BEGIN}{script}"), wanted);
}

#[test]
fn a_name_to_which_another_leads_has_its_rule() {
    expect(
        &machines("unmatched = \"permit\"", NAMED),
        r#"
        capture
        lookup leads.org
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
192.0.2.2
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn a_looked_up_name_has_its_rule_and_its_server_name() {
    expect(
        &machines("unmatched = \"permit\"", NAMED),
        r#"
        capture
        ask 192.0.2.2 8000 word
        lookup far.example; lookup far.example 28; lookup FAR.example 1 2001:db8::2
        lookup other.org; lookup none.org
        ask 192.0.2.2 4433 marked-4
        ask 2001:db8::2 4433 marked-6
        ask 192.0.2.2 8000 word
        connections named
        ./tacit show runs --json --control host.sock | grep -o '"name": "far.example"' | uniq
        seen marked
        sort -u asked"#,
        "
answer to word from ::ffff:192.0.2.1
192.0.2.2
2001:db8::2
192.0.2.2
192.0.2.2
no such name
answer to marked-4 from ::ffff:127.0.0.1
answer to marked-6 from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
2
\"name\": \"far.example\"
0
udp 1 far.example
udp 1 none.org
udp 1 other.org
udp 28 far.example
",
    );
}

#[test]
fn questions_by_tcp_are_learned_too_and_without_rules_by_name_none_are_captured() {
    expect(
        &machines("unmatched = \"permit\"", NAMED),
        r#"
        cp host.toml by-name.toml
        sed -i '/^name = "named"/,$d' host.toml; sed -i '$d' host.toml
        capture
        lookup far.example; cat asked
        cp by-name.toml host.toml
        ./tacit reload --control host.sock | grep generation
        lookup far.example 1 192.0.2.2 tcp
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
192.0.2.2
udp 1 far.example
policy generation 2; added: named
192.0.2.2
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn with_unmatched_deny_only_names_with_rules_are_resolved() {
    let rules = format!(
        "{NAMED}\n[[rule]]\nname = \"dns\"\ndirection = \"outbound\"\nprotocol = \"udp\"\n\
         remote = \"192.0.2.2\"\nremote-ports = 53\npermit = true\n"
    );
    expect(
        &machines("unmatched = \"deny\"", &rules),
        r#"
        capture
        lookup far.example; lookup other.org
        lookup far.example 1 2001:db8::2
        lookup far.example 1 192.0.2.2 tcp
        ask 192.0.2.2 4433 marked
        ask 192.0.2.2 8000 word
        sort -u asked
        seen marked"#,
        "
192.0.2.2
refused
ECONNREFUSED
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
ECONNREFUSED
udp 1 far.example
0
",
    );
}

#[test]
fn names_outlive_a_killed_agent_and_questions_are_refused_without_one() {
    expect(
        &machines("unmatched = \"permit\"", NAMED),
        r#"
        ./tacit agent --host --guard --policy host.toml
        lookup far.example; lookup far.example 1 192.0.2.2 tcp
        capture
        lookup far.example
        ask 192.0.2.2 4433 marked
        kill -9 $(pgrep -P $agent)
        refused() { [ "$(ask 192.0.2.2 4433 marked)" = ECONNREFUSED ]; }
        until_true refused
        lookup other.org; lookup other.org 1 192.0.2.2 tcp
        ask 192.0.2.2 8000 word
        ./tacit agent --host --guard --policy host.toml
        ask 192.0.2.2 4433 marked
        mv zone no-zone; touch zone
        capture
        ask 192.0.2.2 4433 marked
        ask 2001:db8::2 4433 clear >/dev/null
        seen clear
        cp no-zone zone
        for round in 2 3; do
            ./tacit restart --control host.sock >/dev/null
            started() { grep -c 'run-began run=host' host.log | grep -qx "$1"; }
            until_true started $round
            ask 192.0.2.2 4433 marked
            lookup far.example
        done | sort -u
        seen marked"#,
        "
timeout
ECONNREFUSED
192.0.2.2
answer to marked from ::ffff:127.0.0.1
timeout
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
1
192.0.2.2
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn of_several_names_the_strictest_rule_decides() {
    let rules = r#"
[[rule]]
name = "permitted"
direction = "outbound"
remote = "clear.org"
permit = true
[[rule]]
name = "named"
direction = "outbound"
remote = "*.example"
remote-ports = 4433
tls = { trust = "ca" }
[[rule]]
name = "denied"
direction = "outbound"
remote = "bad.org"
remote-ports = 4433
deny = true
"#;
    expect(
        &machines("unmatched = \"permit\"", rules),
        r#"
        for name in clear.org bad.org; do echo $name A 192.0.2.2 >>zone; done
        capture
        # A name without rules changes nothing, a permit by name not either.
        for name in clear.org other.org far.example; do lookup $name; done
        ask 192.0.2.2 4433 marked; ask 192.0.2.2 8000 word
        # The same rule with another server name.
        lookup www.far.example
        ask 192.0.2.2 4433 marked
        lookup far.example 28
        ask 2001:db8::2 4433 marked
        lookup bad.org
        ask 192.0.2.2 4433 marked; ask 192.0.2.2 8000 word
        connections permitted named denied
        seen marked"#,
        "
192.0.2.2
192.0.2.2
192.0.2.2
answer to marked from ::ffff:127.0.0.1
answer to word from ::ffff:192.0.2.1
192.0.2.2
ECONNREFUSED
2001:db8::2
answer to marked from ::ffff:127.0.0.1
192.0.2.2
ECONNREFUSED
answer to word from ::ffff:192.0.2.1
2 2 1
0
",
    );
}

#[test]
fn the_hosts_file_gives_names_and_addresses_of_this_link_are_withheld() {
    expect(
        &machines("unmatched = \"permit\"", NAMED),
        r#"
        printf '127.0.0.1 localhost\n192.0.2.2 far.example\n' >hosts
        mount --bind hosts /etc/hosts
        cat >zone <<'Z'
far.example A 169.254.0.9
far.example A 224.0.0.9
far.example A 127.0.0.1 99999999
far.example A 192.0.2.1 300
Z
        ./tacit agent --host --guard --policy host.toml
        ask 192.0.2.2 4433 marked
        capture
        ask 192.0.2.2 4433 marked
        lookup far.example
        python3 client.py ttls far.example
        printf '127.0.0.1 localhost\n' >hosts
        forgotten() { ask 192.0.2.2 4433 clear >/dev/null; [ $(seen clear) != 0 ]; }
        until_true forgotten
        seen marked"#,
        "
ECONNREFUSED
answer to marked from ::ffff:127.0.0.1
127.0.0.1 192.0.2.1
604800 300
0
",
    );
}

#[test]
fn a_reload_that_drops_the_rule_captures_its_names_no_longer_until_it_comes_back() {
    expect(
        &machines("unmatched = \"permit\"", NAMED),
        r#"
        capture
        lookup far.example
        ask 192.0.2.2 4433 marked
        cp host.toml by-name.toml
        sed -i 's/far.example"$/nobody.example"/' host.toml
        ./tacit reload --control host.sock | grep generation
        ask 192.0.2.2 4433 clear >/dev/null
        seen clear
        cp by-name.toml host.toml
        ./tacit reload --control host.sock | grep generation
        ask 192.0.2.2 4433 marked
        seen marked"#,
        "
192.0.2.2
answer to marked from ::ffff:127.0.0.1
policy generation 2; changed: named
1
policy generation 3; changed: named
answer to marked from ::ffff:127.0.0.1
0
",
    );
}

#[test]
fn an_answer_does_not_shorten_the_time_of_an_address_in_use() {
    expect(
        &machines("unmatched = \"permit\"", NAMED),
        r#"
        days() { python3 -c 'import nft
print(*(left // 86400000 for _, left in nft.elements("tacit", "named4")))'; }
        echo far.example A 192.0.2.2 300 >zone
        capture
        lookup far.example; days
        ask 192.0.2.2 4433 marked; days
        echo far.example A 192.0.2.2 172800 >zone
        lookup far.example; days
        ./tacit show limits --json --control host.sock >limits
        python3 -c 'import json
all = {one["name"]: one for one in json.load(open("limits"))["limits"]}
print(all["host-names"]["used"], all["host-named-addresses"]["max"])'
        "#,
        "
192.0.2.2
1
answer to marked from ::ffff:127.0.0.1
8
192.0.2.2
8
1 65536
",
    );
}

#[test]
fn a_full_table_withholds_answers_for_new_names() {
    let rules = NAMED.replace("far.example", "*.far.example");
    expect(
        &machines("unmatched = \"permit\"", &rules),
        r#"
        # 65,536 addresses, 32 of each name.
        python3 - >zone <<'P'
for number in range(2049):
    for last in range(32):
        print("n%d.far.example A 10.%d.%d.%d" % (number, number >> 8, number & 255, last))
P
        capture
        python3 client.py many 0 2048
        lookup n2048.far.example; lookup n0.far.example | grep -c 10.0.0.0; lookup none.org
        until_true grep -q 'name-not-learnt.*name=n2048.far.example' host.log
        grep -o 'name-not-learnt.*name=n2048.far.example' host.log | uniq
        kill -9 $(pgrep -P $agent); wait $agent
        capture
        lookup n2048.far.example; lookup n2047.far.example | grep -c 10.7.255.0"#,
        "
2048 {'found'}
server failure
1
no such name
name-not-learnt run=host name=n2048.far.example
server failure
1
",
    );
}
