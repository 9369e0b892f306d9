# Starts charon at the peer of hosts.sh, with a network behind it. Without a tunnel, packets to that network are routed
# there in clear.
policies=private
swan() { SWANCTL_DIR=$PWD/swanctl swanctl "$1" --uri "unix://$PWD/vici" "${@:2}"; }
installed() { [ "$(swan --list-sas | grep -c ', INSTALLED')" = "$1" ]; }
# process NAME: a process of that run.
process() {
    local pid
    for pid in $(pgrep -P $launcher) $(pgrep -P $(pgrep -d , -P $launcher)); do
        [ "$(cat /proc/$pid/comm)" != "$1" ] || echo $pid
    done 2>/dev/null
}
said() { grep -q "$1" said 2>/dev/null; }

behind ip address add 10.2.0.1/24 dev lo
behind ip -6 address add fd00:2::1/64 dev lo nodad
mkdir swanctl web
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
start nsenter -t $peer -n python3 "$PEERS/datagrams.py" serve 10.2.0.1 5000 >/dev/null
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
