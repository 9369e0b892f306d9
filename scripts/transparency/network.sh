#!/usr/bin/env bash
# Runs a suite in a private network: network.sh MODE COMMAND...
#
# MODE is `native`, the name of a policy in this folder for `tacit run`, or the transport of a link:
# `link-unix`, `link-tcp` or `link-machine`. The caller makes the namespaces (unshare -rnm); the command
# runs in them as an ordinary user without capabilities. Through a link, it runs on another host, a
# namespace whose only cable leads to this one.
#
#   10.9.8.7 (clear.example)    the servers of servers.py
#   10.9.8.6, 2001:db8::7       refuse connections
#   2001:db8:1::1 and all others: a neighbour drops all packets
set -euo pipefail
way=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
peers=$here/../../crates/tacit/tests/peers

work=$(mktemp -d)
chmod 755 "$work"
cd "$work"
background=()
finish() {
    kill "${background[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

# await REASON FILE...: waits until the files exist; otherwise ends with the reason.
await() {
    local reason=$1 attempt file
    shift
    for file; do
        for attempt in $(seq 500); do
            [ -e "$file" ] && break
            [ "$attempt" -lt 500 ] || { echo "network.sh: $reason" >&2; exit 2; }
            sleep 0.02
        done
    done
}

echo "nameserver 127.0.0.1" >resolv.conf
echo "hosts: files dns" >nsswitch.conf
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost\n' >hosts
cp /etc/passwd passwd
echo "tester:x:54321:54321::$work/home:/bin/sh" >>passwd
mkdir home tmp
for file in resolv.conf nsswitch.conf hosts passwd; do
    target=/etc/$file
    [ -e "$target" ] || continue
    mount --bind "$file" "$(readlink -f "$target")"
done

ip link set lo up
ip route add local 10.9.8.6/32 dev lo
ip route add local 10.9.8.7/32 dev lo
ip link add v0 type veth peer name v1
ip link set v0 up
ip link set v1 up
ip addr add 192.168.77.1/24 dev v0
ip neigh add 192.168.77.2 lladdr 02:00:00:00:00:02 dev v0
ip route add default via 192.168.77.2
ip -6 route add local 2001:db8::7/128 dev lo
ip -6 addr add 2001:db8:77::1/64 dev v0 nodad
ip -6 neigh add 2001:db8:77::2 lladdr 02:00:00:00:00:02 dev v0
ip -6 route add default via 2001:db8:77::2

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:${GO_DIRECTORY:-/usr/bin}
export PATH HOME=$work/home TMPDIR=$work/tmp LC_ALL=C.UTF-8
/usr/bin/python3 "$peers/resolver.py" 53 clear.example 10.9.8.7 \
    dual.example 10.9.8.7 dual.example 2001:db8::7 \
    two.example 10.9.8.6 two.example 10.9.8.7 \
    hole.example 10.9.8.7 hole.example 2001:db8:1::1 &
background+=($!)
/usr/bin/python3 "$here/servers.py" &
background+=($!)
await "the servers did not start" resolver.ready servers.ready

# Starts the servers of a link. The command then begins with `$near_host` and `$run`.
begin_link() {
    local transport=$1 near user across back at
    unshare -n sleep infinity & near=$!
    # One user namespace for all, as servers of links accept only runs of their own user.
    "${ordinary[@]}" sleep infinity & user=$!
    background+=("$near" "$user")
    until [ "$(cat /proc/$near/comm)" = sleep ] && [ "$(cat /proc/$user/comm)" = sleep ]; do
        sleep 0.01
    done
    ordinary=(nsenter --user --preserve-credentials --target "$user")
    near_host=(nsenter --net --target "$near")
    ip link add far0 type veth peer name near0 netns "$near"
    ip addr add 192.168.78.1/24 dev far0
    ip link set far0 up
    "${near_host[@]}" ip link set lo up
    "${near_host[@]}" ip addr add 192.168.78.2/24 dev near0
    "${near_host[@]}" ip link set near0 up
    "${ordinary[@]}" "$TACIT" ca init --dir pki >/dev/null
    "${ordinary[@]}" "$TACIT" ca issue --dir pki 192.168.78.1 >/dev/null
    "${ordinary[@]}" "$TACIT" ca issue --dir pki guest --client >/dev/null
    case $transport in
    unix | machine) across="listen = \"$work/far.sock\"" back="connect = \"unix:$work/far.sock\"" ;;
    tcp)
        across='listen = "192.168.78.1:7443"
tls = { identity = "far", trust = "other", client-cert = "required" }'
        back='connect = "192.168.78.1:7443"
tls = { identity = "near", trust = "other" }'
        ;;
    *) echo "network.sh: unknown transport $transport" >&2; exit 2 ;;
    esac
    cat >far.toml <<END
version = 1
[identity.far]
cert = "pki/192.168.78.1.pem"
key = "pki/192.168.78.1.key"
[trust.other]
ca = "pki/ca.pem"
[link.far]
$across
$(for protocol in tcp udp; do
    printf '[[rule]]\nname = "%s"\nlink = "far"\ndirection = "outbound"\n' $protocol
    printf 'protocol = "%s"\nremote = ["0.0.0.0/0", "::/0"]\npermit = true\n' $protocol
done)
END
    cat >near.toml <<END
version = 1
[identity.near]
cert = "pki/guest.pem"
key = "pki/guest.key"
[trust.other]
ca = "pki/ca.pem"
[link.near]
listen = "$work/near.sock"
$back
END
    "${ordinary[@]}" "$TACIT" link serve --policy far.toml &
    background+=($!)
    at=far.sock
    if [ "$transport" != unix ]; then
        "${near_host[@]}" "${ordinary[@]}" "$TACIT" link serve --policy near.toml &
        background+=($!)
        at=near.sock
    fi
    await "the link is not served" $at
    run=("$TACIT" run --link "$work/$at" --policy "$here/plain.toml" --)
}

run=() near_host=()
ordinary=(unshare --user --map-user=54321 --map-group=54321)
case $way in
native) ;;
link-*) begin_link "${way#link-}" ;;
*) run=("$TACIT" run --policy "$here/$way.toml" --) ;;
esac
[ -z "${WORKING_DIRECTORY:-}" ] || cd "$WORKING_DIRECTORY"
timeout "$TIMEOUT_SECONDS" "${near_host[@]}" "${ordinary[@]}" "${run[@]}" "$@"
