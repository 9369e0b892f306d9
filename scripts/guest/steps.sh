#!/usr/bin/env bash
# The steps of scripts/test-guest.sh, in the guest, under its systemd: prints `ok` or `FAIL` for each.
# The first boot has only the guard enabled, the second the agent as well.
#
# Every word that a protected flow sends begins with `marked`; the host counts them on the wire.
set -u
cd /test
# shellcheck source=/dev/null # ports of the peer, written by test-guest.sh
. ./ports
export LC_ALL=C

v4=10.0.2.2
v6=fec0::2
host_control=/run/tacit-host/agent.sock
control=/run/tacit/agent.sock
units=(tacit.service tacit.socket tacit-host.service tacit-host-guard.service tacit-link@guest.service
    tacit-guest-link@near.service)
work=/run/steps
mkdir -p "$work"

out=$work/out
# shellcheck source=scripts/guest/report.sh
. ./report.sh

# ---------------------------------------------------------------------------------------------
# What programs see

ask() { python3 peer.py ask "$@"; }
# answers ADDRESS PORT WORD
answers() {
    local got
    got=$(ask "$@")
    echo "$got"
    [ "$got" = "answer to $3" ]
}
refused() {
    local got
    got=$(ask "$@")
    echo "$got"
    [ "$got" = ECONNREFUSED ]
}
captured() { answers $v4 "$protected" "$1" && answers $v6 "$protected" "$1"; }
all_refused() { refused $v4 "$protected" "$1" && refused $v6 "$protected" "$1"; }
unmatched_passes() { answers $v4 "$unmatched" "clear-$1"; }
# daemon_sees TEXT: the daemon gets this from now on.
daemon_sees() {
    local lines
    lines=$(wc -l </run/daemon.log)
    tail -n "+$((lines + 1))" -f /run/daemon.log --pid=$$ | timeout 300 grep -qxm1 "$1"
}
daemon_never_saw() { ! grep -n "$1" /run/daemon.log; }
cron_job() {
    local got
    got=$(systemd-run --quiet --wait --pipe --property=DynamicUser=yes \
        python3 /test/peer.py ask $v4 "$protected" marked-job)
    echo "$got"
    [ "$got" = "answer to marked-job" ]
}

# ---------------------------------------------------------------------------------------------
# What systemd sees

prop() { systemctl show --value --property "$2" "$1"; }
is_active() {
    systemctl --quiet is-active "$1" || {
        systemctl status --no-pager --lines 30 "$1"
        return 1
    }
}
units_are_well_formed() {
    local text
    text=$(systemd-analyze verify --man=no "${units[@]}" 2>&1) && [ -z "$text" ] && return
    echo "$text"
    return 1
}
guard_needs_no_mount() {
    local needed
    needed=$(systemctl show --property Requires,Requisite,BindsTo tacit-host-guard)
    echo "$needed"
    [[ $needed != *var*.mount* ]]
}
guard_came_first() {
    local guard network
    guard=$(prop tacit-host-guard ActiveEnterTimestampMonotonic)
    network=$(prop systemd-networkd ExecMainStartTimestampMonotonic)
    echo "guard at $guard us, network at $network us"
    [ "$guard" -gt 0 ] && [ "$guard" -lt "$network" ]
}
# The agent is the child of the unit's first process that is no helper.
agent_of() {
    local main pid
    main=$(prop "$1" MainPID)
    for pid in $(pgrep -P "$main"); do
        case $(cat "/proc/$pid/comm") in
        tacit-host | tacit-signer) ;;
        *) echo "$pid" ;;
        esac
    done | tail -n 1
}
restarts_above() { [ "$(prop "$1" NRestarts)" -gt "$2" ]; }
# The agent is killed; systemd starts the unit again.
killed_agent_returns() {
    local unit=$1 before pid
    before=$(prop "$unit" NRestarts)
    pid=$(agent_of "$unit")
    kill -KILL "$pid" || return 1
    until_true restarts_above "$unit" "$before" && until_true is_active "$unit"
}
killed_unit_returns() {
    local unit=$1 before
    before=$(prop "$unit" NRestarts)
    systemctl kill --signal=KILL "$unit" || return 1
    until_true restarts_above "$unit" "$before" && until_true is_active "$unit"
}
another_agent() {
    local now
    now=$(agent_of "$1")
    [ -n "$now" ] && [ "$now" != "$2" ]
}
# `tacit restart` under systemd: another agent, the same unit.
agent_restarts() {
    local unit=$1 socket=$2 main agent count
    main=$(prop "$unit" MainPID) agent=$(agent_of "$unit") count=$(prop "$unit" NRestarts)
    tacit restart --control "$socket" || return 1
    until_true another_agent "$unit" "$agent" && is_active "$unit" &&
        [ "$(prop "$unit" MainPID)" = "$main" ] && [ "$(prop "$unit" NRestarts)" = "$count" ]
}
# An upgrade of the package: the same one again.
upgrade_replaces_agent() {
    local unit=$1 main agent
    main=$(prop "$unit" MainPID) agent=$(agent_of "$unit")
    dpkg --install /test/tacit.deb || return 1
    until_true another_agent "$unit" "$agent" && is_active "$unit" &&
        [ "$(prop "$unit" MainPID)" = "$main" ]
}
fails_to_start() {
    ! systemctl start "$1" || return 1
    [ "$(prop "$1" ExecMainStatus)" = 78 ]
}
reload_is_refused() { ! systemctl reload "$1"; }
table_is_there() { nft list table inet tacit >"$work/table"; }
nothing_is_left() {
    nft list tables | grep tacit && return 1
    { ip rule && ip -6 rule; } | grep 31425 && return 1
    return 0
}
flush() { nft flush ruleset && table_is_there; }
# Since Linux 6.9 a table has an owner, and a flush by others leaves it.
tables_have_owners() { printf '6.9\n%s\n' "$(uname -r)" | sort --check=quiet --version-sort; }
# Older kernels: until the helper installs the table again, programs send in clear. The daemon waits.
flush_is_mended() {
    systemctl kill --signal=STOP daemon || return 1
    nft flush ruleset && until_true table_is_there
    local status=$?
    systemctl kill --signal=CONT daemon && return "$status"
}

# ---------------------------------------------------------------------------------------------
# Connections that live through a step

# opens NAME ADDRESS PORT WORD: the word is sent when `continues` is called.
opens() {
    rm -f "$work/$1"*
    python3 peer.py hold "$2" "$3" "$4" "$work/$1" >"$work/$1.out" 2>&1 &
    until_true test -e "$work/$1.open"
}
continues() {
    touch "$work/$1"
    until_true test -s "$work/$1.out" && cat "$work/$1.out" && grep -qx "answer to $2" "$work/$1.out"
}

# ---------------------------------------------------------------------------------------------
# Policies

deny_also() {
    cp /etc/tacit/host.toml "$work/host.toml"
    cat >>/etc/tacit/host.toml <<END

[[rule]]
name = "denied"
direction = "outbound"
remote = "$v4"
remote-ports = $unmatched
deny = true
END
}
# Without the daemon, which would send in clear meanwhile.
audit_and_enforce() {
    systemctl kill --signal=STOP daemon || return 1
    sed -i 's/^unmatched = .*/&\nmode = "audit"/' /etc/tacit/host.toml
    systemctl reload tacit-host
    local audit=$?
    sed -i '/^mode = /d' /etc/tacit/host.toml
    systemctl reload tacit-host && systemctl kill --signal=CONT daemon && return "$audit"
}
spoil() {
    cp "$1" "$work/spoilt"
    echo nonsense >>"$1"
}
mend() { cat "$work/spoilt" >"$1"; }

# ---------------------------------------------------------------------------------------------

guard_steps() {
    check "systemd-analyze verify finds nothing in ${units[*]}" units_are_well_formed
    check "the guard is active" is_active tacit-host-guard
    check "it was active before the network began" guard_came_first
    check "it needs no mount of /var" guard_needs_no_mount
    check "what the policy captures is refused before the agent runs" all_refused marked-guard
    check "the daemon of the boot was refused as well" daemon_sees ECONNREFUSED
    check "and has got no answer" daemon_never_saw answer
    check "what no rule matches passes" unmatched_passes guard
}

host_steps() {
    check "systemctl start tacit-host" systemctl start tacit-host
    check "new programs are protected" captured marked-started
    check "the daemon is protected, and was not restarted" daemon_sees "answer to marked-daemon"
    check "a job of another user is protected" cron_job
    if tables_have_owners; then
        check "nft flush ruleset by another program leaves the table" flush
    else
        check "the table is there again after nft flush ruleset by another program" flush_is_mended
    fi
    check "and the protection" captured marked-flushed

    check "systemctl restart systemd-networkd" systemctl restart systemd-networkd
    check "leaves the protection" captured marked-network

    check "SIGKILL of the agent: systemd starts it again" killed_agent_returns tacit-host
    check "new programs are protected" captured marked-killed
    check "SIGKILL of all processes of the unit: systemd starts it again" \
        killed_unit_returns tacit-host
    check "new programs are protected" captured marked-all-killed

    check "a connection is open" opens held $v4 "$protected" marked-held
    check "tacit restart: another agent, the same unit" agent_restarts tacit-host $host_control
    check "the open connection continues" continues held marked-held
    check "new programs are protected" captured marked-restarted

    check "a connection is open" opens upgraded $v4 "$protected" marked-upgraded
    check "an upgrade of the package: another agent, the same unit" upgrade_replaces_agent tacit-host
    check "the open connection continues" continues upgraded marked-upgraded
    check "new programs are protected" captured marked-after-upgrade

    deny_also
    check "systemctl reload with one more rule" systemctl reload tacit-host
    check "what it denies is refused" refused $v4 "$unmatched" clear-denied
    cat "$work/host.toml" >/etc/tacit/host.toml
    check "systemctl reload without it" systemctl reload tacit-host
    check "what it denied passes" unmatched_passes reloaded
    check "reloads change the mode to audit, and back to enforce" audit_and_enforce
    check "new programs are protected" captured marked-audited
    spoil /etc/tacit/host.toml
    check "systemctl reload fails with a policy that has an error" reload_is_refused tacit-host
    check "new programs are protected" captured marked-not-reloaded

    check "systemctl stop tacit-host" systemctl stop tacit-host
    check "what the policy captures is refused" all_refused marked-stopped
    check "what no rule matches passes" unmatched_passes stopped
    check "it does not start with a policy that has an error" fails_to_start tacit-host
    check "what the policy captured is refused" all_refused marked-wrong-policy
    mend /etc/tacit/host.toml
    systemctl reset-failed tacit-host
    check "systemctl start tacit-host" systemctl start tacit-host
    check "new programs are protected" captured marked-started-again
    check "the daemon is protected" daemon_sees "answer to marked-daemon"
}

# has_nftset: whether systemd writes control groups into nftables rules.
has_nftset() { [ "$(systemctl --version | sed -n '1s/^systemd \([0-9]*\).*/\1/p')" -ge 255 ]; }
# Rules for units in place of the one for all programs.
unit_rules() {
    cp /etc/tacit/host.toml "$work/host.toml"
    cat >>/etc/tacit/host.toml <<END

[[rule]]
name = "of-units"
direction = "outbound"
remote = ["$v4", "$v6"]
remote-ports = $unmatched
unit = "probe.service"
deny = true
[[rule]]
name = "others"
direction = "outbound"
remote = ["$v4", "$v6"]
permit = true
END
    sed -i '/^name = "protected"/a unit = ["probe.service", "daemon.service"]' /etc/tacit/host.toml
    cat >/etc/systemd/system/probe.service <<END
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'cd /test; for port in $protected $unmatched; do \
    python3 peer.py ask $v4 \$\$port marked-unit; done >/run/probe 2>&1'
END
    systemctl daemon-reload
}
check_rejects_unit() {
    local text
    text=$(tacit check /etc/tacit/host.toml 2>&1)
    local status=$?
    echo "$text"
    [ $status = 78 ] && grep -q 'unit-not-set' <<<"$text"
}
# probes COUNT: each start of the unit is protected and denied from its first packet on.
probes() {
    local start
    for start in $(seq "$1"); do
        systemctl start probe || return 1
        printf 'answer to marked-unit\nECONNREFUSED\n' | diff - /run/probe || return 1
    done
}
units_return() { flush && until_true nft list table inet tacit_units; }
unit_steps() {
    unit_rules
    check "tacit check rejects rules for units without drop-ins" check_rejects_unit
    if ! has_nftset; then
        check "no drop-in is written for a systemd that is too old" refuses_drop_ins
        cat "$work/host.toml" >/etc/tacit/host.toml
        return
    fi
    check "tacit agent --host --drop-ins" \
        tacit agent --host --drop-ins /etc/systemd/system --policy /etc/tacit/host.toml
    check "systemctl daemon-reload" systemctl daemon-reload
    check "tacit check accepts the policy" tacit check /etc/tacit/host.toml
    check "systemctl reload with rules for units" systemctl reload tacit-host
    check "a unit is protected in each of 20 starts" probes 20
    check "a unit that ran before is protected" daemon_sees "answer to marked-daemon"
    check "other programs pass" unmatched_passes units
    check "the agent has not seen them" seen_by_agent others 0
    check "nft flush ruleset: the table of units returns" units_return
    check "units are protected all the same" probes 3
    check "SIGKILL of the agent: systemd starts it again" killed_agent_returns tacit-host
    check "units are protected" probes 3
    check "tacit restart: another agent, the same unit" agent_restarts tacit-host $host_control
    check "units are protected" probes 3
    cat "$work/host.toml" >/etc/tacit/host.toml
    rm -r /etc/systemd/system/*.service.d/50-tacit.conf
    systemctl daemon-reload
    check "systemctl reload without rules for units" systemctl reload tacit-host
    check "new programs are protected" captured marked-no-units
}
refuses_drop_ins() {
    ! tacit agent --host --drop-ins /run/drop-ins --policy /etc/tacit/host.toml
}
# seen_by_agent RULE COUNT: flows of a rule that the agent has decided.
seen_by_agent() {
    tacit show rules --json --control $host_control >"$work/rules.json" &&
        python3 -c 'import json, sys
rules = json.load(open(sys.argv[1]))["rules"]
hits = [rule["hits"] for rule in rules if rule["name"] == sys.argv[2]]
print(hits)
sys.exit(hits != [int(sys.argv[3])])' "$work/rules.json" "$1" "$2"
}

removal_steps() {
    check "stop the daemon" systemctl stop daemon
    check "systemctl disable --now tacit-host tacit-host-guard" \
        systemctl disable --now tacit-host tacit-host-guard
    check "what the policy captures is refused" all_refused marked-disabled
    check "tacit agent --host --remove" tacit agent --host --remove
    check "no table and no routing rule is left" nothing_is_left
    # In clear, which the host sees: without it, the count of zero would prove nothing.
    ask $v4 "$protected" clear-removed >/dev/null
}

service_steps() {
    check "systemctl start tacit" systemctl start tacit
    check "its rule relays" answers 127.0.0.1 7001 marked-service
    check "systemctl reload tacit" systemctl reload tacit
    spoil /etc/tacit/policy.toml
    check "systemctl reload fails with a policy that has an error" reload_is_refused tacit
    mend /etc/tacit/policy.toml
    check "its rule relays" answers 127.0.0.1 7001 marked-service
    check "a connection is open" opens service 127.0.0.1 7001 marked-service-held
    check "tacit restart: another agent, the same unit" agent_restarts tacit $control
    check "the open connection continues" continues service marked-service-held
    check "systemctl restart tacit" systemctl restart tacit
    check "its rule relays" answers 127.0.0.1 7001 marked-service
    check "SIGKILL of the agent: systemd starts it again" killed_agent_returns tacit
    check "its rule relays" answers 127.0.0.1 7001 marked-service
    check "systemctl stop tacit" systemctl stop tacit
}

# As docs/links.md: the side with the network, and a side without, which is a namespace here.
link_files() {
    mkdir -p /etc/tacit/links-available /etc/tacit/links-enabled
    cat >/etc/tacit/links-available/guest.toml <<END
version = 1
[link.guest]
[[rule]]
name = "out"
link = "guest"
direction = "outbound"
remote = "$v4"
remote-ports = $unmatched
permit = true
END
    printf 'version = 1\n[link.near]\nconnect = "unix:/run/tacit/links/guest.sock"\n' \
        >/etc/tacit/links-available/near.toml
    cat >/etc/tacit/run.toml <<END
version = 1
[[rule]]
name = "out"
direction = "outbound"
remote = "$v4"
remote-ports = $unmatched
permit = true
END
    ln -sf ../links-available/{guest,near}.toml /etc/tacit/links-enabled/
}
# through LINK WORD: a program in a namespace without a network.
through() {
    local got
    [ -e /run/netns/empty ] || ip netns add empty || return 1
    got=$(ip netns exec empty tacit run --link "$1" --policy /etc/tacit/run.toml -- \
        python3 peer.py ask $v4 "$unmatched" "$2")
    echo "$got"
    [ "$got" = "answer to $2" ]
}
# status_of LINK WORD
status_of() { tacit link status "$1" | tee -a "$out" | grep -qx "status *$2"; }
link_steps() {
    link_files
    check "systemctl enable --now tacit-link@guest" systemctl enable --now tacit-link@guest
    check "a program in a namespace without a network uses it" until_true through guest clear-link
    check "systemctl enable --now tacit-guest-link@near" systemctl enable --now tacit-guest-link@near
    check "a program uses the link between two servers" until_true through near clear-near
    check "tacit link status shows both" tacit link status
    check "SIGKILL of tacit-link@guest: systemd starts it again" killed_unit_returns tacit-link@guest
    check "programs use both links again" until_true through guest clear-killed
    check "also between two servers" until_true through near clear-killed
    check "SIGKILL of tacit-guest-link@near: systemd starts it again" \
        killed_unit_returns tacit-guest-link@near
    check "programs use it again" until_true through near clear-near-killed
    sed -i 's/permit = true/deny = true/' /etc/tacit/links-available/guest.toml
    check "systemctl reload with a rule that denies" systemctl reload tacit-link@guest
    check "a program is refused" until_true link_refuses
    sed -i 's/deny = true/permit = true/' /etc/tacit/links-available/guest.toml
    check "systemctl stop tacit-link@guest" systemctl stop tacit-link@guest
    check "tacit link status shows that" status_of guest stopped
    check "systemctl start tacit-link@guest" systemctl start tacit-link@guest
    check "programs use it again" until_true through guest clear-started
}
link_refuses() { ! through guest clear-denied; }
booted_link_steps() {
    check "both links are served after a boot" is_active tacit-link@guest
    check "and that of the side without a network" is_active tacit-guest-link@near
    check "a program uses the first" until_true through guest clear-booted
    check "a program uses the second" until_true through near clear-booted
}

second_boot_steps() {
    check "guard and agent are active after a boot" is_active tacit-host-guard
    check "the agent is active" is_active tacit-host
    check "the guard was active before the network began" guard_came_first
    check "the daemon is protected" daemon_sees "answer to marked-daemon"
    check "new programs are protected" captured marked-booted
    booted_link_steps
    check "stop the daemon" systemctl stop daemon
    check "dpkg --remove tacit" dpkg --remove tacit
    check "no table and no routing rule is left" nothing_is_left
}

# shellcheck disable=SC1091 # of the guest
. /etc/os-release
echo "info  $PRETTY_NAME, $(systemctl --version | head -n 1), Linux $(uname -r)"
if [ ! -e /var/lib/first-boot ]; then
    touch /var/lib/first-boot
    if [ "$part" = links ]; then
        link_steps
    else
        guard_steps
        host_steps
        unit_steps
        removal_steps
        service_steps
        link_steps
    fi
    check "systemctl enable tacit-host tacit-host-guard" systemctl enable tacit-host tacit-host-guard
else
    second_boot_steps
fi
echo "end $failed"
sync
systemctl --no-block poweroff
