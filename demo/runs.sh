#!/usr/bin/env bash
# The second half of the demonstration: programs under `tacit run`, as an ordinary user.
#
#   curl --clear--> tacit --TLS--> [tap] --TLS--> tacit --clear--> http.server
#   inside a run                                            inside another
#
# demo.sh starts it in a network namespace, which represents the host and its network. It configures
# names, two addresses and a tap with the rights over the namespace, and then gives these rights up.
set -euo pipefail

SERVER=10.9.8.7
FAR_CLIENT=10.9.8.9
ORDINARY=54321 # where root runs this: an unprivileged user

. demo/show.sh

if [ "${1:-}" != inside ]; then
    mkdir runs
    cat >runs/resolv.conf <<<"nameserver 127.0.0.1"
    mount --bind runs/resolv.conf /etc/resolv.conf
    ip link set lo up
    ip route add local "$SERVER/32" dev lo
    ip route add local "$FAR_CLIENT/32" dev lo
    python3 demo/resolver.py 127.0.0.1 orders.example=$SERVER imposter.example=$SERVER \
        other.example=$SERVER >runs/resolver.log 2>&1 &
    pids+=($!)
    for port in 8000 8080; do
        python3 demo/wire.py "$port" "runs/wire-$port" >"runs/wire-$port.log" 2>&1 &
        pids+=($!)
        wait_for "runs/wire-$port" test -e "runs/wire-$port/ready"
    done
    less=(setpriv --inh-caps=-all --ambient-caps=-all)
    if [ "$(id -u)" -eq 0 ]; then
        chmod 755 .
        chown -R "$ORDINARY:$ORDINARY" runs
        less=(setpriv --reuid="$ORDINARY" --regid="$ORDINARY" --clear-groups)
    fi
    "${less[@]}" bash demo/runs.sh inside "$1"
    exit
fi

# ---------------------------------------------------------------- as the ordinary user

part=$2
cd runs
mkdir -m 700 site own
export XDG_RUNTIME_DIR=$PWD/own
# Keeps the results of completed checks even after a failure.
keep_results() {
    printf '%s\n' "${results[@]}" >results
    clean_up
}
trap keep_results EXIT

text "From here on a namespace represents the host and its network. In it orders.example is $SERVER," \
    "and a tap reads every packet. No process is root:"
show sh -c 'id -u; grep CapEff /proc/self/status'
expect "no capabilities are needed" says '^CapEff:.0+$'

heading "The tap, and an unprotected web server"
marker=the-crown-jewels-on-the-wire
printf 'order 4712: %s\n' "$marker" >site/order.txt
start clear python3 -m http.server --bind "$SERVER" --directory site 8000
clear_pid=$started
wait_for clear curl -sS --max-time 2 -o /dev/null "http://$SERVER:8000/"
show curl -sS --max-time 20 "http://$SERVER:8000/order.txt"
words=("$marker" "GET /order.txt" "HTTP/1." "SimpleHTTP" "curl/")
show python3 ../demo/read_tap.py wire-8000 "${words[@]}"
expect "the tap reads the order in clear" says '^clear-text-hits=[1-9]'
kill "$clear_pid"

heading "A server under tacit run"
{
    tacit ca init --dir pki --name "Demo CA"
    tacit ca issue --dir pki orders.example --server
} >/dev/null
cat >server.toml <<POLICY
version = 1

[identity.orders]
cert = "pki/orders.example.pem"
key  = "pki/orders.example.key"

[[rule]]
name        = "orders"
direction   = "inbound"
listen      = "$SERVER:8080"
local-ports = 8080
tls         = { identity = "orders", client-cert = "none" }
POLICY
show cat server.toml
start server tacit run --policy server.toml -- python3 -u -m http.server --directory site 8080
server_pid=$started
https=(curl -sS --max-time 20 --cacert pki/ca.pem https://orders.example:8080/order.txt)
wait_for server "${https[@]}"
text "" "curl with TLS, from another address:"
only='SSL connection|subject:|verify ok|order 4712'
show "${https[@]}" -v --interface "$FAR_CLIENT"
expect "python's http.server, unchanged, answers TLS 1.3" says 'SSL connection using TLSv1.3'
expect "... with its whole answer" says "$marker"
text "" "The log of the web server:"
show grep "^$FAR_CLIENT" server.log
expect "the server sees the real client's address" says "^$FAR_CLIENT .*GET /order.txt"
show timeout 20 openssl s_client -brief -connect orders.example:8080 -CAfile pki/ca.pem \
    -verify_return_error -verify_hostname orders.example
expect "openssl verifies certificate and name" says 'Verification: OK'

heading "A client under tacit run"
cat >client.toml <<POLICY
version = 1

[trust.demo]
ca = "pki/ca.pem"

[[rule]]
name         = "orders"
direction    = "outbound"
remote       = ["orders.example", "imposter.example"]
remote-ports = 8080
tls          = { trust = "demo" }
POLICY
show cat client.toml
run=(tacit run --policy client.toml --)
show "${run[@]}" curl -sS --max-time 20 http://orders.example:8080/order.txt
expect "curl gets the order with an http:// URL" says "$marker"
text "" "Another name of the same server, which has no certificate for it:"
show "${run[@]}" curl -sS --max-time 20 http://imposter.example:8080/order.txt
expect "a certificate for another name is not enough" refused
text "" "A name that the resolver knows, but no rule allows:"
show "${run[@]}" curl -sS --max-time 20 http://other.example:8080/order.txt
expect "a name that no rule allows is not resolved" says 'Could not resolve host'
text "" "An address that no rule allows:"
show "${run[@]}" curl -sS --max-time 20 "http://$SERVER:8000/order.txt"
expect "an address that no rule allows is refused at once" says "Couldn't connect|refused"
text "" "What the tap has read:"
show python3 ../demo/read_tap.py wire-8080 "${words[@]}"
expect "there are TLS records on the network" says 'application-data=[1-9]'
expect "... no byte outside a record" says '^bytes-outside-records=0$'
expect "... and none of the words" says '^clear-text-hits=0$'

heading "Replacing the agent during an open connection"
head -c 30000000 /dev/urandom >site/large
start client "${run[@]}" curl -sS --max-time 60 --limit-rate 8M -o got \
    http://orders.example:8080/large
client_pid=$started
control="own/tacit-run-$client_pid/agent.sock"
agent() { tacit "$@" --control "$control"; }
connection_shown() { agent show connections | grep -q ' orders '; }
wait_for client connection_shown
show tacit show connections --control "$control"
expect "show connections has rule, run and program" says 'orders.*curl'
show tacit show runs --control "$control"
expect "show runs has the run, its open connection and its resolved name" \
    says "curl +$client_pid +[^ ]+ +1 .* 1 +- "
show tacit restart --control "$control"
expect "tacit restart starts a successor" succeeded
run_shown() { agent show runs | grep -qE "$1"; }
wait_for client run_shown "curl +$client_pid +[^ ]+ +0 .* 1 +- "
show tacit show runs --control "$control"
expect "the successor has the run and its name; the connection stays with the previous agent" \
    succeeded
status=0
wait "$client_pid" || status=$?
expect "... the transfer under it ends well" succeeded
expect "... and has every byte" cmp -s site/large got

heading "A policy of z/OS, imported"
cat >pagent.policy <<POLICY
TTLSRule ORDERS
{
  RemoteAddr                $SERVER
  RemotePortRange           8080
  Direction                 Outbound
  TTLSGroupActionRef        ON
  TTLSEnvironmentActionRef  CLIENT
}
TTLSGroupAction ON
{
  TTLSEnabled               On
}
TTLSEnvironmentAction CLIENT
{
  HandshakeRole             Client
  TTLSKeyringParms
  {
    Keyring                 *AUTH*/*
  }
}
POLICY
cat >map.toml <<MAP
[keyring."*AUTH*/*"]
ca = "pki/ca.pem"
MAP
show tacit import attls pagent.policy --fail-closed
expect "without a map file the import fails, and names the missing line" \
    says '\[keyring."\*AUTH\*/\*"\]'
show tacit import attls pagent.policy --fail-closed --map map.toml -o imported.toml
expect "with the map file, the import reports changed settings such as versions" says 'allows only TLS 1.2 and later'
expect "... and the server's name" says 'certificate must now contain the name'
show tail -n 8 imported.toml
show tacit run --policy imported.toml -- curl -sS --max-time 20 http://orders.example:8080/order.txt
expect "a program under the imported policy uses TLS" says "$marker"

kill "$server_pid"
status=0
wait "$server_pid" || status=$?
expect "the run ends by the same signal as its program" test "$status" -eq 143
echo "$part" >ended
