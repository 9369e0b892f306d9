# Waits for processes and ends them. A script defines `fail`, and `tries_max`: so often a state is looked for,
# each 50 milliseconds.
# tree PID: the processes below it.
tree() { local child; for child in $(pgrep -P "$1"); do tree "$child"; echo "$child"; done; }
# Ends everything, also what a test waits for, is stopped, or has started processes of its own.
end_processes() {
    kill -KILL $(tree $$) 2>/dev/null
    wait 2>/dev/null
}
# A script that takes too long ends with its processes.
trap 'exit 124' TERM
# until_true COMMAND...: waits until it succeeds.
until_true() {
    local tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt $tries_max ] || fail "not true: $*"
        sleep 0.05
    done
}
