# Starts a worker in each of two namespaces, which a pair of interfaces joins. Run in new namespaces for
# users and networks. Everything ends with the script.
set -u
PATH=$PATH:/usr/sbin:/sbin
directory=$(mktemp -d)
cd "$directory"
end() {
    end_processes
    rm -r "$directory"
}
trap end EXIT
tries_max=400
fail() {
    echo "failed: $*"
    tail -n 40 near.out far.out server.out client.out proxy.out 2>/dev/null
    exit 1
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
until_true grep -q ready tap.out
mkfifo near.in far.in
exec 5<>near.in 6<>far.in
export PACKET_CIPHER=@CIPHER@
PACKET_DRIVER=near PACKET_LOCAL="10.99.0.1:4500 [fd99::1]:4500" PACKET_PEER=@FAR@ \
    @DRIVER@ bulk::driver --exact --nocapture <near.in >near.out 2>&1 &
PACKET_DRIVER=far PACKET_LOCAL="10.99.0.2:4500 [fd99::2]:4500" PACKET_PEER=@NEAR@ \
    nsenter -t "$peer" -n @DRIVER@ bulk::driver --exact --nocapture <far.in >far.out 2>&1 &
until_true ready near
until_true ready far
nsenter -t "$peer" -n python3 talk.py serve >server.out 2>&1 &
until_true grep -q ready server.out
