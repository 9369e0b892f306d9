#!/usr/bin/env bash
# Installs tacit below a prefix, or uninstalls it. Used by `make install` and `make package`;
# docs/install.md describes both.
#
#   scripts/install.sh install      copies the files
#   scripts/install.sh uninstall    removes those files, and tacit's own empty directories
#   scripts/install.sh list         prints their paths
#
# Variables, all optional:
#   PREFIX=/usr/local   the path in units and in the AppArmor profile
#   DESTDIR=            prepended to every path, for packages
#   BINARY=FILE         the program; default target/release/tacit
#   UNITDIR, SYSUSERSDIR, MANDIR, ZSHDIR   directories of these files
#   APPARMORDIR         additional directory for the AppArmor profile, which is always installed in
#                       share/tacit/apparmor; default /etc/apparmor.d if AppArmor here supports it
set -euo pipefail

verb=${1:-}
caller=$PWD
cd "$(dirname "$0")/.."

die() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

PREFIX=${PREFIX:-/usr/local}
case $PREFIX in
*[[:space:]\|]*) die "PREFIX is $PREFIX; it must not contain spaces or |" ;;
/*) PREFIX=${PREFIX%/} ;;
*) die "PREFIX is $PREFIX; it must begin with /" ;;
esac
DESTDIR=${DESTDIR:-}
BINARY=${BINARY:-${CARGO_TARGET_DIR:-target}/release/tacit}
share=$PREFIX/share
doc=$share/doc/tacit
UNITDIR=${UNITDIR:-$PREFIX/lib/systemd/system}
SYSUSERSDIR=${SYSUSERSDIR:-$PREFIX/lib/sysusers.d}
MANDIR=${MANDIR:-$share/man}
ZSHDIR=${ZSHDIR:-$share/zsh/site-functions}
# `userns` in a profile needs AppArmor 4; an older one rejects the whole file.
if [ -z "${APPARMORDIR+set}" ]; then
    APPARMORDIR=
    if [ -z "$DESTDIR" ] && [ -e /etc/apparmor.d/abi/4.0 ]; then APPARMORDIR=/etc/apparmor.d; fi
fi

case $DESTDIR in
"" | /*) ;;
*) DESTDIR=$caller/$DESTDIR ;;
esac

# Every file: its kind, its source, and its destination.
files() {
    local page
    echo "program $BINARY $PREFIX/bin/tacit"
    echo "file docs/tacit.1 $MANDIR/man1/tacit.1"
    echo "file docs/tacit-run.1 $MANDIR/man1/tacit-run.1"
    echo "file docs/tacit.toml.5 $MANDIR/man5/tacit.toml.5"
    echo "file docs/tacit-messages.7 $MANDIR/man7/tacit-messages.7"
    echo "completions bash $share/bash-completion/completions/tacit"
    echo "completions zsh $ZSHDIR/_tacit"
    echo "completions fish $share/fish/vendor_completions.d/tacit.fish"
    echo "paths etc/tacit.service $UNITDIR/tacit.service"
    echo "paths etc/tacit.socket $UNITDIR/tacit.socket"
    echo "paths etc/tacit-host.service $UNITDIR/tacit-host.service"
    echo "paths etc/tacit-host-guard.service $UNITDIR/tacit-host-guard.service"
    echo "paths etc/tacit-link@.service $UNITDIR/tacit-link@.service"
    echo "paths etc/tacit-guest-link@.service $UNITDIR/tacit-guest-link@.service"
    echo "file etc/tacit.sysusers $SYSUSERSDIR/tacit.conf"
    echo "profile etc/apparmor/tacit $share/tacit/apparmor/tacit"
    [ -z "$APPARMORDIR" ] || echo "profile etc/apparmor/tacit $APPARMORDIR/tacit"
    echo "file etc/policy.toml $doc/examples/policy.toml"
    for page in etc/grafana/*.json etc/prometheus/*.yml; do
        [ ! -e "$page" ] || echo "file $page $doc/examples/${page#etc/}"
    done
    for page in README.md SECURITY.md CHANGELOG.md LICENSE docs/*.md; do
        echo "file $page $doc/$page"
    done
}

# The same list as paths.
targets() {
    files | while read -r _ _ target; do echo "$target"; done
}

# The directories that contain only tacit's files, deepest first.
directories() {
    printf '%s\n' "$doc/docs" "$doc/examples/grafana" "$doc/examples/prometheus" "$doc/examples" \
        "$doc" "$share/tacit/apparmor" "$share/tacit"
}

# Units and profile contain /usr/local, which is replaced by the prefix.
with_prefix() {
    sed "s|/usr/local/bin/tacit|$PREFIX/bin/tacit|g" "$1"
}

install_one() {
    local kind=$1 source=$2 target=$DESTDIR$3 mode=644
    [ "$kind" != program ] || mode=755
    mkdir -p "$(dirname "$target")"
    # Writes a new file and renames it, so that running processes keep the old one.
    local new=$target.new
    case $kind in
    program)
        if command -v "${STRIP:-strip}" >/dev/null; then
            "${STRIP:-strip}" -o "$new" "$source"
        else
            echo "install: strip is not installed (package binutils): the program keeps its symbols"
            cp "$source" "$new"
        fi
        ;;
    completions) "$BINARY" completions "$source" >"$new" ;;
    paths) with_prefix "$source" >"$new" ;;
    profile)
        sed "s|^profile tacit [^ ]*|profile tacit $PREFIX/bin/tacit|" "$source" >"$new"
        ;;
    *) cp "$source" "$new" ;;
    esac
    chmod "$mode" "$new"
    mv -f "$new" "$target"
}

case $verb in
install)
    [ -x "$BINARY" ] || die "$BINARY does not exist. fix: make build"
    umask 022
    files | while read -r kind source target; do install_one "$kind" "$source" "$target"; done
    echo "installed tacit below $DESTDIR$PREFIX: $(targets | wc -l) files"
    if [ -z "$DESTDIR" ]; then
        echo "To run the agent as a service: docs/install.md, or $doc/docs/install.md"
        case $UNITDIR in
        /etc/* | /usr/lib/* | /usr/local/lib/* | /lib/*) ;;
        *) echo "systemd does not read $UNITDIR: run systemctl link $UNITDIR/tacit.service" ;;
        esac
    fi
    ;;
uninstall)
    targets | while read -r target; do rm -f "$DESTDIR$target"; done
    directories | while read -r directory; do
        if [ -d "$DESTDIR$directory" ]; then
            rmdir --ignore-fail-on-non-empty "$DESTDIR$directory"
        fi
    done
    echo "removed tacit below $DESTDIR$PREFIX; kept /etc/tacit, /var/log/tacit and the user tacit"
    ;;
list) targets ;;
*)
    echo "usage: $0 install|uninstall|list" >&2
    exit 64
    ;;
esac
