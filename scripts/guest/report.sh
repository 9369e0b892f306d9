# Reports the steps of a test: a line for each, `ok` or `FAIL`, with the output of a command that failed.
# Sourced by test-guest.sh, test-links-guest.sh, and the steps of both guests, of which one has only
# busybox; so it is written for sh. $out is the file for the output of a command, $failed counts.
# shellcheck shell=sh

failed=0

# check TEXT COMMAND...: passes if the command succeeds.
check() {
    check_text=$1
    shift
    if "$@" >"$out" 2>&1; then
        echo "ok    $check_text"
    else
        echo "FAIL  $check_text"
        failed=$((failed + 1))
        indented <"$out"
    fi
}
indented() { tail -n 40 | sed 's/^/        /'; }

# until_true COMMAND...: waits for something that happens in a moment, slowly where it is emulated.
until_true() {
    try=0
    while [ $try -lt 1000 ]; do
        if "$@" >/dev/null 2>&1; then return 0; fi
        try=$((try + 1))
        sleep 0.2
    done
    echo "did not happen: $*"
    "$@"
    return 1
}

# is TEXT COMMAND...: whether the command prints this.
is() {
    expected=$1
    shift
    got=$("$@" 2>&1)
    echo "$got"
    [ "$got" = "$expected" ]
}
