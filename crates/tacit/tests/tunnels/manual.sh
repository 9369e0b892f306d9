# The hosts of hosts.sh, with manual SAs: each has a policy and keys.
policies=near
# served: web servers under `tacit run` at the peer, on the inner addresses.
served() {
    behind $USER_OF_RUNS timeout 140 ./tacit run --policy far/run.toml -- \
        python3 -u -m http.server --directory web --bind :: 8080 >served.out 2>far.log & far=$!
    until_true grep -qs Serving served.out
}
# unserved: the end of that run, when its port is free.
unserved() {
    kill $(tree $far) 2>/dev/null
    wait $far 2>/dev/null
    rm served.out
    free() { [ -z "$(behind ss -Hlun 'sport = 4500')" ]; }
    until_true free
}
random() { head -c "$1" /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }
# keys NAME: new keys for packets to and from the peer.
keys() {
    local way
    for way in there back; do
        printf '# %s\n%s\n%s\n' "$way" "$(random @KEY@)" "$(random @HMAC@)" >$way
    done
    (umask 077; cat there >near/out.keys; cat back >near/in.keys
        cat there >far/in.keys; cat back >far/out.keys)
    [ -z "$OWNER_OF_RUNS" ] || chown -R "$OWNER_OF_RUNS" near far
}
# row FILE SOURCE DESTINATION SPI: a row of tshark's table with the keys of one direction.
row() {
    local key
    key=($(grep -v '^#' "$1"))
    printf 'uat:esp_sa:"IPv4","%s","%s","%s","AES-CBC [RFC3602]","0x%s","HMAC-SHA-@BITS@ [RFC4868]","0x%s"\n' \
        "$2" "$3" "$4" "${key[0]}" "${key[1]}"
}

behind ip -6 route add default via 2001:db8:99::1
mkdir web near far
echo "from behind" >web/index.html
head -c 30000000 /dev/urandom >web/big
chmod -R a+rX web
cat >near/run.toml <<END
version = 1
[sa.far]
peer = "10.99.0.2"
encryption = "@ENCRYPTION@"
integrity = "@INTEGRITY@"
spi-in = 0x1001
spi-out = 0x1002
keys-in = "in.keys"
keys-out = "out.keys"
inner = ["10.1.0.1", "fd01::1"]
[[rule]]
name = "web"
direction = "outbound"
remote = ["10.2.0.0/24", "fd00:2::/64"]
remote-ports = 8080
ipsec = { sa = "far" }
[[rule]]
name = "echo"
direction = "outbound"
protocol = "udp"
remote = "10.2.0.0/24"
remote-ports = 5000
ipsec = { sa = "far" }
[[rule]]
name = "ping"
direction = "outbound"
protocol = "icmp"
remote = "10.2.0.0/24"
ipsec = { sa = "far" }
END
cat >far/run.toml <<END
version = 1
[sa.near]
peer = "10.99.0.1"
encryption = "@ENCRYPTION@"
integrity = "@INTEGRITY@"
spi-in = 0x1002
spi-out = 0x1001
keys-in = "in.keys"
keys-out = "out.keys"
inner = ["10.2.0.1", "fd00:2::1"]
[[rule]]
name = "served"
direction = "inbound"
remote = ["10.1.0.0/24", "fd01::/64"]
local-ports = 8080
ipsec = { sa = "near" }
END
keys
start python3 "$PEERS/wire.py" w0 wire; wire=$!
until_true [ -e wire.ready ]
