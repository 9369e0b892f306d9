# Functions of the demonstration: print, run and check commands, and end processes. To be sourced.

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' plain=$'\e[0m'; fi

part=0
heading() {
    part=$((part + 1))
    printf '\n%s== %d. %s ==%s\n' "$bold" "$part" "$*" "$plain"
}
text() { printf '%s\n' "$@"; }
indent() { sed 's/^/    /'; }

# The command as typed in a shell.
typed() {
    local word line=''
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./:=@%+,-]* | '') line+=" '$word'" ;;
        *) line+=" $word" ;;
        esac
    done
    printf '%s' "${line# }"
}

# show COMMAND...: prints the command, runs it, prints its output, and keeps the output in $output. If
# $only is set, only matching lines are printed.
output='' status=0 only=''
show() {
    local quote="'"
    local filter=${only:+ 2>&1 | grep -E $quote$only$quote}
    printf '\n  %s$ %s%s%s\n' "$bold" "$(typed "$@")" "$filter" "$plain"
    status=0
    output=$("$@" 2>&1 </dev/null) || status=$?
    [ -z "$output" ] || grep -E -- "$only" <<<"$output" | indent || true
    only=''
}

results=()
failures=0
# expect TEXT COMMAND...: checks that the command succeeds; the text appears in the summary.
expect() {
    local what=$1
    shift
    if "$@"; then
        results+=("ok      $what")
        printf '  -> ok: %s\n' "$what"
    else
        results+=("FAILED  $what")
        failures=$((failures + 1))
        printf '  -> FAILED: %s\n' "$what"
    fi
}
says() { grep -qE -- "$1" <<<"$output"; }
succeeded() { [ "$status" -eq 0 ]; }
refused() { [ "$status" -ne 0 ] && ! says "$marker"; }

# ---------------------------------------------------------------- processes

work='' pids=()
# Runs at every exit. Ends the processes that were started here, by process id.
clean_up() {
    local pid
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    [ -n "$work" ] || return 0
    if [ -n "${TACIT_DEMO_KEEP:-}" ]; then
        echo "kept: $work"
    else
        rm -rf "$work"
    fi
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start NAME COMMAND...: runs a command in the background; output in NAME.log, process id in $started.
started=0
start() {
    local name=$1
    shift
    printf '\n  %s$ %s &%s\n' "$bold" "$(typed "$@")" "$plain"
    "$@" >"$name.log" 2>&1 </dev/null &
    started=$!
    pids+=("$started")
}

# wait_for NAME COMMAND...: waits until the command succeeds. After 10 seconds prints the log and exits.
wait_for() {
    local name=$1 try
    shift
    for ((try = 0; try < 100; try++)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "FAILED: $name is not ready after 10 seconds; its log:"
    indent <"$name.log"
    exit 1
}
