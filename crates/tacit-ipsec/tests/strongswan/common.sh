# What the scripts for both peers share: a directory, waiting, and the end of everything. A script defines
# `fail`, and `tries_max`: so often events and states are looked for, each 50 milliseconds.
set -u
PATH=$PATH:/usr/sbin:/sbin
directory=$(mktemp -d)
cd "$directory"
# tree PID: the processes below it.
tree() { local child; for child in $(pgrep -P "$1"); do tree "$child"; echo "$child"; done; }
end() {
    kill -KILL $(tree $$) 2>/dev/null
    wait 2>/dev/null
    rm -r "$directory"
}
trap end EXIT
trap 'exit 124' TERM
count() { grep -c "^$1" events; }
# expect EVENT COUNT: waits until the driver has printed the event so often.
expect() { until_true printed "$@"; }
printed() { [ "$(count "$1")" -ge "$2" ]; }
# until_true COMMAND...: waits until it succeeds.
until_true() {
    local tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt $tries_max ] || fail "not true: $*"
        sleep 0.05
    done
}
