#!/usr/bin/env bash
# Installs what the build, the demonstration and the tests need and this machine lacks.
#
#   scripts/install-deps.sh          what the tests need (and so everything)
#   scripts/install-deps.sh demo     what `make demo` needs
#   scripts/install-deps.sh transparency   what `make transparency` needs
#
# Looks first, so a second run takes a moment and needs neither root nor network. Installs from the
# distribution (apt); elsewhere it prints what is missing. cargo-deny is built with cargo, once, below
# the build directory. Rust itself is not installed.
set -euo pipefail

purpose=${1:-test}
case $purpose in
demo | test | transparency) ;;
*)
    echo "usage: $0 [demo|test|transparency]" >&2
    exit 64
    ;;
esac

say() { printf 'deps: %s\n' "$*"; }
die() {
    printf 'deps: %s\n' "$*" >&2
    exit 1
}

missing=() # packages
# need PACKAGES COMMAND: the packages, unless the command is there.
need() {
    command -v "$2" >/dev/null || missing+=("$1")
}

command -v cargo >/dev/null ||
    die "cargo is not there; install Rust first: https://rustup.rs" \
        "(rust-version in Cargo.toml says the oldest that will do)"

need gcc cc
[ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
# The crypto library builds with a C compiler alone on these; elsewhere it asks for more.
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
    # Real peers the tests talk to. The tests start a database and a web server of their own; that
    # the packages start one too is the distribution's custom.
    need golang-go go
    PATH="$PATH:/usr/sbin:/sbin" need nginx nginx
    PATH="$PATH:/usr/sbin:/sbin" need haproxy haproxy
    need netcat-openbsd nc
    need default-jdk-headless javac
    need musl-tools musl-gcc
    need postgresql-client psql
    command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ||
        missing+=(postgresql)
    # Programs whose TLS begins after a few words in clear.
    PATH="$PATH:/usr/sbin:/sbin" need postfix postfix
    need swaks swaks
    perl -MNet::SSLeay -e 1 2>/dev/null || missing+=(libnet-ssleay-perl)
    PATH="$PATH:/usr/sbin:/sbin" need telnetd-ssl in.telnetd
    need telnet-ssl telnet-ssl
    need s3270 s3270
    PATH="$PATH:/usr/sbin:/sbin" need vsftpd vsftpd
    need lftp lftp
    # Programs that are run with and without tacit.
    need wget wget
    need openssh-client ssh
    need redis-tools redis-cli
    need nodejs node
    need busybox-static busybox
    need iputils-ping ping
    # What configurations are imported of.
    need stunnel4 stunnel
    # The server is needed, not its service: this file keeps that from starting.
    PATH="$PATH:/usr/sbin:/sbin" need openssh-server sshd
fi

if [ "$purpose" = transparency ]; then
    # Suites of the system's Python and of Go; tornado comes by pip.
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
    # Programs that are run with and without tacit.
    PATH="$PATH:/usr/sbin:/sbin" need nginx nginx
    PATH="$PATH:/usr/sbin:/sbin" need haproxy haproxy
    need netcat-openbsd nc
    need postgresql-client psql
    need wget wget
    need nodejs node
    need hostname hostname
fi

# What checks licences, bans, sources and advisories. Optimised for its build, not for its run.
deny_version=0.20.2
tools=${CARGO_TARGET_DIR:-target}/tools
need_deny() {
    [ "$purpose" = test ] || return 0
    command -v cargo-deny >/dev/null && return
    "$tools/bin/cargo-deny" --version 2>/dev/null | grep -q " $deny_version\$" && return
    say "building cargo-deny $deny_version"
    cargo install --quiet --locked --debug --root "$tools" --target-dir "$tools/build" \
        cargo-deny --version "$deny_version" && rm -rf "$tools/build" ||
        say "cargo-deny cannot be built: what is linked will not be checked"
}
cd "$(dirname "$0")/.."

if [ ${#missing[@]} -eq 0 ]; then
    need_deny
    say "everything needed is here"
    exit 0
fi

command -v apt-get >/dev/null ||
    die "no apt-get here; install by hand what these Debian packages hold: ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
        die "not root and no sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
fi

say "installing ${missing[*]}"
case " ${missing[*]} " in
*" openssh-server "*)
    "${as_root[@]}" mkdir -p /etc/ssh
    "${as_root[@]}" touch /etc/ssh/sshd_not_to_be_run
    ;;
esac
case " ${missing[*]} " in
# Without a configuration it is not started either.
*" postfix "*)
    echo "postfix postfix/main_mailer_type select No configuration" |
        "${as_root[@]}" debconf-set-selections
    ;;
esac
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
need_deny
say "done"
