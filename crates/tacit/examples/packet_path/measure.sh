# Joins two namespaces, starts all candidates and measures. Run in new namespaces for users, networks and mounts.
# Everything ends with the script.
set -u
PATH=$PATH:/usr/sbin:/sbin
directory=$(mktemp -d)
cd "$directory"
processes=()
# The candidates as NAME=ADDRESS=PROCESS,PROCESS.
candidates=(plain=10.99.0.2=)
end() {
    kill "${processes[@]}" 2>/dev/null
    wait 2>/dev/null
    rm -r "$directory"
}
trap end EXIT
fail() {
    echo "failed: $*"
    tail -n 20 ./*.out
    exit 1
}
# until_true COMMAND...: waits until it succeeds.
until_true() {
    local tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "not true: $*"
        sleep 0.05
    done
}
unshare -n sleep 3600 &
peer=$!
processes+=("$peer")
apart() { [ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
far=(nsenter -t "$peer" -n)
# One congestion control at both ends of every candidate: the first of CONGESTION that the host allows.
control=/proc/sys/net/ipv4/tcp_congestion_control
for name in $CONGESTION; do
    # The path leads to the namespace of the process that opens it.
    (echo "$name" >$control && "${far[@]}" sh -c "echo $name >$control") 2>/dev/null && break
done
[[ " $CONGESTION " == *" $(cat $control) "* ]] || fail "the host does not allow $CONGESTION"
echo "congestion control: $(cat $control)"
ip link set lo up
"${far[@]}" ip link set lo up
ip link add w0 type veth peer name w1 netns "$peer"
ip address add 10.99.0.1/24 dev w0
ip link set w0 up
"${far[@]}" ip address add 10.99.0.2/24 dev w1
"${far[@]}" ip link set w1 up

# The packet path, with a port of its own.
mkfifo near.in far.in
exec 5<>near.in 6<>far.in
PACKET_DRIVER=near PACKET_LOCAL=10.99.0.1:4501 PACKET_PEER=10.99.0.2:4501 \
    "$PROGRAM" <near.in >near.out 2>&1 &
near_end=$!
PACKET_DRIVER=far PACKET_LOCAL=10.99.0.2:4501 PACKET_PEER=10.99.0.1:4501 \
    "${far[@]}" "$PROGRAM" <far.in >far.out 2>&1 &
far_end=$!
processes+=("$near_end" "$far_end")
candidates+=("tacit=10.2.0.1=$near_end,$far_end")
until_true grep -q ready near.out
until_true grep -q ready far.out
"${far[@]}" "$PROGRAM" serve >server.out 2>&1 &
server=$!
processes+=("$server")
until_true grep -q ready server.out

# configure NAME LOCAL REMOTE LOCAL-NETWORK REMOTE-NETWORK: writes the files of one charon.
configure() {
    mkdir -p "$1/swanctl"
    cat >"$1/swanctl/swanctl.conf" <<EOF
connections { net { version = 2
    local_addrs = $2
    remote_addrs = $3
    proposals = aes256gcm16-prfsha384-ecp256
    local { auth = psk }
    remote { auth = psk }
    children { net { local_ts = $4
            remote_ts = $5
            esp_proposals = aes256gcm16 } } } }
secrets { ike-1 { secret = "a shared key" } }
EOF
    cat >"$1/strongswan.conf" <<EOF
charon { load_modular = no
    load = random nonce sha1 sha2 hmac kdf openssl kernel-libipsec kernel-netlink socket-default vici updown
    plugins { vici { socket = unix://$directory/$1/vici } } }
EOF
}
swan() { SWANCTL_DIR=$directory/$1/swanctl swanctl "$2" --uri "unix://$directory/$1/vici" "${@:3}"; }
charon='mount -t tmpfs t /run; exec /usr/lib/ipsec/charon'
if [ -e /usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so ]; then
    ip address add 10.11.0.1/24 dev lo
    "${far[@]}" ip address add 10.12.0.1/24 dev lo
    configure a 10.99.0.1 10.99.0.2 10.11.0.0/24 10.12.0.0/24
    configure b 10.99.0.2 10.99.0.1 10.12.0.0/24 10.11.0.0/24
    STRONGSWAN_CONF=$directory/a/strongswan.conf unshare -m sh -c "$charon" >a.out 2>&1 &
    near_end=$!
    STRONGSWAN_CONF=$directory/b/strongswan.conf "${far[@]}" unshare -m sh -c "$charon" >b.out 2>&1 &
    far_end=$!
    processes+=("$near_end" "$far_end")
    candidates+=("libipsec=10.12.0.1=$near_end,$far_end")
    for name in a b; do
        until_true test -S $name/vici
        swan $name --load-all >$name.load.out 2>&1 || fail "charon $name"
    done
    swan a --initiate --child net >initiate.out 2>&1 || fail "no tunnel of charon"
else
    echo "skipped: kernel-libipsec is not installed"
fi

# WireGuard: wireguard-go and GotaTun have the same configuration protocol, at sockets below /run.
mount -t tmpfs t /run
mkdir -p /run/wireguard
key() { openssl genpkey -algorithm X25519 -outform DER -out "$1.der" 2>openssl.out || fail openssl; }
private() { tail -c 32 "$1.der" | od -An -v -tx1 | tr -d ' \n'; }
public() { openssl pkey -in "$1.der" -inform DER -pubout -outform DER | tail -c 32 | od -An -v -tx1 | tr -d ' \n'; }
key near
key far
# wireguard INTERFACE OWN PEER NEAR-PORT FAR-ENDPOINT NETWORK: gives an interface its keys and its peer.
wireguard() {
    python3 - "/run/wireguard/$1.sock" <<EOF || fail "configuration of $1"
import socket, sys
control = socket.socket(socket.AF_UNIX)
control.connect(sys.argv[1])
control.sendall(b"""set=1
private_key=$(private "$2")
listen_port=$4
replace_peers=true
public_key=$(public "$3")
endpoint=$5
replace_allowed_ips=true
allowed_ip=$6

""")
answer = control.recv(1000)
assert answer.startswith(b"errno=0"), answer
EOF
}
# tunnel NAME PROGRAM NUMBER: starts both ends, with addresses 10.NUMBER1.0.1 and 10.NUMBER2.0.1.
tunnel() {
    local name=$1 program=$2 number=$3 near_end far_end
    if [ ! -x "$program" ]; then
        echo "skipped: $name is not installed (scripts/install-bench.sh)" >&2
        return
    fi
    "$program" -f "n$number" >"$name.near.out" 2>&1 &
    near_end=$!
    "${far[@]}" "$program" -f "f$number" >"$name.far.out" 2>&1 &
    far_end=$!
    processes+=("$near_end" "$far_end")
    until_true test -S "/run/wireguard/n$number.sock"
    until_true test -S "/run/wireguard/f$number.sock"
    wireguard "n$number" near far "51$number" "10.99.0.2:51$number" "10.${number}2.0.0/24"
    wireguard "f$number" far near "51$number" "10.99.0.1:51$number" "10.${number}1.0.0/24"
    ip link set "n$number" up mtu 1420
    ip address add "10.${number}1.0.1/24" dev "n$number"
    ip route add "10.${number}2.0.0/24" dev "n$number"
    "${far[@]}" ip link set "f$number" up mtu 1420
    "${far[@]}" ip address add "10.${number}2.0.1/24" dev "f$number"
    "${far[@]}" ip route add "10.${number}1.0.0/24" dev "f$number"
    candidates+=("$name=10.${number}2.0.1=$near_end,$far_end")
}
export WG_PROCESS_FOREGROUND=1 WG_SUDO=1 WG_LOG_LEVEL=error
tunnel wireguard-go "$TOOLS/wireguard" 2
tunnel gotatun "$TOOLS/gotatun" 3
for candidate in "${candidates[@]}"; do
    address=${candidate#*=}
    address=${address%%=*}
    until_true timeout 5 bash -c "exec 3<>/dev/tcp/$address/9301" 2>/dev/null
done
"$PROGRAM" measure "$ROUNDS" "$server" "${candidates[@]}" || fail measure
