#!/bin/sh
# The fourth boot of scripts/test-links-guest.sh, in both guests: `far` has the address, and listens on
# AF_VSOCK; `near` has no address. vhost-device-vsock truncates long packets between guests: long streams
# pass within the first one. Writes `ok` or `FAIL` for each step to the second serial line.
set -u
export PATH=/bin LC_ALL=C
v4=192.0.2.1
out=/tmp/out
if [ "$1" = far ]; then
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    mount -t devtmpfs dev /dev
    while read -r module; do insmod "$module" 2>/dev/null; done </modules.list
    ip link set lo up
    ip address add $v4/32 dev lo
fi
exec >/dev/ttyS1
# shellcheck source=scripts/guest/report.sh
. /report.sh

# A server, which sends one client the address that it sees.
server() {
    perl -MIO::Socket::INET -e '
        alarm 300;
        my $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8099, ReuseAddr => 1) or die "$!";
        my $client = $server->accept; print $client "hello ", $client->peerhost, "\n"'
}
reached() { is "hello $v4" nc -w 30 $v4 8099; }
tasks() { tacit link info guest | grep 'vsock:3'; }
idle() { tacit link list | grep '^guest  *[0-9]*  *0  *0 '; }
stream() {
    tacit run --link near --policy /etc/tacit/loop.toml -- \
        /tacit workload stream client "$1" --connections 3 --bytes 10000000 --connect $v4:8095
}
refused() {
    ! tacit run --link other --policy /etc/tacit/other.toml -- true &&
        grep 'the vsock context ID 1, but the link is only for the context ID 9' /tmp/link.log
}
tacit() { /tacit "$@"; }

if [ "$1" = far ]; then
    tacit workload interactive server --listen $v4:8095 >/tmp/workload.log 2>&1 &
    tacit link serve --policy /etc/tacit/far.toml 2>/tmp/link.log &
    tacit link serve --policy /etc/tacit/loop.toml near 2>/tmp/near.log &
    until_true test -S /run/tacit/links/near.sock
    for way in out in; do
        check "3 streams of 10 MB over AF_VSOCK within a kernel, $way" stream $way
    done
    check "tacit link info shows the context of the other guest" until_true tasks
    tacit link serve --policy /etc/tacit/other.toml other 2>/tmp/other.log &
    until_true test -S /run/tacit/links/other.sock
    check "a link for another context refuses this one" refused
    check "a client reaches the server in the guest without a network" until_true reached
    check "nothing is left of the other guest" until_true idle
    echo "end $failed"
    poweroff -f
fi
check "20 connections over AF_VSOCK between two kernels" \
    tacit workload connect client --connections 20 --connect $v4:8095
check "a client of the other side reaches a server" server
echo "end $failed"
exit "$failed"
