# Starts charon in a namespace of its own, and the driver. Run in new namespaces for users, networks and
# mounts. Everything ends with the script.
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
    tail -n 40 events charon.log 2>/dev/null
    swan --list-sas 2>/dev/null
    exit 1
}
count() { grep -c "^$1" events; }
# expect EVENT COUNT: waits until the driver has printed the event so often.
expect() {
    local tries=0
    until [ "$(count "$1")" -ge "$2" ]; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || fail "no event $1 ($2)"
        sleep 0.05
    done
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
swan() { SWANCTL_DIR=$directory/swanctl swanctl "${1}" --uri "unix://$directory/vici" "${@:2}"; }
established() { [ "$(swan --list-sas | grep -c ', ESTABLISHED')" = "$1" ]; }
installed() { [ "$(swan --list-sas | grep -c ', INSTALLED')" = "$1" ]; }
# one: charon has one IKE SA and one child SA, of those that the driver knows.
one() {
    until_true established 1
    until_true installed 1
    until_true one_of_driver
}
one_of_driver() {
    [ "$(($(count installed) - $(count removed)))" = 1 ] &&
        swan --list-sas | grep -q "out *$(grep '^active' events | tail -n 1 | cut -d' ' -f2)"
}
# ping: an echo request through the tunnel is answered.
ping() {
    pongs=$(count pong)
    echo ping >&3
    expect pong $((pongs + 1))
}
empty() { until_true established 0; }

unshare -nm sleep 600 &
peer=$!
processes+=("$peer")
apart() { [ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
ip link set lo up
ip link add w0 type veth peer name w1 netns "$peer"
ip address add 10.99.0.1/24 dev w0
ip link set w0 up
mkdir swanctl
cat >swanctl/swanctl.conf <<END
connections {
    tacit {
        version = 2
        local_addrs = 10.99.0.2
        remote_addrs = 10.99.0.1
        local_port = 4500
        remote_port = 4500
        proposals = @IKE@
        pools = @POOLS@
        local { auth = psk
            id = gw.example }
        remote { auth = psk
            id = branch.example }
        children {
            net { local_ts = 10.2.0.0/24
                remote_ts = @REMOTE@
                esp_proposals = @ESP@ }
        }
    }
}
pools {
    inner { addrs = 10.1.0.1/32
        dns = 10.2.0.53 }
}
secrets {
    ike-1 { id-1 = gw.example
        id-2 = branch.example
        secret = "a shared key" }
}
END
cat >strongswan.conf <<END
charon {
    load_modular = no
    load = random nonce sha1 sha2 hmac kdf pem pkcs1 pkcs8 x509 revocation constraints pubkey openssl curve25519 chapoly gmp mgf1 kernel-libipsec kernel-netlink socket-default vici updown
    plugins { vici { socket = unix://$directory/vici } }
    filelog { log { path = $directory/charon.log
            flush_line = yes
            default = 1
            ike = 2 } }
}
END
STRONGSWAN_CONF=$directory/strongswan.conf nsenter -t "$peer" -n -m sh -c '
    mount -t tmpfs t /run
    ip link set lo up
    ip address add 10.99.0.2/24 dev w1
    ip link set w1 up
    ip address add 10.2.0.1/24 dev lo
    exec /usr/lib/ipsec/charon' >charon.out 2>&1 &
processes+=($!)
until_true test -S vici
swan --load-all >load 2>&1 || fail "$(cat load)"
mkfifo commands
IKE_DRIVER=@ROLE@ IKE_INNER=@INNER@ IKE_PROPOSAL=@PROPOSAL@ @DRIVER@ driver --exact --nocapture <commands >events 2>&1 &
processes+=($!)
exec 3>commands
expect ready 1
if [ @ROLE@ = responder ]; then
    swan --initiate --child net >initiate 2>&1 || fail "$(cat initiate)"
fi
expect active 1 #first
