# Starts charon in a namespace of its own, and the driver. Run in new namespaces for users, networks and
# mounts. Everything ends with the script.
tries_max=@TRIES@
fail() {
    echo "failed: $*"
    tail -n 40 events charon.log 2>/dev/null
    swan --list-sas 2>/dev/null
    exit 1
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
# ping6: the same for IPv6.
ping6() {
    pongs=$(count pong)
    echo ping6 >&3
    expect pong $((pongs + 1))
}
empty() { until_true established 0; }

unshare -nm sleep 600 &
peer=$!
apart() { [ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
ip link set lo up
ip link add w0 type veth peer name w1 netns "$peer"
ip address add 10.99.0.1/24 dev w0
ip address add fd99::1/64 dev w0 nodad
ip link set w0 up
mkdir swanctl
# certificate NAME GENPKEY_OPTION...: a key, and a certificate of the CA for NAME.example.
certificate() {
    openssl genpkey -out "$1.key" "${@:2}" &&
        openssl req -new -key "$1.key" -subj "/O=Corp/CN=$1.example" -out "$1.csr" &&
        openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -out "$1.pem" \
            -extfile <(echo "subjectAltName = DNS:$1.example") &&
        openssl x509 -in "$1.pem" -outform DER -out "$1.der" &&
        openssl pkcs8 -topk8 -nocrypt -in "$1.key" -outform DER -out "$1.p8" &&
        public "$1"
}
# public NAME: the SubjectPublicKeyInfo of a certificate.
public() { openssl x509 -in "$1.pem" -noout -pubkey | openssl pkey -pubin -outform DER -out "$1.spki"; }
certificates() {
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=ca -days 2 \
        -keyout ca.key -out ca.pem && public ca && certificate gw "$@" && certificate branch "$@" &&
        mkdir swanctl/x509 swanctl/x509ca swanctl/pkcs8 && cp ca.pem swanctl/x509ca &&
        cp gw.pem swanctl/x509 && cp gw.key swanctl/pkcs8
}
key=(@KEY@)
if [ ${#key[@]} -gt 0 ]; then
    certificates "${key[@]}" >openssl.log 2>&1 || fail "openssl: $(cat openssl.log)"
fi
cat >swanctl/swanctl.conf <<END
connections {
    tacit {
        version = 2
        local_addrs = @PEER@
        remote_addrs = @OWN@
        local_port = 4500
        remote_port = 4500
        proposals = @IKE@
        pools = @POOLS@
        @CONNECTION@
        local { auth = @AUTH@
            id = "@GW@" }
        remote { auth = @AUTH_OF_DRIVER@
            id = "@BRANCH@" }
        children {
            net { local_ts = 10.2.0.0/24, fd02::/64
                remote_ts = @REMOTE@
                esp_proposals = @ESP@ }
        }
    }
}
pools {
    inner { addrs = 10.1.0.1/32
        dns = 10.2.0.53 }
    inner6 { addrs = fd01::1/128
        dns = fd02::53 }
}
secrets {
    ike-1 { id-1 = gw.example
        id-2 = branch.example
        secret = "a shared key" }
    eap-1 { id = gw.example
        secret = "a password" }
}
END
cat >strongswan.conf <<END
charon {
    load_modular = no
    @CHARON@
    load = random nonce sha1 sha2 hmac kdf pem pkcs1 pkcs8 x509 revocation constraints pubkey openssl curve25519 chapoly gmp mgf1 kernel-libipsec kernel-netlink socket-default vici updown eap-identity eap-md5
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
    ip address add fd99::2/64 dev w1 nodad
    ip link set w1 up
    ip address add 10.2.0.1/24 dev lo
    ip address add fd02::1/64 dev lo nodad
    exec /usr/lib/ipsec/charon' >charon.out 2>&1 &
until_true test -S vici
swan --load-all >load 2>&1 || fail "$(cat load)"
# driver OWN CONTACT: a driver with this address, which asserts or omits INITIAL_CONTACT.
driver() {
    export IKE_DRIVER=@ROLE@ IKE_INNER=@INNER@ IKE_PROPOSAL=@PROPOSAL@ IKE_OWN=$1 IKE_PEER=@PEER@
    export IKE_LOSS=@LOSS@ IKE_CONTACT=$2 IKE_ID="@GW@"
    exec @DRIVER@ driver --exact --nocapture
}
mkfifo commands
driver @OWN@ assert <commands >events 2>&1 &
exec 3>commands
expect ready 1
if [ @ROLE@ = responder ]; then
    swan --initiate --child net >initiate 2>&1 || fail "$(cat initiate)"
fi
expect active 1 #first
