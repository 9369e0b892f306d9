# The part of test-guest.sh and test-links-guest.sh on the host: reasons to skip the test, and boots.
# $test is the name of the test.

# shellcheck source=scripts/guest/report.sh
. scripts/guest/report.sh

say() { printf '%s: %s\n' "$test" "$*"; }
skip() {
    say "skipped: $*"
    exit 0
}

# The processes of the test, which `end_started` ends.
started=()
start() {
    "$@" &
    started+=("$!")
}
end_started() {
    local pid
    for pid in ${started[@]+"${started[@]}"}; do kill "$pid" 2>/dev/null || true; done
    wait
}

# emulate NUMBER SECONDS ARGUMENT...: becomes a machine without devices, except for those of the arguments.
# One CPU: with more, QEMU's emulation is not reliable with every kernel.
emulate() {
    local boot=$1 seconds=$2
    shift 2
    exec timeout --kill-after=10 "$seconds" qemu-system-x86_64 -smp 1 -nodefaults -no-user-config \
        -display none -no-reboot -device virtio-rng-pci \
        -serial "file:$work/console-$boot" -serial "file:$work/steps-$boot" "$@"
}
# The words of the kernel's command line for it. The kernel's check of the timer fails on a busy host.
on_kernel="console=ttyS0 panic=-1 loglevel=4 no_timer_check"

# ends_early NUMBER: reports a boot that has not written `end`.
ends_early() {
    echo "FAIL  boot $1 did not come to its end; the last lines of the console:"
    indented <"$work/console-$1"
    failed=$((failed + 1))
}
