# Starts charon in a namespace of its own, with a network behind it. Run in new namespaces for network
# and mounts. Without a tunnel, packets to that network are routed there in clear.
set -u
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C
start() { "$@" & }
trap end_processes EXIT
tries_max=300
fail() {
    echo "failed: $*"
    tail -n 30 run.log agent.log charon.log 2>/dev/null
    exit 1
}
swan() { SWANCTL_DIR=$PWD/swanctl swanctl "$1" --uri "unix://$PWD/vici" "${@:2}"; }
installed() { [ "$(swan --list-sas | grep -c ', INSTALLED')" = "$1" ]; }
ordinary() {
    local how=()
    [ "$1" != exec ] || { how=(exec); shift; }
    "${how[@]}" $USER_OF_RUNS "$@"
}
run() { ordinary timeout 60 ./tacit run --policy private/run.toml -- "$@" 2>>run.log; }
# started CMD: the same in the background; `launcher` is its launcher.
started() {
    ordinary exec ./tacit run --policy private/run.toml -- "$@" 2>>run.log & launcher=$!
}
# process NAME: a process of that run.
process() {
    local pid
    for pid in $(pgrep -P $launcher) $(pgrep -P $(pgrep -d , -P $launcher)); do
        [ "$(cat /proc/$pid/comm)" != "$1" ] || echo $pid
    done 2>/dev/null
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
said() { grep -q "$1" said 2>/dev/null; }
# An agent that serves runs, and can be told to reload.
agent() {
    ordinary exec ./tacit agent --policy private/run.toml --control scratch/control \
        --enrol scratch/enrol 2>agent.log &
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
behind ip address add 10.2.0.1/24 dev lo
behind ip -6 address add fd00:2::1/64 dev lo nodad
ip route add default via 10.99.0.2
ip -6 route add default via 2001:db8:99::2
# The way back of packets in clear.
behind ip route add default via 10.99.0.1
mkdir swanctl web
install -m 666 /dev/null scratch/said
cat >swanctl/swanctl.conf <<END
connections {
    tacit {
        version = 2
        local_addrs = 10.99.0.2
        remote_addrs = 10.99.0.1
        local_port = 4500
        remote_port = 4500
        proposals = aes256gcm16-prfsha384-x25519
        pools = @POOLS@
        local { auth = psk
            id = gw.example }
        remote { auth = psk
            id = branch.example }
        children {
            net { local_ts = 10.2.0.0/24,fd00:2::/64
                remote_ts = @REMOTE@
                esp_proposals = aes256gcm16-x25519 }
        }
    }
}
pools {
    inner { addrs = 10.1.0.1/32 }
}
secrets {
    ike-1 { id-1 = gw.example
        id-2 = branch.example
        secret = "a shared key of both sides" }
}
END
cat >strongswan.conf <<END
charon {
    load_modular = no
    load = random nonce sha1 sha2 hmac kdf pem pkcs1 pkcs8 x509 revocation constraints pubkey openssl curve25519 chapoly gmp mgf1 kernel-libipsec kernel-netlink socket-default vici updown
    plugins { vici { socket = unix://$PWD/vici } }
    filelog { log { path = $PWD/charon.log
            flush_line = yes
            default = 1 } }
}
END
charon() {
    rm -f vici
    STRONGSWAN_CONF=$PWD/strongswan.conf nsenter -t "$peer" -n unshare -m sh -c '
        mount -t tmpfs t /run
        exec /usr/lib/ipsec/charon' >charon.out 2>&1 & charon=$!
    until_true test -S vici
    swan --load-all >load 2>&1 || fail "$(cat load)"
}
charon
echo "from behind" >web/index.html
head -c 30000000 /dev/urandom >web/big
start nsenter -t $peer -n python3 -m http.server --directory web --bind 10.2.0.1 80 >/dev/null 2>&1
start nsenter -t $peer -n python3 -m http.server --directory web --bind fd00:2::1 80 >/dev/null 2>&1
start nsenter -t $peer -n python3 -m http.server --directory web --bind 10.2.0.1 9007 >/dev/null 2>&1
start nsenter -t $peer -n python3 "$PEERS/datagrams.py" serve 10.2.0.1 5000
listens() { behind ss -Hltun "sport = $1" | grep -q .; }
for port in 80 9007 5000; do until_true listens $port; done
(umask 077; mkdir private; echo "a shared key of both sides" >private/psk)
cat >private/run.toml <<END
version = 1
[ike.branch]
peer = "10.99.0.2"
psk-file = "psk"
local-id = "branch.example"
remote-id = "gw.example"
inner = @INNER@
@RULES@
END
[ -z "$OWNER_OF_RUNS" ] || chown -R "$OWNER_OF_RUNS" private
start python3 "$PEERS/wire.py" w0 wire; wire=$!
until_true [ -e wire.ready ]
