# without_udp PROTOCOL MODE VERSION: the same policies with raw sockets, as root.
without_udp() {
    USER_OF_RUNS= OWNER_OF_RUNS=
    chown -R 0 near far
    raw_policies "$@"
}
raw_policies() {
    local near=10.99.0.1 far=10.99.0.2 side
    [ "$3" = 4 ] || { near=2001:db8:99::1 far=2001:db8:99::2; }
    sed -i "s/^peer = .*/peer = \"$far\"\nlocal = \"$near\"/" near/run.toml
    sed -i "s/^peer = .*/peer = \"$near\"\nlocal = \"$far\"/" far/run.toml
    for side in near far; do
        if [ "$1" = ah ]; then
            sed -i 's/^encryption = .*/protocol = "ah"/' $side/run.toml
            # AH has no key of a cipher.
            sed -i 2d $side/in.keys $side/out.keys
        else
            sed -i 's/^encryption/encapsulation = "none"\n&/' $side/run.toml
        fi
    done
    [ "$2" = transport ] || return 0
    sed -i 's/^inner = .*/mode = "transport"/' near/run.toml far/run.toml
    sed -i "s/^remote = .*/remote = \"$far\"/" near/run.toml
    sed -i "s/^remote = .*/remote = \"$near\"/" far/run.toml
}
