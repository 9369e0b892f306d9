#!/usr/bin/env bash
# Tests a link with an emulated guest that has no network device: its programs use the network of the host
# over vsock. `make test-links-guest` builds the program, and installs QEMU and vhost-device-vsock first.
#
# The guest is Debian's kernel and an initramfs with tacit, a policy, busybox, curl, psql, ldapsearch and
# perl. tacit is the first process (`tacit link init`). Without KVM and without the host's module for vsock,
# vhost-device-vsock connects the guest: each connection of the guest arrives at a UNIX socket, as under
# Firecracker and cloud-hypervisor. The host's side runs in a network namespace of its own, whose packets
# are written to a file. scripts/links-guest has the servers of the host, among them PostgreSQL and slapd,
# and the steps of the guest.
#
# First boot: the guest waits for the host, connects in all ways, loses either server, is stopped for some
# time, and is killed with open connections.
# Second boot: the host's link server runs under `tacit run`, whose policy adds TLS on the side of the host.
# The guest ends and boots again, while nothing changes on the side of the host.
# Third boot: the guest has no file but the program without libraries, its policy and modules.
# Fourth boot: two guests. The one that has an address listens on AF_VSOCK, for the other and for itself.
#
# Prints a line for each step, `ok` or `FAIL`, and exits with 1 if one fails. If it cannot run, it prints
# `skipped` with the reason, and exits with 0. Needs no root. Ends only its own processes.
#
# Variables, all optional:
#   BINARY=FILE    the program; default target/release/tacit
#   STATIC=FILE    the program without libraries; default target/static/tacit
#   ACCEL=NAME     QEMU's accelerator; default tcg, which works everywhere
#   BOOT_MAX=N     seconds until a boot counts as failed; default 600, with MEASURE 3600
#   BOOTS=LIST     only these boots, for example "3 4"; default all
#   MEASURE=yes    only measures the rates of the link and of emulated network cards, and prints them;
#                  a list, such as "link passt", selects some
#   KEEP=DIR       copies logs and captures there
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
BINARY=$(realpath -m "${BINARY:-$target/release/tacit}")
STATIC=$(realpath -m "${STATIC:-$target/static/tacit}")
cache=$target/guest
kernel=$cache/kernel
vhost=$target/tools/bin/vhost-device-vsock
accel=${ACCEL:-tcg}
boot_max=${BOOT_MAX:-$([ -n "${MEASURE:-}" ] && echo 3600 || echo 600)}
v4=192.0.2.1
v6=2001:db8::1

test=test-links-guest
# shellcheck source=scripts/guest/host.sh
. scripts/guest/host.sh
# shellcheck source=scripts/links-guest/databases.sh
. scripts/links-guest/databases.sh

# ---------------------------------------------------------------------------------------------
# What it needs

may_run() {
    [ "$(uname -m)" = x86_64 ] || skip "the guest is an x86-64 machine so far"
    local program
    for program in qemu-system-x86_64 busybox cpio curl ldapsearch perl python3 dpkg-deb \
        "${postgres:-postgres}" "${psql:-psql}" "${slapd:-slapd}"; do
        command -v "$program" >/dev/null ||
            skip "$program is not installed. fix: scripts/install-deps.sh links-guest"
    done
    [ -x "$vhost" ] || vhost=$(command -v vhost-device-vsock) ||
        skip "vhost-device-vsock cannot be built. fix: scripts/install-deps.sh links-guest"
    vhost=$(realpath "$vhost")
    [ -x "$BINARY" ] || skip "$BINARY does not exist. fix: make build"
    unshare --user --map-root-user --net --mount true 2>/dev/null ||
        skip "the kernel allows no user namespaces"
}

# Downloads and extracts the kernel of the distribution.
find_kernel() {
    compgen -G "$kernel/boot/vmlinuz-*" >/dev/null && return
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[^ ]*\)$/\1/p' | head -n 1) || true
    [ -n "$package" ] || skip "the package linux-image-cloud-amd64 is not known here. fix: apt-get update"
    say "downloading $package"
    mkdir -p "$kernel.new"
    (cd "$kernel.new" && apt-get download -qq "$package" >/dev/null 2>&1) ||
        skip "$package cannot be downloaded"
    dpkg-deb -x "$kernel.new"/*.deb "$kernel.new"
    rm "$kernel.new"/*.deb
    mv "$kernel.new" "$kernel"
}

# ---------------------------------------------------------------------------------------------
# The guest's files

# with_libraries PROGRAM: copies it, and the libraries that it needs.
with_libraries() {
    local file
    for file in "$1" $(ldd "$1" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$file")"
        [ -e "$root$file" ] || cp -L "$file" "$root$file"
    done
}

write_policies() {
    cat >"$root/etc/tacit/policy.toml" <<END
version = 1
[trust.test]
ca = "ca.pem"
[link.near]
connect = "vsock:2:7000"
[[rule]]
name = "protected"
direction = "outbound"
remote = "tls.example"
remote-ports = 8443
tls = { trust = "test" }
[[rule]]
name = "database"
direction = "outbound"
remote = "database.example"
remote-ports = 5432
tls = { trust = "test", starttls = "postgres" }
[[rule]]
name = "directory"
direction = "outbound"
remote = "directory.example"
remote-ports = 6636
tls = { trust = "test" }
[[rule]]
name = "clear"
direction = "outbound"
remote = ["clear.example", "$v4", "$v6"]
remote-ports = ["2121-2122", 5432, 6636, "8080-8443"]
permit = true
[[rule]]
name = "datagrams"
direction = "outbound"
protocol = "udp"
remote = "$v4"
remote-ports = 8053
permit = true
[[rule]]
name = "inside"
direction = "inbound"
listen = "$v4:8099"
local-ports = 8099
permit = true
END
    cat >"$work/link.toml" <<END
version = 1
[link.guest]
listen = "$work/vm.vsock_7000"
[[rule]]
name = "never"
link = "guest"
direction = "outbound"
remote = "$v4"
remote-ports = 8082
deny = true
[[rule]]
name = "out"
link = "guest"
direction = "outbound"
remote = ["$v4", "$v6"]
remote-ports = ["2121-2122", 5432, 6636, "8080-8443"]
permit = true
[[rule]]
name = "datagrams"
link = "guest"
direction = "outbound"
protocol = "udp"
remote = "$v4"
remote-ports = 8053
permit = true
[[rule]]
name = "in"
link = "guest"
direction = "inbound"
local = "$v4"
local-ports = 8099
permit = true
END
    cat >"$work/host.toml" <<END
version = 1
[trust.test]
ca = "$pki/ca.pem"
[[rule]]
name = "of-the-host"
direction = "outbound"
remote = "$v4"
remote-ports = [6636, 8443]
tls = { trust = "test", server-name = "tls.example" }
[[rule]]
name = "database-of-the-host"
direction = "outbound"
remote = "$v4"
remote-ports = 5432
tls = { trust = "test", server-name = "tls.example", starttls = "postgres" }
END
}

make_files() {
    local file applet
    root=$work/root
    mkdir -p "$root"/{bin,etc/tacit,modules,proc,sys,dev,run,tmp} "$work/www"
    "$BINARY" ca init --dir "$pki" >/dev/null
    "$BINARY" ca issue --dir "$pki" tls.example --san database.example --san directory.example >/dev/null
    printf clear-hello >"$work/www/clear"
    printf marked-reply >"$work/www/marked"
    # Marked in every part, so that the capture shows any part in clear.
    head -c 4194304 < <(yes marked-body) >"$work/www/big"
    head -c 4194304 < <(yes clear-body) >"$work/www/plain"
    for file in big plain; do
        sha256sum "$work/www/$file" | cut -d ' ' -f 1 >"$root/$file.sum"
    done
    cp "$work/www/big" "$root/"
    echo nameserver "$v4" >"$work/resolv.conf"

    cp "$BINARY" "$root/tacit"
    strip "$root/tacit" 2>/dev/null || true
    with_libraries "$BINARY"
    rm -f "$root$BINARY"
    cp -L "$(command -v busybox)" "$root/bin/busybox"
    for applet in $(busybox --list | grep -vx busybox); do ln -sf busybox "$root/bin/$applet"; done
    for file in "$(command -v curl)" "$(command -v perl)" "$(command -v ldapsearch)" "$psql"; do
        with_libraries "$file"
        ln -sf "$file" "$root/bin/$(basename "$file")"
    done
    mkdir -p "$root/usr/lib/x86_64-linux-gnu"
    cp -r /usr/lib/x86_64-linux-gnu/perl-base "$root/usr/lib/x86_64-linux-gnu/"
    cp scripts/links-guest/steps.sh scripts/guest/report.sh "$root/"
    cp "$pki/ca.pem" "$root/etc/tacit/"
    write_policies
    # vsock, and what `tacit run` needs.
    python3 scripts/links-guest/modules.py "$kernel"/lib/modules/* "$root/modules" crc32c_generic \
        virtio_pci virtio_rng vsock vmw_vsock_virtio_transport vsock_loopback nf_tables nft_tproxy nft_socket \
        nft_reject_inet nft_log nft_limit nft_ct nfnetlink_log inet_diag tcp_diag udp_diag \
        raw_diag unix_diag ${MEASURE:+virtio_net} >"$root/modules.list"
    cp "$kernel"/boot/vmlinuz-* "$work/vmlinuz"
}

# pack NUMBER: the initramfs of a boot.
pack() {
    echo "$1" >"$root/boot-number"
    (cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$work/initramfs"
}

# ---------------------------------------------------------------------------------------------
# The side of the host

finish() {
    end_started
    if [ "$failed" -ne 0 ] || [ -n "${KEEP:-}" ]; then
        local kept=${KEEP:-$cache/failed}
        mkdir -p "$kept"
        cp "$work"/*.log "$work/wire" "$work"/{console,steps}-* "$kept/" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$work"
}

# What the link server reports: state EXPRESSION of Python.
state() {
    "$BINARY" link info "$work/vm.vsock_7000" --json |
        python3 -c "import json, sys; link = json.load(sys.stdin); print($1)"
}
idle() { [ "$(state 'link["sockets"], len(link["runs"])')" = "0 0" ]; }
sockets() { find "/proc/$server/fd" -lname 'socket:*' | wc -l; }
serve_link() {
    start "$@" "$BINARY" link serve --policy "$work/link.toml" 2>>"$work/link.log"
    server=$!
    until_true state 1
}
end_link() {
    kill "$server"
    wait "$server" || true
}

start_outside() {
    ip link set lo up
    ip address add "$v4/32" dev lo
    ip address add "$v6/128" dev lo nodad
    mount --bind "$work/resolv.conf" /etc/resolv.conf
    [ -n "${MEASURE:-}" ] || start python3 scripts/links-guest/outside.py tap "$work/wire"
    start python3 scripts/links-guest/outside.py serve "$work/www" "$pki/tls.example.pem" \
        "$pki/tls.example.key" 2>"$work/outside.log"
    until_true curl -fsS -o /dev/null "http://$v4:8080/clear"
    start_database
    start_directory
    check "the database and the directory refuse clients without TLS" refuse_clear
}

# start_vsock NUMBER CID...: connects the vsock of guests; each has a socket for QEMU, $work/CID.sock. The first
# one connects to the UNIX sockets of the host.
start_vsock() {
    local number=$1 cid path=$uds devices=()
    shift
    for cid in "$@"; do
        rm -f "$work/$cid.sock"
        devices+=(--vm "guest-cid=$cid,uds-path=$path,socket=$work/$cid.sock")
        path=$uds.next
    done
    start "$vhost" "${devices[@]}" 2>>"$work/vhost-$number.log"
    vhost_pid=$!
    for cid in "$@"; do until_true test -S "$work/$cid.sock"; done
}
end_vsock() {
    kill "$vhost_pid" 2>/dev/null || true
    wait "$vhost_pid" 2>/dev/null || true
    rm -f "$uds"
}
# machine NUMBER CID WORDS: starts a guest in the background.
machine() {
    : >"$work/steps-$1"
    start emulate "$1" "$boot_max" -object memory-backend-memfd,id=memory,size=512M,share=on \
        -machine q35,memory-backend=memory -accel "$accel" -m 512 -nic none \
        -chardev "socket,id=vsock,path=$work/$2.sock" -device vhost-user-vsock-pci,chardev=vsock \
        -kernel "$work/vmlinuz" -initrd "$work/initramfs" -append "$3"
    guest=$!
}
# boot NUMBER PROGRAM...: packs and starts a guest with a link, which runs the program.
boot() {
    pack "$1"
    boot_packed "$@"
}
boot_packed() {
    local number=$1
    shift
    machine "$number" 3 "rdinit=/tacit $on_kernel -- link init --modules /modules.list near $*"
}
on_console() { grep -aq "$2" "$work/console-$1"; }
# follow NUMBER: prints the guest's steps as they come, and does what they ask for.
follow() {
    local line
    while IFS= read -r line; do
        line=${line%$'\r'}
        case $line in
        "ask "*) obey "${line#ask }" ;;
        "end "*) failed=$((failed + ${line#end })) ended=yes ;;
        *) printf '%s\n' "$line" ;;
        esac
        [ "$line" != "ask kill" ] || break
    done < <(tail --pid="$guest" -n +1 -f "$work/steps-$1")
    if [ -z "$ended" ]; then
        ends_early "$1"
        return 1
    fi
}
from_inside() { curl -sS --http0.9 --max-time 30 "http://$v4:8099/"; }
obey() {
    case $1 in
    inside | inside-again)
        check "  the server inside sees the address of its client" \
            until_true is "hello $v4" from_inside
        ;;
    restart)
        end_link
        serve_link
        ;;
    end-server)
        kill -KILL "$server"
        wait "$server" 2>/dev/null || true
        serve_link
        ;;
    stop-machine-*) stopped_for "${1##*-}" "$(pgrep -P "$guest")" ;;
    stop-server-*) stopped_for "${1##*-}" "$server" ;;
    kill) return ;;
    esac
    : >"$work/www/$1.done"
}
# stopped_for SECONDS PID
stopped_for() {
    kill -STOP "$2"
    sleep "$1"
    kill -CONT "$2"
}
# The words in clear that the capture has.
captured() { grep --text --only-matching "$1[a-z-]*" "$work/wire" | sort | uniq -c; }
nothing_in_clear() { ! captured marked; }

at_most() {
    local got
    got=$("$2")
    [ "$got" -le "$1" ]
}

boot_1() {
    say "first boot, under $accel: it waits for the host"
    start_vsock 1 3
    boot 1 /bin/sh /steps.sh
    check "the guest waits for a host without a link server" \
        waits_for 1 "waiting for the other side"
    serve_link
    local before
    before=$(sockets)
    follow 1 || return
    check "the host's policy has refused a port by a rule" grep -q 'rule `never`' "$work/link.log"
    echo "      $(state 'link["sockets"]') sockets are open; the guest is killed"
    kill -KILL "$(pgrep -P "$guest")"
    wait "$guest" 2>/dev/null || true
    check "the link server has no run and no socket of a killed guest" until_true idle
    check "and no more descriptors of sockets than before it" until_true at_most "$before" sockets
    end_link
    end_vsock
}
waits_for() {
    local try
    for ((try = 0; try < boot_max; try++)); do
        if on_console "$1" "$2"; then return 0; fi
        sleep 1
    done
    tail -n 40 "$work/console-$1"
    return 1
}

boot_2() {
    say "second boot: the host's link server runs under tacit run"
    serve_link "$BINARY" run --policy "$work/host.toml" --as-root --log "$work/run.log" --
    start_vsock 2 3
    boot 2 /bin/sh /steps.sh
    follow 2 || return
    check "the guest has ended itself" wait "$guest"
    check "and nothing of it is left" until_true idle
    ended=
    boot 2 /bin/sh /steps.sh
    follow 2 || return
    check "the guest has booted again, and the other side is as before" wait "$guest"
    check "and nothing of it is left" until_true idle
    end_link
    end_vsock
}

# A guest with nothing but the program, which is its first process, the server of its link, its run and its
# client. On the side of the host, the program is alone in a root directory of its own.
boot_3() {
    [ -x "$STATIC" ] || {
        say "skipped: the third boot, because $STATIC does not exist. fix: make static"
        return
    }
    say "third boot: both sides have only the program without libraries"
    local whole=$root alone=$work/alone
    root=$work/small
    mkdir -p "$root"/{etc/tacit,modules,proc,sys,dev,run,tmp} "$alone"
    cp "$STATIC" "$root/tacit"
    cp "$STATIC" "$alone/tacit"
    cp "$whole"/etc/tacit/{policy.toml,ca.pem} "$root/etc/tacit/"
    cp "$whole"/modules/* "$root/modules/"
    cp "$whole/modules.list" "$root/"
    sed 's,^listen = .*,listen = "/vm.vsock_7000",' "$work/link.toml" >"$alone/link.toml"
    check "the program needs no library" not_dynamic "$STATIC"
    start "$BINARY" workload interactive server --listen "$v4:8095" >"$work/workload.log" 2>&1
    start chroot "$alone" /tacit link serve --policy /link.toml 2>>"$work/link.log"
    until_true test -S "$alone/vm.vsock_7000"
    uds=$alone/vm.vsock
    start_vsock 3 3
    boot 3 /tacit workload connect client --connections 20 --connect "$v4:8095"
    check "the program alone is the user space of a guest, and the other side" \
        waits_for 3 '^connections  *20'
    check "the guest has ended itself" wait "$guest"
    end_vsock
    uds=$work/vm.vsock
    root=$whole
}
not_dynamic() { ! ldd "$1" 2>/dev/null | grep -q '=>'; }

# The other side is a guest as well: it has the address, and listens on AF_VSOCK.
boot_4() {
    say "fourth boot: a guest listens on AF_VSOCK for another"
    {
        sed 's/^listen = .*/listen = "vsock:3:7000"/; s/^link = .*/link = ["guest", "loop"]/' "$work/link.toml"
        printf '[link.loop]\nlisten = "vsock:1:7001"\n[link.of-another]\nlisten = "vsock:9:7002"\n'
    } >"$root/etc/tacit/far.toml"
    # Without the last rule: the address at which the other guest listens is in use.
    sed 's,^connect = .*,connect = "vsock:1:7001",; /^name = "inside"$/,$d' "$root/etc/tacit/policy.toml" |
        head -n -1 >"$root/etc/tacit/loop.toml"
    sed -i 's,^connect = .*,connect = "vsock:4:7000",' "$root/etc/tacit/policy.toml"
    printf 'version = 1\n[link.other]\nconnect = "vsock:1:7002"\n' >"$root/etc/tacit/other.toml"
    cp scripts/links-guest/vsock.sh "$root/"
    start_vsock 4 3 4
    pack 4
    machine 5 4 "rdinit=/bin/sh $on_kernel -- /vsock.sh far"
    local far=$guest
    boot_packed 4 /bin/sh /vsock.sh near
    ended=
    follow 4 || return
    check "the guest without a network has ended itself" wait "$guest"
    ended=
    guest=$far
    follow 5 || return
    check "and so has the other" wait "$guest"
    end_vsock
}

main() {
    start_outside
    if [ -n "${MEASURE:-}" ]; then
        # shellcheck source=scripts/links-guest/measure.sh
        . scripts/links-guest/measure.sh
        measure_all
        return
    fi
    local boot
    for boot in ${BOOTS:-1 2 3 4}; do
        ended=
        "boot_$boot"
    done
    check "no marked word was in clear outside" nothing_in_clear
    [ -n "${BOOTS:-}" ] || check "the capture shows what is in clear" captured clear-hello
    if [ "$failed" -ne 0 ]; then
        say "$failed steps FAILED; logs are in ${KEEP:-$cache/failed}"
        exit 1
    fi
    say "all steps ok"
}

ended=
if [ "${1:-}" != inside ]; then
    may_run
    mkdir -p "$cache"
    find_kernel
    exec unshare --user --map-root-user --net --mount -- "$PWD/scripts/test-links-guest.sh" inside
fi
may_run
work=$(mktemp -d)
out=$work/out
pki=$work/pki
uds=$work/vm.vsock
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
make_files
main
