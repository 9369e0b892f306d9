#!/usr/bin/env bash
# Tests the units under Debian's own systemd and kernel, in an emulated guest. `make test-guest` builds
# the program and installs QEMU and debootstrap first.
#
# debootstrap creates the guest's Debian once; an archive of it is kept in target/guest. Each call
# installs the package in a copy of it and boots that twice under QEMU: first with the guard alone
# enabled, then with the agent as well. scripts/guest/steps.sh has the steps. The peer is a server on the
# host's loopback, behind an agent that speaks TLS. QEMU writes every packet of the guest's interface to
# a file, from the first on; no word of a protected flow may be in it.
#
# Prints a line for each step, `ok` or `FAIL`, and exits with 1 if one fails. If it cannot run, it prints
# `skipped` with the reason, and exits with 0. Ends only its own processes.
#
# Variables, all optional:
#   BINARY=FILE    the program; default target/release/tacit
#   SUITE=NAME     the guest's Debian; default trixie, or bookworm if that cannot be reached.
#                  The kernel of bookworm, Linux 6.1, has no owners of tables that persist
#   ACCEL=NAME     QEMU's accelerator; default tcg, which works everywhere
#   PART=links     the first boot has only the steps of links
#   BOOT_MAX=N     seconds until a boot counts as failed; default 1500
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
export BINARY=${BINARY:-$target/release/tacit}
cache=$target/guest
mirror=${MIRROR:-http://deb.debian.org/debian}
accel=${ACCEL:-tcg}
boot_max=${BOOT_MAX:-1500}
# What the guest has beside the essential packages.
packages=systemd,systemd-sysv,udev,dbus,kmod,iproute2,nftables,procps,python3,adduser
image_size=2G

test=test-guest
# shellcheck source=scripts/guest/host.sh
. scripts/guest/host.sh

may_run() {
    [ "$(uname -m)" = x86_64 ] || skip "the guest is an x86-64 machine so far"
    [ "$(id -u)" -eq 0 ] || skip "debootstrap and chroot need root"
    local program
    for program in qemu-system-x86_64 debootstrap dpkg-deb mkfs.ext4 python3; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "$program" >/dev/null ||
            skip "$program is not installed. fix: scripts/install-deps.sh guest"
    done
}

# The archive of a guest's Debian; creates it if there is none. Fails if the suite cannot be reached.
make_root() {
    local suite=$1 new
    archive=$cache/root-$suite.tar
    [ ! -e "$archive" ] || return 0
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || return 1
    say "creating a minimal $suite; its log is $cache/debootstrap.log"
    new=$(mktemp -d "$cache/new-root.XXXXXX")
    if ! nice debootstrap --variant=minbase \
        --include="$packages,linux-image-cloud-$(dpkg --print-architecture)" \
        "$suite" "$new" "$mirror" >"$cache/debootstrap.log" 2>&1; then
        rm -rf --one-file-system "$new"
        return 1
    fi
    chmod 755 "$new"
    rm -rf "$new"/usr/share/{doc,man,locale,info} "$new"/var/cache/apt/archives/*.deb
    tar -C "$new" --one-file-system -cf "$archive.new" .
    mv "$archive.new" "$archive"
    rm -rf --one-file-system "$new"
}

in_root() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
        chroot "$work/root" "$@"
}

# ---------------------------------------------------------------------------------------------
# The peer, on the host's loopback

finish() {
    end_started
    if [ "$failed" -ne 0 ]; then
        rm -rf "$cache/failed"
        mkdir "$cache/failed"
        cp "$work"/{wire,steps,console}-* "$work"/*.log "$cache/failed/" 2>/dev/null || true
    fi
    rm -rf --one-file-system "$work"
}
serving() { (exec 9<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
free_ports() {
    python3 -c 'import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in sockets))'
}

start_peer() {
    local certificates=$work/certificates
    "$BINARY" ca init --dir "$certificates" >/dev/null
    "$BINARY" ca issue --dir "$certificates" far.example >/dev/null
    cat >"$certificates/far.toml" <<END
version = 1
[identity.far]
cert = "far.example.pem"
key = "far.example.key"
[[rule]]
name = "far"
listen = ["127.0.0.1:$protected", "[::1]:$protected"]
connect = "127.0.0.1:$server"
tls = { role = "server", identity = "far", client-cert = "none" }
END
    start python3 scripts/guest/peer.py serve "$server" "$unmatched" 2>"$work/peer.log"
    start "$BINARY" agent --no-supervisor --policy "$certificates/far.toml" \
        --control "$work/far.sock" 2>"$work/far.log"
    until_true serving "$protected" && until_true serving "$unmatched"
}

# ---------------------------------------------------------------------------------------------
# The guest

write_policies() {
    local etc=$work/root/etc/tacit
    cp "$work/certificates/ca.pem" "$etc/ca.pem"
    cat >"$etc/host.toml" <<END
version = 1
[host]
unmatched = "permit"
[trust.test]
ca = "ca.pem"
[[rule]]
name = "protected"
direction = "outbound"
remote = ["10.0.2.2", "fec0::2"]
remote-ports = $protected
tls = { trust = "test", server-name = "far.example" }
END
    cat >"$etc/policy.toml" <<END
version = 1
[trust.test]
ca = "ca.pem"
[[rule]]
name = "forwarded"
listen = "127.0.0.1:7001"
connect = "10.0.2.2:$protected"
tls = { role = "client", trust = "test", server-name = "far.example" }
END
    # No file of it is secret, and the agents have users of their own.
    chmod -R a+rX "$etc"
}

make_image() {
    local root=$work/root
    mkdir "$root"
    tar -C "$root" -xf "$archive"
    cp "$work"/tacit_*.deb "$root/tacit.deb"
    in_root dpkg --install /tacit.deb >"$work/install.log" 2>&1 || {
        cat "$work/install.log"
        return 1
    }
    mkdir "$root/test"
    mv "$root/tacit.deb" "$root/test/"
    write_policies
    cp scripts/guest/{peer.py,steps.sh,report.sh} "$root/test/"
    printf 'protected=%s\nunmatched=%s\npart=%s\n' "$protected" "$unmatched" "${PART:-all}" \
        >"$root/test/ports"
    sed "s/@PROTECTED@/$protected/" scripts/guest/daemon.service \
        >"$root/etc/systemd/system/daemon.service"
    cp scripts/guest/steps.service "$root/etc/systemd/system/"
    cp scripts/guest/wire.network "$root/etc/systemd/network/"
    echo guest >"$root/etc/hostname"
    in_root systemctl --quiet enable systemd-networkd daemon steps tacit-host-guard \
        2>"$work/enable.log"
    cp "$root"/boot/vmlinuz-* "$work/kernel"
    cp "$root"/boot/initrd.img-* "$work/initrd"
    mkfs.ext4 -q -L root -d "$root" "$work/image" "$image_size" >/dev/null
    rm -rf --one-file-system "$root"
}

# boot NUMBER: prints the guest's lines as they come; fails unless it reports its end.
boot() {
    local steps=$work/steps-$1 qemu
    : >"$steps"
    start emulate "$1" "$boot_max" -accel "$accel" -m 768 \
        -kernel "$work/kernel" -initrd "$work/initrd" \
        -append "root=LABEL=root rw net.ifnames=0 $on_kernel" \
        -drive "file=$work/image,format=raw,if=virtio,cache=unsafe" \
        -netdev user,id=wire -device virtio-net-pci,netdev=wire,romfile= \
        -object "filter-dump,id=tap,netdev=wire,file=$work/wire-$1"
    qemu=$!
    tail --pid="$qemu" -n +1 -f "$steps" | sed -u 's/\r$//; /^end /d'
    wait "$qemu" || true
    local end
    end=$(tr -d '\r' <"$steps" | sed -n 's/^end //p')
    if [ -z "$end" ]; then
        ends_early "$1"
        return 1
    fi
    failed=$((failed + end))
}

# words BOOT PATTERN: the words in clear on the wire, with their counts.
words() { grep --text --only-matching "$2[a-z-]*" "$work/wire-$1" | sort | uniq -c; }
not_on_the_wire() { ! words "$1" marked; }
on_the_wire() { words "$1" "$2" >/dev/null; }

main() {
    may_run
    [ -x "$BINARY" ] || skip "$BINARY does not exist. fix: make build"
    export PATH="$PATH:/usr/sbin:/sbin"
    mkdir -p "$cache"
    local suite found=
    for suite in ${SUITE:-trixie bookworm}; do
        if make_root "$suite"; then
            found=yes
            break
        fi
    done
    [ -n "$found" ] || skip "debootstrap failed (no network?): $cache/debootstrap.log"
    work=$(mktemp -d "$cache/test.XXXXXX")
    out=$work/out
    trap finish EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    read -r protected unmatched server < <(free_ports)
    say "building the package"
    OUT=$work ./scripts/package.sh >/dev/null
    start_peer || {
        cat "$work/far.log" "$work/peer.log"
        exit 1
    }
    say "installing it in a guest of $suite"
    make_image
    say "first boot, under $accel: the guard is enabled"
    if boot 1; then
        check "no word of a protected flow was in clear on the wire" not_on_the_wire 1
        check "the wire shows what passes through links in clear" on_the_wire 1 clear-near
        if [ "${PART:-all}" = all ]; then
            check "and what passes in clear" on_the_wire 1 clear-guard
            check "and what passes after the removal" on_the_wire 1 clear-removed
        fi
        say "second boot: guard and agent are enabled"
        if boot 2; then
            check "no word of a protected flow was in clear on the wire" not_on_the_wire 2
        fi
    fi
    if [ "$failed" -ne 0 ]; then
        say "$failed steps FAILED; captures and logs are in $cache/failed"
        exit 1
    fi
    say "all steps ok"
}

main
