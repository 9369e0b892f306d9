#!/usr/bin/env bash
# Installs packages with apt-get without starting the servers among them.
#
#   scripts/install-packages.sh WHO PACKAGE...
#
# WHO is the command that needs them, for the messages. Prints every package before it begins.
# Needs root, or sudo. While packages are installed:
#
# - /usr/sbin/policy-rc.d refuses to start services. An existing file is restored afterwards.
# - inetd is not signalled, and /etc/inetd.conf is restored.
#
# Afterwards the services of the new packages are disabled, so that no server starts at the next boot.
# Both files are also restored after a failure, SIGINT, SIGTERM and SIGHUP; after SIGKILL, the next
# call restores them.
#
# For tests, INSTALL_ROOT is prepended to these paths.
set -euo pipefail

who=$1
shift
root=${INSTALL_ROOT:-}
policy=$root/usr/sbin/policy-rc.d
kept=$policy.before-tacit
inetd=$root/etc/inetd.conf
inetd_kept=$inetd.before-tacit
mark='Written by scripts/install-packages.sh of tacit'

say() { printf 'packages: %s\n' "$*"; }
die() {
    printf 'packages: %s\n' "$*" >&2
    exit 1
}

# Packages with a network server; each has a service of its own or an entry in inetd.conf.
is_server() {
    case $1 in
    haproxy | nginx* | openssh-server | postfix | postgresql | prometheus | slapd | stunnel4 | telnetd-ssl | vsftpd) ;;
    *) return 1 ;;
    esac
}

if [ -z "${INSTALL_PACKAGES_AGAIN:-}" ]; then
    servers=()
    for package; do is_server "$package" && servers+=("$package"); done
    say "$who needs packages that are not installed. apt-get will install them with dependencies:"
    say "    $*"
    if [ ${#servers[@]} -ne 0 ]; then
        say "These servers will be installed, but not started and not enabled:"
        say "    ${servers[*]}"
    fi
    command -v apt-get >/dev/null ||
        die "apt-get is not installed. fix: install the programs of these Debian packages: $*"
    if [ -t 0 ] && [ -t 1 ]; then
        say "Press Ctrl-C within 5 seconds to stop."
        sleep 5
    fi
    if [ "$(id -u)" -ne 0 ] && [ -z "$root" ]; then
        command -v sudo >/dev/null || die "installing needs root, and sudo is missing. fix: as root, apt-get install $*"
        exec sudo env INSTALL_PACKAGES_AGAIN=1 "$0" "$who" "$@"
    fi
fi

# Restores both files.
restore() {
    if grep -qs "$mark" "$policy"; then
        rm -f "$policy"
    fi
    if [ -e "$kept" ] || [ -L "$kept" ]; then
        mv -f "$kept" "$policy"
    fi
    if [ -e "$inetd_kept" ]; then
        mv -f "$inetd_kept" "$inetd"
    fi
}

installed() {
    # shellcheck disable=SC2016 # dpkg-query's own variables
    LC_ALL=C dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null |
        sed -n 's/^installed //p' | sort
}

# The services of a package.
services() {
    dpkg -L "$1" 2>/dev/null | sed -n \
        -e 's:^\(/usr\)\?/lib/systemd/system/\([^/@]*\.\(service\|socket\|timer\)\)$:\2:p' \
        -e 's:^/etc/init\.d/\([^/]*\)$:\1:p' | sort -u
}

disable_services() {
    local package service
    for package in $(comm -13 <(printf '%s\n' "$before") <(installed)); do
        for service in $(services "$package"); do
            case $service in
            *.*)
                command -v systemctl >/dev/null || continue
                systemctl --quiet disable "$service" >/dev/null 2>&1 || true
                ;;
            *)
                command -v update-rc.d >/dev/null || continue
                update-rc.d "$service" disable >/dev/null 2>&1 || true
                ;;
            esac
        done
    done
    # Disables the entries of new packages for inetd.
    if [ -z "$had_inetd" ] && [ -e "$inetd" ]; then
        sed -i 's/^[^#[:space:]]/#<off># &/' "$inetd"
    fi
}

# A killed call may have left its files.
restore
before=$(installed)
had_inetd=
[ -e "$inetd" ] && had_inetd=yes

finish() {
    local status=$?
    trap '' INT TERM HUP
    # Some packages may be installed even if apt-get fails.
    disable_services || true
    restore
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

if [ -e "$policy" ] || [ -L "$policy" ]; then
    mv "$policy" "$kept"
fi
if [ -n "$had_inetd" ]; then
    cp -p "$inetd" "$inetd_kept"
fi
mkdir -p "$(dirname "$policy")"
cat >"$policy" <<END
#!/bin/sh
# $mark: no service is started while packages are installed.
exit 101
END
chmod 755 "$policy"

export DEBIAN_FRONTEND=noninteractive UPDATE_INETD_FAKE_IT=1
case " $* " in
# Without a configuration postfix has no queue and no ports.
*" postfix "*)
    echo "postfix postfix/main_mailer_type select No configuration" | debconf-set-selections
    ;;
esac
apt-get update -qq
apt-get install -y -qq --no-install-recommends "$@" >/dev/null
say "installed: $*"
