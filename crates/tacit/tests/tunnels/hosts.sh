# Two hosts: this namespace (10.99.0.1), and a peer (10.99.0.2), to which all packets in clear are routed. Run in new
# namespaces for network and mounts.
set -u
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C
start() { "$@" & }
trap end_processes EXIT
tries_max=300
fail() {
    echo "failed: $*"
    tail -n 30 *.log 2>/dev/null
    exit 1
}
ordinary() {
    local how=()
    [ "$1" != exec ] || { how=(exec); shift; }
    "${how[@]}" $USER_OF_RUNS "$@"
}
behind() { nsenter -t $peer -n "$@"; }
# clear: the kinds of packets that this host has sent besides UDP 4500. When the tunnel of a run has
# ended, the kernel of a server repeats its last segments in clear.
clear() {
    sleep 0.3
    kill $wire
    until_true [ -e wire ]
    sed -n 's/^sent \(.*\) [0-9]*$/\1/p' wire | grep -v '^udp-4500' || echo "only UDP 4500"
}
# run CMD: a program under the policy of this host, which is in the directory `policies`.
run() { ordinary timeout 60 ./tacit run --policy $policies/run.toml -- "$@" 2>>run.log; }
# started CMD: the same in the background; `launcher` is its launcher.
started() {
    ordinary exec ./tacit run --policy $policies/run.toml -- "$@" 2>>run.log & launcher=$!
}
# An agent that serves runs, and can be told to reload.
agent() {
    ordinary exec ./tacit agent --policy $policies/run.toml --control scratch/control \
        --enrol scratch/enrol --audit scratch/audit 2>agent.log &
    until_true [ -e scratch/enrol ]
}
control() { ordinary ./tacit "$@" --control scratch/control; }
enrolled() { ordinary timeout 140 ./tacit run --agent scratch/enrol -- "$@" 2>>run.log; }

# Every user may open TUN devices, as on most systems. An ordinary user cannot change that.
mount -t tmpfs t /dev/net 2>/dev/null && mknod -m 666 /dev/net/tun c 10 200
[ -w /dev/net/tun ] || fail "/dev/net/tun is missing or not writable"
ip link set lo up
unshare -n sleep 600 & peer=$!
apart() { [ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
ip link add w0 type veth peer name w1 netns "$peer"
ip address add 10.99.0.1/24 dev w0
ip -6 address add 2001:db8:99::1/64 dev w0 nodad
ip link set w0 up
behind ip link set lo up
behind ip address add 10.99.0.2/24 dev w1
behind ip -6 address add 2001:db8:99::2/64 dev w1 nodad
behind ip link set w1 up
ip route add default via 10.99.0.2
ip -6 route add default via 2001:db8:99::2
# The way back of packets in clear.
behind ip route add default via 10.99.0.1
install -m 666 /dev/null scratch/said
