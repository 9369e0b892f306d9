# Starts pluto in a namespace of its own, and the driver. Run in new namespaces for users, networks and
# mounts. Everything ends with the script.
tries_max=600
fail() {
    echo "failed: $*"
    grep -v '|' pluto.log | tail -n 40
    tail -n 40 events
    exit 1
}
libexec=@ROOT@/usr/libexec/ipsec
export LD_LIBRARY_PATH
LD_LIBRARY_PATH=$(echo @ROOT@/usr/lib/*-linux-gnu)
whack() { "$libexec/whack" --ctlsocket "$directory/pluto.ctl" "$@"; }
# ike_sas COUNT: pluto has so many established IKE SAs.
ike_sas() { whack --status 2>/dev/null | grep -q "IKE SAs: total($1)"; }
# one: pluto has one IKE SA.
one() { until_true ike_sas 1; }

unshare -nm sleep 600 &
peer=$!
apart() { [ "$(readlink "/proc/$peer/ns/net")" != "$(readlink /proc/$$/ns/net)" ]; }
until_true apart
ip link set lo up
ip link add w0 type veth peer name w1 netns "$peer"
ip address add 10.99.0.1/24 dev w0
ip link set w0 up
mkdir nss
@ROOT@/usr/bin/certutil -N -d "sql:$directory/nss" --empty-password || fail certutil
cat >ipsec.conf <<END
config setup
    protostack=xfrm
    nssdir=$directory/nss
    dumpdir=$directory
    plutodebug=base
conn tacit
    left=10.99.0.2
    leftid=@gw.example
    leftsubnet=10.2.0.0/24
    leftikeport=4500
    right=10.99.0.1
    rightid=@branch.example
    rightsubnet=10.1.0.1/32
    rightikeport=4500
    authby=secret
    ikev2=insist
    narrowing=yes
    encapsulation=yes
    ike=aes_gcm256-sha2_384;dh19
    esp=aes_gcm256;dh19
    auto=add
END
(umask 077; echo '@gw.example @branch.example : PSK "a shared key"' >ipsec.secrets)
# pluto starts programs by their paths in the system.
nsenter -t "$peer" -n -m --wd="$directory" sh -c '
    mount -t tmpfs t /run
    mount --bind @ROOT@/usr/libexec /usr/libexec
    ip link set lo up
    ip address add 10.99.0.2/24 dev w1
    ip link set w1 up
    ip address add 10.2.0.1/24 dev lo
    exec /usr/libexec/ipsec/pluto --nofork --stderrlog --no-dnssec --config ipsec.conf \
        --secretsfile ipsec.secrets --nssdir nss --rundir . --ipsecdir .' >pluto.log 2>&1 &
until_true test -S pluto.ctl
loaded() { whack --status 2>/dev/null | grep -q 'loaded 1'; }
until_true loaded
export IKE_DRIVER=@ROLE@ IKE_INNER=static IKE_PROPOSAL=gcm IKE_OWN=10.99.0.1 IKE_PEER=10.99.0.2
export IKE_LOSS=0 IKE_CONTACT=assert IKE_LIVENESS=1 IKE_ID=gw.example
mkfifo commands
env -u LD_LIBRARY_PATH @DRIVER@ driver --exact --nocapture <commands >events 2>&1 &
exec 3>commands
expect ready 1
