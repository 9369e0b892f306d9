#!/usr/bin/env bash
# Tests the Debian package in a minimal Debian: installation, upgrade during an open connection,
# removal and purge. `make test-package` builds the program first.
#
# debootstrap creates the Debian root once, of the host's release; an archive of it is kept in
# target/package. It is used as a chroot in separate mount, process and network namespaces; nothing is
# installed on the host. Prints a line for each step, `ok` or `FAIL`, and exits with 1 if one fails.
# If it cannot run, it prints `skipped` with the reason, and exits with 0.
#
# The root has no systemd, so the test starts the agent as the unit does: as the user tacit, with its
# control socket in /run/tacit. BINARY=FILE selects a program other than the release build.
set -euo pipefail

port_program=7001  # the client's connection, in clear
port_tls=7002      # the agent to itself, with TLS
port_server=7003   # the server, in clear
block=1000000      # bytes, before and after the upgrade

failed=0
ok() { printf 'ok    %s\n' "$*"; }
fail() {
    printf 'FAIL  %s\n' "$*"
    failed=$((failed + 1))
}
# check TEXT COMMAND...: a step, which passes if the command succeeds.
check() {
    local text=$1
    shift
    if "$@" >"$work/out" 2>&1; then
        ok "$text"
    else
        fail "$text"
        sed 's/^/        /' "$work/out"
    fi
}

# ---------------------------------------------------------------------------------------------
# Outside: packages and root

outside() {
    cd "$(dirname "$0")/.."
    skip() {
        echo "skipped: $*"
        exit 0
    }
    [ "$(id -u)" -eq 0 ] || skip "a chroot needs root"
    local program
    for program in debootstrap dpkg-deb unshare ip; do
        command -v "$program" >/dev/null ||
            skip "$program is not installed. fix: apt install debootstrap dpkg util-linux iproute2"
    done
    unshare --mount --pid --fork --net true 2>/dev/null || skip "this host does not allow namespaces"
    local suite
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    [ -e "/usr/share/debootstrap/scripts/$suite" ] || skip "debootstrap does not know '$suite'"

    local target=${CARGO_TARGET_DIR:-target}
    export BINARY=${BINARY:-$target/release/tacit}
    local out=$target/package/test
    local archive=$target/package/root-$suite.tar
    mkdir -p "$out"
    rm -f "$out"/*

    if [ ! -e "$archive" ]; then
        echo "test-package: creating a minimal $suite"
        local new
        new=$(mktemp -d "$target/package/new-root.XXXXXX")
        local log=$target/package/debootstrap.log
        if ! debootstrap --variant=minbase "$suite" "$new" >"$log" 2>&1; then
            rm -rf --one-file-system "$new"
            skip "debootstrap failed (no network?): $log"
        fi
        chmod 755 "$new"
        tar -C "$new" --one-file-system -cf "$archive.new" .
        mv "$archive.new" "$archive"
        rm -rf --one-file-system "$new"
    fi

    local version
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    echo "test-package: building the packages $version and $version+next"
    OUT=$out VERSION=$version ./scripts/package.sh >/dev/null
    OUT=$out VERSION=$version+next ./scripts/package.sh >/dev/null

    local top
    top=$(mktemp -d "$(pwd)/$target/package/test-root.XXXXXX" 2>/dev/null ||
        mktemp -d "$target/package/test-root.XXXXXX")
    # shellcheck disable=SC2064 # this name, now
    trap "rm -rf --one-file-system '$top'" EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    mkdir "$top/root"
    tar -C "$top/root" -xf "$archive"
    cp "$out"/tacit_*.deb "$top/"
    unshare --mount --pid --fork --kill-child --net --ipc --uts \
        "$(pwd)/scripts/test-package.sh" --inside "$top" "$version"
}

# ---------------------------------------------------------------------------------------------
# Inside: the only processes are those of this test

in_root() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
        chroot "$root" "$@"
}

# Every file except those of the package manager, and the accounts.
state() {
    (
        cd "$root"
        find . -xdev \( -path ./proc -o -path ./dev -o -path ./deb -o -path ./var/lib/dpkg \
            -o -path ./var/cache/debconf -o -path ./var/log/dpkg.log \
            -o -path './etc/*-' -o -path ./etc/.pwd.lock -o -path ./run/adduser \) -prune \
            -o -printf '%y %m %U:%G %p %l\n' | sort
        sort etc/passwd etc/group
    )
}

prepare_root() {
    mount --make-rprivate /
    mount -t proc proc /proc
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    mknod -m 666 "$root/dev/null" c 1 3
    mknod -m 666 "$root/dev/zero" c 1 5
    mknod -m 666 "$root/dev/random" c 1 8
    mknod -m 666 "$root/dev/urandom" c 1 9
    ip link set lo up
    mkdir "$root/deb"
    mount -t tmpfs tmpfs "$root/deb"
    cp "$top"/*.deb "$root/deb/"
}

# Processes of tacit in the root; the newest is the last.
agents() {
    local process
    for process in /proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in
        */usr/bin/tacit*) echo "${process#/proc/}" ;;
        esac
    done | sort -n
}

install_package() {
    in_root dpkg --install "/deb/tacit_$1_$architecture.deb" >"$work/out.install" 2>&1 || {
        cat "$work/out.install"
        return 1
    }
}

tacit() { in_root tacit "$@"; }

control=/run/tacit/agent.sock
answers() { tacit show limits --control "$control" >/dev/null 2>&1; }
started() {
    tacit show metrics --control "$control" | sed -n 's/^process_start_time_seconds //p'
}

write_policy() {
    cat >"$root/etc/tacit/policy.toml" <<END
version = 1

[identity.server]
cert = "localhost.pem"
key = "localhost.key"

[trust.test]
ca = "ca.pem"

[[rule]]
name = "out"
log = true
listen = "127.0.0.1:$port_program"
connect = "127.0.0.1:$port_tls"
tls = { role = "client", trust = "test" }

[[rule]]
name = "in"
listen = "127.0.0.1:$port_tls"
connect = "127.0.0.1:$port_server"
tls = { role = "server", identity = "server", client-cert = "none" }
END
}

make_certificates() {
    tacit ca init --dir /etc/tacit && tacit ca issue --dir /etc/tacit localhost --san 127.0.0.1 &&
        in_root chown -R tacit:tacit /etc/tacit
}

start_agent() {
    in_root install -d -o tacit -g tacit -m 755 /run/tacit
    in_root install -d -o tacit -g tacit -m 750 /var/log/tacit
    in_root setpriv --reuid=tacit --regid=tacit --clear-groups \
        tacit agent --policy /etc/tacit/policy.toml --control "$control" \
        --audit /var/log/tacit/audit.log >"$work/agent.log" 2>&1 </dev/null &
    for _ in {1..100}; do
        if answers; then return 0; fi
        sleep 0.1
    done
    cat "$work/agent.log"
    return 1
}

start_echo_server() {
    cat >"$root/deb/echo.pl" <<'END'
use IO::Socket::INET;
my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 9)
    or die "listen: $!";
$SIG{CHLD} = 'IGNORE';
while (my $socket = $listener->accept) {
    next if fork;
    while (sysread($socket, my $bytes, 65536)) {
        my $at = 0;
        while ($at < length $bytes) { $at += syswrite($socket, $bytes, 65536, $at) // exit 1 }
    }
    exit 0;
}
END
    in_root perl /deb/echo.pl "$port_server" &
    for _ in {1..50}; do
        if (exec 9<>"/dev/tcp/127.0.0.1/$port_server") 2>/dev/null; then return 0; fi
        sleep 0.1
    done
    return 1
}

# echoes NUMBER: sends a block of random bytes on this descriptor and compares the reply.
echoes() {
    local descriptor=$1
    head -c "$block" /dev/urandom >"$work/sent"
    timeout 60 cat "$work/sent" >&"$descriptor" &
    local writer=$!
    timeout 60 head -c "$block" <&"$descriptor" >"$work/back"
    wait "$writer" && cmp "$work/sent" "$work/back"
}

new_connection_echoes() {
    exec 8<>"/dev/tcp/127.0.0.1/$port_program" && echoes 8 && exec 8>&-
}

manual_pages_are_there() {
    local page
    for page in man1/tacit.1 man1/tacit-run.1 man5/tacit.toml.5 man7/tacit-messages.7; do
        gzip -dc "$root/usr/share/man/$page.gz" >"$work/page" &&
            grep -qi '^\.\(Dt\|TH\) tacit' "$work/page" || return 1
    done
}

completions_are_there() {
    in_root bash -c '. /usr/share/bash-completion/completions/tacit && complete -p tacit' &&
        grep -q '^#compdef tacit' "$root/usr/share/zsh/vendor-completions/_tacit" &&
        grep -q '^complete -c tacit' "$root/usr/share/fish/vendor_completions.d/tacit.fish"
}

nothing_runs() { [ -z "$(agents)" ] && [ ! -e "$root$control" ]; }

is_gone() {
    local path
    for path; do
        if [ -e "$root$path" ]; then
            echo "$path still exists"
            return 1
        fi
    done
}

open_connection() { exec 7<>"/dev/tcp/127.0.0.1/$port_program"; }
answered_by_another() { [ -n "$(started)" ] && [ "$(started)" != "$1" ]; }
# all_run PROCESS...: whether these processes of the previous agent run.
all_run() {
    local process
    [ $# -ne 0 ] || return 1
    for process; do [ -e "/proc/$process/exe" ] || return 1; done
}
# Whether only the supervisor, which is the first, still runs.
only_supervisor_runs() {
    local process
    [ $# -ne 0 ] || return 1
    for _ in {1..100}; do
        for process in "${@:2}"; do
            if [ -e "/proc/$process/exe" ]; then
                sleep 0.1
                continue 2
            fi
        done
        [ -e "/proc/$1/exe" ]
        return
    done
    return 1
}
stop_agent() {
    kill -TERM "$(agents | head -n 1)" || return 1
    for _ in {1..100}; do
        if nothing_runs; then return 0; fi
        sleep 0.1
    done
    return 1
}
operators_files_stay() {
    [ -e "$root/etc/tacit/policy.toml" ] && in_root getent passwd tacit
}
install_and_purge() { install_package "$version" && in_root dpkg --purge tacit; }
same_as_before() {
    state >"$work/after"
    diff "$work/before" "$work/after"
}
bytes_counted() {
    for _ in {1..50}; do
        if grep -q " closed .* bytes-in=$1 bytes-out=$1 end=closed" "$work/agent.log"; then
            return 0
        fi
        sleep 0.1
    done
    cat "$work/agent.log"
    return 1
}

inside() {
    top=$1 version=$2
    root=$top/root
    work=$top/work
    mkdir "$work"
    architecture=$(dpkg --print-architecture)
    prepare_root
    state >"$work/before"

    trap 'echo "test-package: interrupted"' EXIT
    check "install $version" install_package "$version"
    check "the program runs: $(tacit --version 2>&1)" tacit --version
    check "the manual pages are installed" manual_pages_are_there
    check "the completions are installed" completions_are_there
    check "the unit starts /usr/bin/tacit" \
        grep -q '^ExecStart=/usr/bin/tacit agent' "$root/usr/lib/systemd/system/tacit.service"
    check "the users exist" in_root getent passwd tacit tacit-host
    check "the installation started nothing" nothing_runs

    check "tacit ca issues certificates" make_certificates
    write_policy
    check "the policy is valid" tacit check /etc/tacit/policy.toml
    check "a server starts" start_echo_server
    check "an agent starts" start_agent
    check "a connection opens" open_connection
    check "it relays $block bytes in each direction with TLS" echoes 7
    local first before
    first=$(started) || true
    before=$(agents)

    check "upgrade to $version+next" install_package "$version+next"
    check "the upgrade reports an agent of the new version" \
        grep -q 'no connection was cut' "$work/out.install"
    check "a new agent answers" answered_by_another "$first"
    # shellcheck disable=SC2086 # one word for each process
    check "the previous agent still runs, with its connection" all_run $before
    check "the connection relays $block bytes more" echoes 7
    check "a new connection relays $block bytes" new_connection_echoes
    exec 7>&-
    # shellcheck disable=SC2086
    check "the previous agent ends with its last connection" only_supervisor_runs $before
    check "it logged $((2 * block)) bytes in each direction" bytes_counted $((2 * block))

    first=$(started) || true
    echo nonsense >"$root/etc/tacit/policy.toml"
    check "an upgrade with an invalid policy succeeds" install_package "$version+next"
    check "it reports that the previous agent keeps running" \
        grep -q 'the previous agent keeps running' "$work/out.install"
    check "that agent answers" test "$(started)" = "$first"
    check "a new connection relays $block bytes" new_connection_echoes

    check "stop the agent" stop_agent
    check "remove" in_root dpkg --remove tacit
    check "program, manual and completions are gone" is_gone /usr/bin/tacit /usr/share/tacit \
        /usr/share/man/man1/tacit.1.gz /usr/share/bash-completion/completions/tacit \
        /usr/lib/systemd/system/tacit.service
    check "/etc/tacit stays" test -e "$root/etc/tacit/policy.toml"
    check "install again" install_package "$version+next"
    check "purge" in_root dpkg --purge tacit
    check "purge keeps the operator's files and their owner" operators_files_stay
    check "purge removes logs and sockets" is_gone /var/log/tacit /run/tacit
    check "the removal that the package describes succeeds" \
        in_root sh -c 'rm -r /etc/tacit && userdel tacit && userdel tacit-host'
    check "nothing is left" same_as_before
    check "install and purge without a policy" install_and_purge
    check "nothing is left, and no user" same_as_before

    trap - EXIT
    if [ "$failed" -ne 0 ]; then
        echo "test-package: $failed steps FAILED"
        exit 1
    fi
    echo "test-package: all steps ok"
}

if [ "${1:-}" = --inside ]; then
    inside "$2" "$3"
else
    outside
fi
