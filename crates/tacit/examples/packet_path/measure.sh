# Joins two namespaces and measures in rounds. Run in new namespaces for users, networks and mounts.
# Everything ends with the script.
set -u
PATH=$PATH:/usr/sbin:/sbin
directory=$(mktemp -d)
cd "$directory"
processes=()
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
libipsec=()
if [ -e /usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so ]; then
    ip address add 10.11.0.1/24 dev lo
    "${far[@]}" ip address add 10.12.0.1/24 dev lo
    configure a 10.99.0.1 10.99.0.2 10.11.0.0/24 10.12.0.0/24
    configure b 10.99.0.2 10.99.0.1 10.12.0.0/24 10.11.0.0/24
    STRONGSWAN_CONF=$directory/a/strongswan.conf unshare -m sh -c "$charon" >a.out 2>&1 &
    libipsec+=($!)
    STRONGSWAN_CONF=$directory/b/strongswan.conf "${far[@]}" unshare -m sh -c "$charon" >b.out 2>&1 &
    libipsec+=($!)
    processes+=("${libipsec[@]}")
    for name in a b; do
        until_true test -S $name/vici
        swan $name --load-all >$name.load.out 2>&1 || fail "charon $name"
    done
    swan a --initiate --child net >initiate.out 2>&1 || fail "no tunnel of charon"
else
    echo "skipped: kernel-libipsec is not installed"
fi

# cpu PROCESS...: prints the CPU time of all in hundredths of a second.
cpu() {
    local total=0 process
    for process in "$@"; do
        total=$((total + $(awk '{ print $14 + $15 }' "/proc/$process/stat")))
    done
    echo $total
}
# candidate NAME ADDRESS PROCESS...: measures; the processes are the data path.
candidate() {
    local name=$1 address=$2 before after requests single
    shift 2
    before="$(cpu "$server") $(cpu "$@")"
    stream=$("$PROGRAM" stream "$address") || fail "stream of $name"
    after="$(cpu "$server") $(cpu "$@")"
    requests=$("$PROGRAM" requests "$address" 10) || fail "requests of $name"
    last="$(cpu "$server") $(cpu "$@")"
    single=$("$PROGRAM" requests "$address" 1) || fail "requests of $name"
    echo "$name $stream $before $after $requests $last $single" | awk '{
        stream_cpu = $4 + ($7 + $8 - $5 - $6) / 100
        request_cpu = $11 + ($13 + $14 - $7 - $8) / 100
        printf "%-9s %6.2f Gbit/s %6.2f cpu-s/GB | 10 sessions %6d tx/s %5d us %6.1f us-cpu/tx | 1 session %6d tx/s %4d us\n",
            $1, $2 * 8 / $3 / 1e9, stream_cpu / $2 * 1e9, $9 / $10, $12, request_cpu / $9 * 1e6, $15 / $16, $18
    }'
}
for round in $(seq "$ROUNDS"); do
    echo "round $round, load $(cut -d' ' -f1 /proc/loadavg)"
    candidate plain 10.99.0.2
    candidate tacit 10.2.0.1 "$near_end" "$far_end"
    [ ${#libipsec[@]} = 0 ] || candidate libipsec 10.12.0.1 "${libipsec[@]}"
done
