#!/usr/bin/env bash
# Installs missing programs that the build, the demonstration and the tests need. Prints what it will
# install before it begins; servers are not started (scripts/install-packages.sh).
#
#   scripts/install-deps.sh          what the tests need (and so everything)
#   scripts/install-deps.sh demo     what `make demo` needs
#   scripts/install-deps.sh transparency   what `make transparency` needs
#   scripts/install-deps.sh guest    what `make test-guest` needs
#   scripts/install-deps.sh links-guest   what `make test-links-guest` needs
#
# If nothing is missing, it needs neither root nor a network. It installs from the distribution with
# apt; on other systems it prints what is missing. cargo-deny and vhost-device-vsock are built with cargo
# in the build directory. Rust itself is not installed.
set -euo pipefail

purpose=${1:-test}
case $purpose in
demo | test | transparency | guest | links-guest) ;;
*)
    echo "usage: $0 [demo|test|transparency|guest|links-guest]" >&2
    exit 64
    ;;
esac

say() { printf 'deps: %s\n' "$*"; }

missing=() # packages
# need PACKAGES COMMAND: the packages, unless the command is there.
need() {
    command -v "$2" >/dev/null || missing+=("$1")
}

"$(dirname "$0")/rust-version.sh"

need gcc cc
[ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
# On these architectures the crypto library needs only a C compiler; others need more.
case $(uname -m) in
x86_64 | aarch64) ;;
*)
    need cmake cmake
    need clang clang
    ;;
esac
need curl curl
need openssl openssl
need python3 python3
need procps ps
need iproute2 ip
need util-linux setpriv
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)

if [ "$purpose" = test ]; then
    need git git
    # libFuzzer is C++.
    need g++ c++
    # Real clients and servers for the tests. The tests start the servers themselves.
    need golang-go go
    PATH="$PATH:/usr/sbin:/sbin" need nginx nginx
    PATH="$PATH:/usr/sbin:/sbin" need haproxy haproxy
    need netcat-openbsd nc
    need default-jdk-headless javac
    need musl-tools musl-gcc
    need postgresql-client psql
    command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ||
        missing+=(postgresql)
    # Programs that use STARTTLS.
    PATH="$PATH:/usr/sbin:/sbin" need postfix postfix
    need swaks swaks
    perl -MNet::SSLeay -e 1 2>/dev/null || missing+=(libnet-ssleay-perl)
    PATH="$PATH:/usr/sbin:/sbin" need telnetd-ssl in.telnetd
    need telnet-ssl telnet-ssl
    need s3270 s3270
    PATH="$PATH:/usr/sbin:/sbin" need vsftpd vsftpd
    need lftp lftp
    # Programs that the tests run with and without tacit.
    need wget wget
    need openssh-client ssh
    need redis-tools redis-cli
    need nodejs node
    need busybox-static busybox
    need iputils-ping ping
    PATH="$PATH:/usr/sbin:/sbin" need nftables nft
    # Runtimes of containers, which run a hook of tacit.
    need crun crun
    PATH="$PATH:/usr/sbin:/sbin" need runc runc
    # Shells whose completions are tested.
    need zsh zsh
    need fish fish
    # What reads captures.
    need tshark tshark
    # What checks the alert rules (promtool).
    need prometheus promtool
    # A peer of IPsec, with its data path in user space.
    [ -e /usr/lib/ipsec/charon ] || missing+=(strongswan-charon)
    [ -e /usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so ] || missing+=(libcharon-extra-plugins)
    [ -e /usr/lib/ipsec/plugins/libstrongswan-openssl.so ] || missing+=(libstrongswan-standard-plugins)
    [ -e /usr/lib/ipsec/plugins/libstrongswan-curve25519.so ] || missing+=(libstrongswan-extra-plugins)
    PATH="$PATH:/usr/sbin:/sbin" need strongswan-swanctl swanctl
    # Another implementation of ESP.
    /usr/bin/python3 -c "import scapy.layers.ipsec" 2>/dev/null || missing+=(python3-scapy)
    /usr/bin/python3 -c "import cryptography" 2>/dev/null || missing+=(python3-cryptography)
    # Products whose configurations are imported.
    need stunnel4 stunnel
    PATH="$PATH:/usr/sbin:/sbin" need openssh-server sshd
fi

if [ "$purpose" = transparency ]; then
    # The test suites of the system's Python and of Go; pip installs tornado.
    python=$(basename "$(readlink -f /usr/bin/python3)")
    /usr/bin/python3 -c "import test.test_socket" 2>/dev/null || missing+=("lib$python-testsuite")
    /usr/bin/python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip)
    need golang-go go
    if [ -n "${GVISOR:-}" ]; then
        need g++ c++
        [ -e /usr/include/absl/time/time.h ] || missing+=(libabsl-dev)
        [ -e /usr/include/gtest/gtest.h ] || missing+=(libgtest-dev)
        [ -e /usr/include/gmock/gmock.h ] || missing+=(libgmock-dev)
    fi
    # Programs that the tests run with and without tacit.
    PATH="$PATH:/usr/sbin:/sbin" need nginx nginx
    PATH="$PATH:/usr/sbin:/sbin" need haproxy haproxy
    need netcat-openbsd nc
    need postgresql-client psql
    need wget wget
    need nodejs node
    need hostname hostname
fi

if [ "$purpose" = guest ]; then
    # An emulated machine, and the Debian in it.
    need qemu-system-x86 qemu-system-x86_64
    PATH="$PATH:/usr/sbin:/sbin" need debootstrap debootstrap
    need dpkg dpkg-deb
    PATH="$PATH:/usr/sbin:/sbin" need e2fsprogs mkfs.ext4
fi

if [ "$purpose" = links-guest ]; then
    # An emulated machine, its programs, and what packs its files.
    need qemu-system-x86 qemu-system-x86_64
    need busybox-static busybox
    need cpio cpio
    need perl-base perl
    need dpkg dpkg-deb
    # Clients in the machine, and their servers outside.
    need postgresql-client psql
    command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ||
        missing+=(postgresql)
    need ldap-utils ldapsearch
    PATH="$PATH:/usr/sbin:/sbin" need slapd slapd
fi

# cargo-deny checks licences, bans, sources and advisories. Built for a short build time.
deny_version=0.20.2
tools=${CARGO_TARGET_DIR:-target}/tools
need_deny() {
    [ "$purpose" = test ] || return 0
    command -v cargo-deny >/dev/null && return
    "$tools/bin/cargo-deny" --version 2>/dev/null | grep -q " $deny_version\$" && return
    say "building cargo-deny $deny_version"
    cargo install --quiet --locked --debug --root "$tools" --target-dir "$tools/build" \
        cargo-deny --version "$deny_version" && rm -rf "$tools/build" ||
        say "cargo-deny cannot be built: dependencies will not be checked"
}
# Connects the vsock of an emulated machine to UNIX sockets. Debian's packages of it are too new.
vsock_version=0.3.0
need_vsock() {
    [ "$purpose" = links-guest ] || return 0
    [ ! -x "$tools/bin/vhost-device-vsock" ] && ! command -v vhost-device-vsock >/dev/null || return 0
    say "building vhost-device-vsock $vsock_version"
    cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" \
        vhost-device-vsock --version "$vsock_version" && rm -rf "$tools/build" ||
        say "vhost-device-vsock cannot be built: the test will be skipped"
}
# A second peer of IKE. Its package conflicts with that of strongSwan, so it is extracted, with the
# libraries that are missing, and not installed.
need_libreswan() {
    [ "$purpose" = test ] || return 0
    local to=$tools/libreswan packages
    [ ! -x "$to/usr/libexec/ipsec/pluto" ] || return 0
    say "extracting libreswan in $to"
    rm -rf "$to" && mkdir -p "$to/packages" || return 0
    packages=$(apt-get install --simulate --no-install-recommends libreswan 2>/dev/null |
        sed -n 's/^Inst \(lib[^ ]*\) .*/\1/p' | grep -v -- '-dev$') || true
    # shellcheck disable=SC2086 # one word for each package
    (cd "$to/packages" && [ -n "$packages" ] && apt-get download -qq $packages >/dev/null 2>&1) &&
        for package in "$to"/packages/*.deb; do dpkg-deb -x "$package" "$to"; done ||
        say "libreswan cannot be downloaded: its tests will be skipped"
    rm -rf "$to/packages"
}
cd "$(dirname "$0")/.."

if [ ${#missing[@]} -eq 0 ]; then
    need_deny
    need_vsock
    need_libreswan
    say "nothing is missing"
    exit 0
fi

case $purpose in
test) who="make test" ;;
demo) who="make demo" ;;
transparency) who="make transparency" ;;
guest) who="make test-guest" ;;
links-guest) who="make test-links-guest" ;;
esac
scripts/install-packages.sh "$who" "${missing[@]}"
need_deny
need_vsock
need_libreswan
say "done"
