#!/usr/bin/env bash
# Demonstrates tacit with unchanged programs: python's web server, curl, openssl.
#
#   curl --clear--> tacit "laptop" --TLS--> [tap] --TLS--> tacit "server" --clear--> http.server
#   tacit run curl ----------------TLS--> [tap] --TLS----------------> tacit run http.server
#
# Prints every command before it runs. Uses only loopback, and a temporary directory that is removed at
# the end (TACIT_DEMO_KEEP=1 keeps it). Exits with 0 if every check passed.
set -euo pipefail

REQUESTS=1000
root=$(cd "$(dirname "$0")/.." && pwd)

# shellcheck source=demo/show.sh
. "$root/demo/show.sh"

# ---------------------------------------------------------------- preparation

# free_ports COUNT: unused ports outside of the kernel's range for outgoing connections, which could
# take a port before the program listens on it.
free_ports() {
    python3 - "$1" <<'PYTHON'
import pathlib, random, socket, sys
outgoing = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
last = int(outgoing[0]) if int(outgoing[0]) > 12000 else 65000
found = []
for port in random.sample(range(10000, last), last - 10000):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            continue
    found.append(port)
    if len(found) == int(sys.argv[1]):
        break
print(*found)
PYTHON
}

text "tacit adds TLS to programs that cannot be changed. This demonstration protects a web server" \
    "without TLS by mutual TLS, and connects a client without TLS to it."

heading "Build"
"$root/scripts/install-deps.sh" demo
if [ -z "${TACIT:-}" ]; then
    text "  cargo build --release (the first time takes some minutes)"
    cargo build --release --locked --manifest-path "$root/Cargo.toml" --package tacit
    TACIT=${CARGO_TARGET_DIR:-$root/target}/release/tacit
fi

# The user's proxy and curl configuration must not change the demonstration.
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
work=$(mktemp -d "${TMPDIR:-/tmp}/tacit-demo.XXXXXX")
touch "$work/.curlrc"
export CURL_HOME=$work
mkdir "$work/bin" "$work/site"
# Copies, because the user of the second half may have no access to the sources.
cp -r "$root/demo" "$work/demo"
cp "$TACIT" "$work/bin/tacit"
PATH=$work/bin:$PATH
cd "$work"
show tacit --version
expect "tacit runs" succeeded
succeeded || exit 1
ports=$(free_ports 6)
read -r web_port server_port laptop_port tapped_port wire_tap_port clear_tap_port <<<"$ports"

# ---------------------------------------------------------------- the parts

heading "A program without TLS"
marker=the-crown-jewels-in-clear
printf 'order 4711: %s\n' "$marker" >site/order.txt
start web python3 -m http.server --bind 127.0.0.1 --directory site "$web_port"
web_pid=$started
wait_for web curl -sS --max-time 2 -o /dev/null "http://127.0.0.1:$web_port/"
show curl -sS --max-time 20 "http://127.0.0.1:$web_port/order.txt"
expect "python's http.server answers in clear on loopback" says "$marker"

heading "A private CA and three certificates"
show tacit ca init --dir pki --name "Demo CA"
expect "tacit ca init makes a CA" succeeded
show tacit ca issue --dir pki localhost --san 127.0.0.1 --server
expect "tacit ca issue makes a certificate for the server" succeeded
only='^(made|expires)'
show tacit ca issue --dir pki laptop --client
expect "... and one for the laptop" succeeded
only='^(made|expires)'
show tacit ca issue --dir pki alice --client
expect "... and one for Alice, who uses curl" succeeded
show tacit ca show --dir pki

heading "tacit in front of the server: clients must present a certificate"
cat >server.toml <<POLICY
version = 1

[identity.web]
cert = "pki/localhost.pem"
key  = "pki/localhost.key"

[trust.demo]
ca = "pki/ca.pem"

[[rule]]
name    = "front"
listen  = "127.0.0.1:$server_port"
connect = "127.0.0.1:$web_port"
tls     = { role = "server", identity = "web", client-cert = "required", trust = "demo" }
POLICY
show cat server.toml
show tacit check server.toml
expect "the server's policy is accepted" says '^policy OK, 1 rule'
start server tacit agent --policy server.toml --control server.sock --audit server.audit
server_pid=$started
wait_for server tacit show limits --control server.sock

heading "Which clients are accepted"
text "curl with TLS and Alice's certificate:"
only='SSL connection|subject:|issuer:|verify ok|order 4711'
show curl -sS -v --max-time 20 --cacert pki/ca.pem --cert pki/alice.pem --key pki/alice.key \
    "https://localhost:$server_port/order.txt"
expect "curl with a certificate gets the order over TLS 1.3" says "SSL connection using TLSv1.3"
expect "... and the whole order" says "$marker"
text "" "curl without a certificate:"
show curl -sS --max-time 20 --cacert pki/ca.pem "https://localhost:$server_port/order.txt"
expect "curl without a certificate is refused" refused
text "" "curl without TLS:"
show curl -sS --max-time 20 "http://localhost:$server_port/order.txt"
expect "plain HTTP at the TLS port is refused" refused
text "" "The agent's audit log of the three connections:"
show cat server.audit
expect "the audit log has the allowed connection" says '"outcome":"allowed".*"rule":"front"'
expect "the audit log says why the second was refused" says client-certificate-absent
expect "the audit log says why the third was refused" says plain-http
text "" "openssl's view of the same port:"
show timeout 20 openssl s_client -brief -connect "localhost:$server_port" \
    -servername localhost -CAfile pki/ca.pem \
    -verify_return_error -verify_hostname localhost -cert pki/alice.pem -key pki/alice.key
expect "openssl verifies the server's certificate and name" says "Verification: OK"
expect "openssl sees TLS 1.3" says "Protocol version: TLSv1.3"

heading "A second tacit for a client without TLS"
cat >laptop.toml <<POLICY
version = 1

[identity.laptop]
cert = "pki/laptop.pem"
key  = "pki/laptop.key"

[trust.demo]
ca = "pki/ca.pem"

[[rule]]
name    = "out"
listen  = "127.0.0.1:$laptop_port"
connect = "127.0.0.1:$server_port"
tls     = { role = "client", trust = "demo", identity = "laptop", server-name = "localhost" }

[[rule]]
name    = "out-tapped"            # the same, through a tap on the network
listen  = "127.0.0.1:$tapped_port"
connect = "127.0.0.1:$wire_tap_port"
tls     = { role = "client", trust = "demo", identity = "laptop", server-name = "localhost" }
POLICY
show cat laptop.toml
show tacit check laptop.toml
expect "the laptop's policy is accepted" says '^policy OK, 2 rules'
start laptop tacit agent --policy laptop.toml --control laptop.sock
laptop_pid=$started
wait_for laptop tacit show limits --control laptop.sock
show curl -sS --max-time 20 "http://127.0.0.1:$laptop_port/order.txt"
expect "curl without TLS reaches the server through two agents" says "$marker"

heading "What can be read on the network"
text "Two taps record every byte: one in front of the first tacit, one between the two."
start clear-tap python3 demo/tap.py "$clear_tap_port" "$tapped_port" clear-tap
wait_for clear-tap test -e clear-tap/ready
start wire-tap python3 demo/tap.py "$wire_tap_port" "$server_port" wire-tap
wait_for wire-tap test -e wire-tap/ready
show curl -sS --max-time 20 "http://127.0.0.1:$clear_tap_port/order.txt"
expect "the order arrives through both taps" says "$marker"
words=("$marker" "GET /order.txt" "HTTP/1." "SimpleHTTP" "curl/")
text "" "The tap in front of the first tacit (searched for: ${words[*]}):"
show python3 demo/read_tap.py clear-tap "${words[@]}"
expect "the tap finds these words where they are in clear" \
    says '^clear-text-hits=[1-9]'
text "" "The same between the two agents:"
show python3 demo/read_tap.py wire-tap "${words[@]}"
expect "between the agents there are TLS records" says 'application-data=[1-9]'
expect "between the agents all bytes are in TLS records" says '^bytes-outside-records=0$'
expect "between the agents none of the words occurs" says '^clear-text-hits=0$'

heading "The displays during an open connection"
exec 9<>"/dev/tcp/127.0.0.1/$laptop_port"
printf 'GET /order.txt HTTP/1.0\r\n' >&9 # the empty line that ends a request is held back
connection_shown() { tacit show connections --control "$1" | grep -q "$2"; }
wait_for laptop connection_shown laptop.sock ' out '
wait_for server connection_shown server.sock ' front '
for what in connections rules identities limits; do
    show tacit show "$what" --control server.sock
    case $what in
    connections) expect "show connections has the open connection with its rule and TLS version" says 'front.*1\.3' ;;
    rules) expect "show rules has the rule" says front ;;
    identities) expect "show identities has the identity" says web ;;
    limits) expect "show limits has the limits" succeeded ;;
    esac
done
text "" "The laptop's side of the same connection as JSON (an excerpt):"
only='"(rule|role|remote|connect|policy|version|suite|group|identity|result|resumed)": ["t]'
show tacit show connections --json --control laptop.sock
is_json() { python3 -m json.tool <<<"$output" >/dev/null; }
expect "show --json prints JSON" is_json
printf '\r\n' >&9
output=$(timeout 20 cat <&9 || true)
exec 9<&-
expect "the held connection ends with its answer" says "$marker"

# ---------------------------------------------------------------- the price

# measure LABEL URL [CURL OPTION...]: CPU of every process for the requests, one row of the table.
table=''
measure() {
    local label=$1 url=$2 before after codes total
    local curl_ms web_ms laptop_ms server_ms web_was laptop_was server_was
    shift 2
    before=$(python3 demo/cpu.py "$web_pid" "$laptop_pid" "$server_pid")
    TIMEFORMAT='%U %S'
    { time curl -sS --max-time 120 -o /dev/null -w '%{http_code}\n' "$@" \
        "$url?[1-$REQUESTS]" >codes 2>curl.err || true; } 2>curl.time
    after=$(python3 demo/cpu.py "$web_pid" "$laptop_pid" "$server_pid")
    read -r web_was laptop_was server_was <<<"$before"
    read -r web_ms laptop_ms server_ms <<<"$after"
    curl_ms=$(awk '{ printf "%d", ($1 + $2) * 1000 }' curl.time)
    web_ms=$((web_ms - web_was))
    laptop_ms=$((laptop_ms - laptop_was))
    server_ms=$((server_ms - server_was))
    total=$((curl_ms + laptop_ms + server_ms + web_ms))
    codes=$(grep -c '^200$' codes || true)
    indent <curl.err
    table+=$(printf '%-28s %6d %14d %14d %12d %7d' \
        "$label" "$curl_ms" "$laptop_ms" "$server_ms" "$web_ms" "$total")$'\n'
    expect "$label: $REQUESTS of $REQUESTS requests answered" test "$codes" -eq "$REQUESTS"
}

heading "The cost: CPU time of each process for $REQUESTS requests"
text "curl sends one request after the other, and the web server needs a new connection for each, so" \
    "there are $REQUESTS handshakes for a few bytes each. curl and the agents resume their sessions" \
    "after the first handshake. \`make bench\` measures full handshakes and large transfers, and" \
    "compares tacit with other proxies."
measure "without tacit" "http://127.0.0.1:$web_port/order.txt"
measure "curl's own TLS, one tacit" "https://localhost:$server_port/order.txt" \
    --cacert pki/ca.pem --cert pki/alice.pem --key pki/alice.key
measure "curl without TLS, two tacits" "http://127.0.0.1:$laptop_port/order.txt"
text "" "  CPU time in milliseconds, user and system (in steps of 10):"
{
    printf '%-28s %6s %14s %14s %12s %7s\n' '' curl 'tacit laptop' 'tacit server' http.server sum
    printf '%s' "$table"
} | indent

heading "Ending the agents"
for agent in laptop server; do
    pid_name=${agent}_pid
    kill "${!pid_name}"
    status=0
    wait "${!pid_name}" || status=$?
    output=$(cat "$agent.log")
    expect "the agent \"$agent\" ends with exit status 0" succeeded
done

# ---------------------------------------------------------------- the same with nothing re-pointed

heading "The same with tacit run, without changing any address"
network=(unshare --net --mount)
[ "$(id -u)" -eq 0 ] || network=(unshare --net --mount --user --map-current-user --keep-caps)
if "${network[@]}" true 2>unshare.err; then
    "${network[@]}" bash demo/runs.sh "$part" || true
    expect "the second half was completed" test -e runs/ended
    [ ! -e runs/ended ] || part=$(cat runs/ended)
    mapfile -t runs_results <runs/results
    results+=("${runs_results[@]}")
    failures=$((failures + $(grep -c '^FAILED' runs/results || true)))
else
    text "You cannot make network namespaces on this machine, so \`tacit run\` does not work:"
    indent <unshare.err
    results+=("skipped tacit run: no network namespace (see docs/containers.md)")
fi

# ---------------------------------------------------------------- the summary

heading "Summary"
printf '  %s\n' "${results[@]}"
echo
if [ "$failures" -gt 0 ]; then
    text "$failures of ${#results[@]} checks FAILED; the last lines of the agents' logs:"
    for log in *.log runs/*.log; do [ ! -s "$log" ] || { echo "$log:" && tail -n 5 "$log"; }; done | indent
    exit 1
fi
text "All ${#results[@]} checks passed. The web server and curl were not changed. Clients with a" \
    "certificate were accepted, others were refused, and nothing was in clear on the network." \
    "" \
    "Next: README.md for a policy of your own, docs/tacit.1 (man -l docs/tacit.1) for every command."
