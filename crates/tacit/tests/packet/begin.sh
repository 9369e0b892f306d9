# Starts a worker in each of two namespaces, which a pair of interfaces joins. Run in new namespaces for
# users and networks. Everything ends with the script.
set -u
PATH=$PATH:/usr/sbin:/sbin
directory=$(mktemp -d)
cd "$directory"
processes=()
# tree PID: the processes below it.
tree() { local child; for child in $(pgrep -P "$1"); do tree "$child"; echo "$child"; done; }
end() {
    kill -KILL $(tree $$) 2>/dev/null
    wait 2>/dev/null
    rm -r "$directory"
}
trap end EXIT
trap 'exit 124' TERM
fail() {
    echo "failed: $*"
    tail -n 40 near.out far.out server.out client.out proxy.out 2>/dev/null
    exit 1
}
# until_true COMMAND...: waits until it succeeds.
until_true() {
    local tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 400 ] || fail "not true: $*"
        sleep 0.05
    done
}
far() { nsenter -t "$peer" -n "$@"; }
ready() { grep -q '^ready' "$1.out"; }
# statistics END: prints the counters of a worker.
statistics() {
    local before
    before=$(grep -c '^PacketStatistics' "$1.out")
    echo >"$1.in"
    until_true more "$1" "$before"
    grep '^PacketStatistics' "$1.out" | tail -n 1
}
more() { [ "$(grep -c '^PacketStatistics' "$1.out")" -gt "$2" ]; }

unshare -n sleep 600 &
peer=$!
processes+=("$peer")
apart() { [ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
ip link set lo up
far ip link set lo up
ip link add w0 type veth peer name w1 netns "$peer"
ip address add 10.99.0.1/24 dev w0
ip address add fd99::1/64 dev w0 nodad
ip link set w0 up
far ip address add 10.99.0.2/24 dev w1
far ip address add fd99::2/64 dev w1 nodad
far ip link set w1 up
cat >tap.py <<'PYTHON'
@TAP@
PYTHON
cat >talk.py <<'PYTHON'
@TALK@
PYTHON
cat >proxy.py <<'PYTHON'
@PROXY@
PYTHON
python3 tap.py w0 wire.pcap >tap.out 2>&1 &
tap=$!
processes+=("$tap")
until_true grep -q ready tap.out
mkfifo near.in far.in
exec 5<>near.in 6<>far.in
export PACKET_CIPHER=@CIPHER@
PACKET_DRIVER=near PACKET_LOCAL="10.99.0.1:4500 [fd99::1]:4500" PACKET_PEER=@FAR@ \
    @DRIVER@ bulk::driver --exact --nocapture <near.in >near.out 2>&1 &
processes+=($!)
PACKET_DRIVER=far PACKET_LOCAL="10.99.0.2:4500 [fd99::2]:4500" PACKET_PEER=@NEAR@ \
    nsenter -t "$peer" -n @DRIVER@ bulk::driver --exact --nocapture <far.in >far.out 2>&1 &
processes+=($!)
until_true ready near
until_true ready far
nsenter -t "$peer" -n python3 talk.py serve >server.out 2>&1 &
processes+=($!)
until_true grep -q ready server.out
