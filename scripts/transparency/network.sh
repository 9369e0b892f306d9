#!/usr/bin/env bash
# Runs a suite in a private network: network.sh MODE COMMAND...
#
# MODE is `native`, or the name of a policy in this folder for `tacit run`. The caller makes the
# namespaces (unshare -rnm); the command runs in them as an ordinary user without capabilities.
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
for attempt in $(seq 500); do
    [ -e resolver.ready ] && [ -e servers.ready ] && break
    [ "$attempt" -lt 500 ] || { echo "network.sh: the servers did not start" >&2; exit 2; }
    sleep 0.02
done

run=()
[ "$way" = native ] || run=("$TACIT" run --policy "$here/$way.toml" --)
ordinary=(unshare --user --map-user=54321 --map-group=54321)
[ -z "${WORKING_DIRECTORY:-}" ] || cd "$WORKING_DIRECTORY"
timeout "$TIMEOUT_SECONDS" "${ordinary[@]}" "${run[@]}" "$@"
