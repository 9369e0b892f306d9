#!/bin/sh
# The steps of scripts/test-links-guest.sh in the guest, as the program of `tacit link init`: writes `ok`
# or `FAIL` for each to the second serial line. The host watches this line, and acts at `ask WORD`.
#
# Every word that must not be in clear outside begins with `marked`.
set -u
export PATH=/bin LC_ALL=C
boot=$(cat /boot-number)
out=/tmp/out
exec >/dev/ttyS1
# shellcheck source=scripts/guest/report.sh
. /report.sh

v4=192.0.2.1
get() { curl -sS --max-time 60 "$@"; }
only_loopback() { ls /sys/class/net && [ "$(ls /sys/class/net)" = lo ]; }

# `connect` of the system, and its error by name.
connects() {
    perl -MIO::Socket::INET -MErrno -e '
        exit !print "connected\n" if IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1]);
        for my $name (keys %!) { print "$name\n" if $!{$name} && $name !~ /WOULDBLOCK/ }' "$@"
}
datagram() {
    perl -MIO::Socket::INET -e '
        my $socket = IO::Socket::INET->new(Proto => "udp", PeerAddr => $ARGV[0], PeerPort => $ARGV[1]);
        $socket->send("clear-datagram"); alarm 60; $socket->recv(my $answer, 100); print "$answer\n"' "$@"
}
# The half of a connection that ends first must not end the other half.
half_close() {
    head -c 100000 /dev/zero | nc $v4 8090
}
# The other half ends first, and the last bytes are still on their way when the program closes.
last_bytes() {
    perl -MIO::Socket::INET -e '
        my $socket = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 8091) or die "$!";
        $socket->sysread(my $end, 1); $socket->print("x" x 1000000); $socket->close or die "$!"' $v4
    until_true get -f -o /dev/null http://$v4:8080/tail
    is "1000000 end" get http://$v4:8080/tail
}
by_ftp() {
    ftpget -u guest -p guest -P 2121 $v4 /tmp/plain plain && is "$(cat /plain.sum)" sum /tmp/plain
}
# databases HOST DIRECTORY: psql and ldapsearch, which know nothing of TLS here, at servers that accept only TLS.
databases() {
    check "psql, whose server accepts only TLS" is "marked-row|t" psql_at "$1" \
        "select 'marked-row', ssl from pg_stat_ssl where pid = pg_backend_pid()"
    check "700,000 bytes by psql" is 700001 length psql_at "$1" "select repeat('marked-', 100000)"
    check "ldapsearch, whose server accepts only TLS" is "description: marked-entry" found_at "$2"
}
psql_at() { psql -XAtc "$2" "host=$1 user=tester dbname=postgres connect_timeout=60"; }
length() { "$@" | wc -c; }
found_at() {
    ldapsearch -x -LLL -o ldif-wrap=no -o nettimeout=60 -H "ldap://$1:6636" -b dc=example \
        "(cn=marked-person)" description | grep -v '^dn:\|^$'
}
sum() { sha256sum "$1" | cut -d ' ' -f 1; }
uploaded() {
    sum=$(get -T /big http://tls.example:8443/upload) && echo "$sum" && [ "$sum" = "$(cat /big.sum)" ]
}
downloaded() {
    get -o /tmp/big2 http://tls.example:8443/big && is "$(cat /big.sum)" sum /tmp/big2
}
# A server inside, which sends each client the address that it sees.
server() {
    perl -MIO::Socket::INET -e '
        my $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8099, ReuseAddr => 1) or die "$!";
        while (my $client = $server->accept) { print $client "hello ", $client->peerhost, "\n" }' &
}
# survives TEXT COMMAND...: after the command, programs reach the other side, and are reached from there.
survives() {
    check "$@"
    check "and curl works again" until_true is "clear-hello" get http://$v4:8080/clear
    check "the server inside is reached again" asked inside-again
}
# The server is a child of the first process; it has children with the same command line.
end_own_server() {
    for server in $(grep -l '^/proc/self/exe.link.serve' /proc/[0-9]*/cmdline | cut -d / -f 3); do
        if grep -q '^PPid:[[:space:]]*1$' "/proc/$server/status"; then kill -KILL "$server"; fi
    done
}
# The clock wakes the machine.
suspend() { echo +20 >/sys/class/rtc/rtc0/wakealarm && echo mem >/sys/power/state; }
slow_download() { wait "$1" && is "$(cat /plain.sum)" sum /tmp/slow; }
# asked WORD: lets the host do something, and waits until it has done it.
asked() {
    echo "ask $1" >/dev/ttyS1
    until_true curl -fsS -m 5 -o /dev/null "http://$v4:8080/$1.done"
}

if [ "$boot" = 1 ]; then
    check "the guest has no network device" only_loopback
    check "curl reaches an address of the other side" is "clear-hello" get http://$v4:8080/clear
    check "and over IPv6" is "clear-hello" get "http://[2001:db8::1]:8080/clear"
    check "wget reaches a name that only the other side's resolver knows" \
        is "clear-hello" wget -q -O - http://clear.example:8080/clear
    check "TLS that the guest's policy adds" is "marked-reply" get -H "X-Word: marked-request" \
        http://tls.example:8443/marked
    databases database.example directory.example
    check "connect fails with the other side's error" is ECONNREFUSED connects $v4 8081
    check "the policy of the other side refuses a port" is ECONNREFUSED connects $v4 8082
    check "UDP" is "answer to clear-datagram" datagram $v4 8053
    check "a half-closed connection" is "received 100000" half_close
    check "the last bytes of a connection that the other side has ended first" last_bytes
    check "FTP, a passive transfer of 4 MiB" by_ftp
    check "4 MiB with TLS to the other side" uploaded
    check "and back" downloaded
    server
    check "clients outside reach a server inside" asked inside
    check "the other side's link server is replaced, and the run continues" asked restart
    check "and curl works again" is "clear-hello" get http://$v4:8080/clear
    check "the server inside is reached again" asked inside-again
    survives "the other side's link server is killed" asked end-server
    survives "the link server of the guest is killed" end_own_server
    get --limit-rate 200k -o /tmp/slow http://$v4:8080/plain &
    check "the guest is stopped for 10 seconds" asked stop-machine-10
    check "and a connection of before has lost nothing" slow_download $!
    survives "the guest is stopped for 60 seconds" asked stop-machine-60
    survives "the guest is suspended to memory for 20 seconds" suspend
    survives "the other side's link server is stopped for 60 seconds" asked stop-server-60
    # Connections that are open when the machine is killed.
    for one in 1 2 3 4 5 6 7 8; do
        (sleep 600 | nc $v4 8090) &
    done
    until_true sh -c 'test "$(netstat -tn | grep -c ":8090 *ESTABLISHED")" = 8'
    echo "end $failed"
    echo "ask kill"
    sleep 600
else
    check "the guest has started again" only_loopback
    check "TLS that the other side's policy adds" is "marked-reply" get -H "X-Word: marked-request" \
        http://$v4:8443/marked
    databases $v4 $v4
    echo "end $failed"
fi
exit "$failed"
