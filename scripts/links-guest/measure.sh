# The measurements of scripts/test-links-guest.sh with MEASURE=yes, which sources this file: what the guest
# transfers over its link, and over networks that its monitor emulates. The guest's CPU is emulated as well,
# so the figures compare these ways with each other only.
#
#   link     no device: programs under `tacit link init`, over vhost-device-vsock
#   passt    a network card, whose other side is passt with vhost-user
#   slirp    a network card, whose other side is QEMU's own TCP/IP stack
# shellcheck shell=bash

passt_suite=trixie
passt_dir=$cache/passt

# Builds a passt with --vhost-user, which Debian has since trixie; fails if it cannot be downloaded.
find_passt() {
    passt=$(command -v passt) && "$passt" --help 2>&1 | grep -q vhost-user && return
    passt=$passt_dir/passt
    [ ! -x "$passt" ] || return 0
    local new options
    new=$(realpath -m "$passt_dir.new")
    rm -rf "$new"
    mkdir -p "$new"/{lists/partial,cache/archives/partial}
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "http://deb.debian.org/debian $passt_suite main" >"$new/sources.list"
    options=(-qq -o "Dir::Etc::SourceList=$new/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o "Dir::State::Lists=$new/lists" -o "Dir::Cache=$new/cache" -o APT::Sandbox::User=root)
    # Only the archive of the sources is used, which apt has verified; mirrors may lack other files.
    (cd "$new" && apt-get "${options[@]}" update &&
        { apt-get "${options[@]}" --download-only source passt || compgen -G 'passt_*.orig.tar.*'; }) \
        >"$cache/passt.log" 2>&1 || return 1
    mkdir "$new/source"
    tar -C "$new/source" --strip-components=1 -xf "$new"/passt_*.orig.tar.* &&
        make -C "$new/source" passt >>"$cache/passt.log" 2>&1 || return 1
    mkdir -p "$passt_dir"
    cp "$new/source/passt" "$passt"
    rm -rf "$new"
}

# The program of the guest: prints a line for each figure.
write_measure() {
    cat >"$root/measure.sh" <<END
export PATH=/bin LC_ALL=C
if [ "\$1" = card ]; then
    mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
fi
exec >/dev/ttyS1
if [ "\$1" = card ]; then
    while read -r module; do insmod "\$module"; done </modules.list
    ip link set lo up; ip link set eth0 up
    ip address add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
    until /tacit workload connect client --connections 1 --connect $v4:8095 >/dev/null 2>&1; do sleep 1; done
fi
ftp() { curl -sS --max-time 900 -o /dev/null -w "ftp \$1 %{speed_\$1}\n" "\$2" "\$3" ftp://$v4:2121/data; }
ftp download -L -4
dd if=/dev/zero bs=1000000 count=1000 2>/dev/null | ftp upload -T -
for way in out in; do
    echo "streams \$way \$(/tacit workload stream client \$way --connections 3 --bytes 100000000 \\
        --connect $v4:8095 | sed -n 's/^rate *//p')"
done
echo "connections \$(/tacit workload connect client --connections 500 --at-once 4 --connect $v4:8095 |
    sed -n 's/^rate *//p')"
echo "end 0"
[ "\$1" != card ] || poweroff -f
END
}

# measure NUMBER NAME ARGUMENT...: boots with these devices, and prints the figures.
measure() {
    local number=$1 name=$2 line
    shift 2
    : >"$work/steps-$number"
    pack "$number"
    start emulate "$number" "$boot_max" -object memory-backend-memfd,id=memory,size=512M,share=on \
        -machine q35,memory-backend=memory -accel "$accel" -m 512 \
        -kernel "$work/vmlinuz" -initrd "$work/initramfs" "$@"
    guest=$!
    wait "$guest" || true
    while IFS= read -r line; do
        printf '%-8s %s\n' "$name" "${line%$'\r'}"
    done < <(grep -av '^end' "$work/steps-$number")
}

# measured NAME: whether MEASURE selects it.
measured() { [[ " ${MEASURE/yes/link slirp passt} " == *" $1 "* ]]; }
measure_all() {
    start "$BINARY" workload interactive server --listen "$v4:8095" >>"$work/workload.log" 2>&1
    truncate -s 1000000000 "$work/www/data"
    write_measure
    say "measuring; the CPU of the guest is emulated, so compare the ways with each other only"
    if measured link; then measure_link; fi
    of_card="rdinit=/bin/sh $on_kernel -- /measure.sh card"
    if measured slirp; then
        measure 7 slirp -netdev user,id=card -device virtio-net-pci,netdev=card,romfile= -append "$of_card"
    fi
    if measured passt; then measure_passt; fi
}
measure_link() {
    serve_link
    start_vsock measure 3
    measure 6 link -nic none -chardev "socket,id=vsock,path=$work/3.sock" \
        -device vhost-user-vsock-pci,chardev=vsock \
        -append "rdinit=/tacit $on_kernel -- link init --modules /modules.list near /bin/sh /measure.sh link"
}
measure_passt() {
    if ! find_passt; then
        say "skipped: passt with vhost-user cannot be built; $cache/passt.log has the reason"
        return
    fi
    start "$passt" --foreground --vhost-user --socket "$work/passt.sock" --address 10.0.2.15 \
        --netmask 24 --gateway 10.0.2.2 2>"$work/passt.log"
    until_true test -S "$work/passt.sock"
    # Without MSI-X, with which QEMU 7.2 crashes when it emulates the CPU.
    measure 8 passt -chardev "socket,id=card,path=$work/passt.sock" \
        -netdev vhost-user,id=card,chardev=card -device virtio-net-pci,netdev=card,romfile=,vectors=0 \
        -append "$of_card"
}
