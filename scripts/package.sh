#!/usr/bin/env bash
# Creates target/package/tacit_VERSION_ARCH.deb and tacit-VERSION-MACHINE-linux.tar.gz from a built
# program, and prints their sizes. `make package` builds the program first.
#
# Variables, all optional:
#   BINARY=FILE         the program; default target/release/tacit
#   VERSION=1.2.3       of the package; default: version in Cargo.toml
#   SOURCE_DATE_EPOCH   time of all files; default: the last commit, or the last date in CHANGELOG.md
#   MAINTAINER=...      name and address in the package
#   OUT=DIR             directory for the packages
#
# The same program and sources give identical packages. The .deb needs dpkg-deb (package dpkg);
# dpkg-shlibdeps (package dpkg-dev) determines the libraries that it depends on.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
export BINARY=${BINARY:-$target/release/tacit}
OUT=${OUT:-$target/package}
VERSION=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)}
MAINTAINER=${MAINTAINER:-the tacit project <tacit@localhost>}
export TZ=UTC LC_ALL=C
umask 022

say() { printf 'package: %s\n' "$*"; }
die() {
    printf 'package: %s\n' "$*" >&2
    exit 1
}

[ -x "$BINARY" ] || die "$BINARY does not exist. fix: make build"

if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || true)
    if [ -z "$SOURCE_DATE_EPOCH" ]; then
        day=$(sed -n 's/^## \[.*\] *[-–] *\([0-9]\{4\}-[0-9][0-9]-[0-9][0-9]\).*/\1/p' CHANGELOG.md |
            head -n 1)
        SOURCE_DATE_EPOCH=$(date -d "${day:-1980-01-01}" +%s)
    fi
fi
export SOURCE_DATE_EPOCH

work=$(mktemp -d "${TMPDIR:-/tmp}/tacit-package.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$OUT"

# Sets the time of all files in a directory to that of the sources.
set_times() { find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }

# Lists the libraries in the program with their licences, and each licence text once.
libraries() {
    local crates=$work/crates sources=${CARGO_HOME:-$HOME/.cargo}/registry/src
    local name version text digest
    declare -A seen
    cargo tree --locked --offline -p tacit -e normal --prefix none --format '{p} {l}' |
        grep -v '(/' | sed 's/ (proc-macro)//; s/ (\*)$//' | sort -u >"$crates"
    echo "Libraries that are linked into tacit, and their licences."
    echo
    sed 's/^/  /' "$crates"
    while read -r name version _; do
        for text in "$sources"/*/"$name-${version#v}"/{LICEN[CS]E,COPYING,COPYRIGHT,NOTICE}*; do
            [ -f "$text" ] || continue
            digest=$(sha256sum <"$text")
            [ -z "${seen[$digest]:-}" ] || continue
            seen[$digest]=1
            printf '\n%s\n%s %s: %s\n\n' "$(printf '=%.0s' {1..78})" "$name" "$version" "${text##*/}"
            cat "$text"
        done
    done <"$crates"
}
say "collecting the licences of linked libraries"
libraries >"$work/LIBRARIES"

# --- the archive: unpacked below /usr/local it has the same files as `make install`
machine=${MACHINE:-$(uname -m)}
name=tacit-$VERSION-$machine-linux
archive=$OUT/$name.tar.gz
PREFIX=/usr/local DESTDIR=$work/stage APPARMORDIR='' ./scripts/install.sh install >/dev/null
mv "$work/stage/usr/local" "$work/$name"
cp "$work/LIBRARIES" "$work/$name/share/doc/tacit/LIBRARIES"
set_times "$work/$name"
tar --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -C "$work" -cf - "$name" |
    gzip -9n >"$archive.new"
mv "$archive.new" "$archive"
rm -rf "$work/stage"

made=("$archive")

# --- the Debian package
debian_package() {
    local root=$work/deb page architecture depends size
    PREFIX=/usr DESTDIR=$root APPARMORDIR='' ZSHDIR=/usr/share/zsh/vendor-completions \
        ./scripts/install.sh install >/dev/null
    mkdir -p "$root/etc/tacit" "$root/DEBIAN"

    # As Debian's policy requires: compressed manual pages and changelog, the licence by reference.
    local doc=$root/usr/share/doc/tacit
    mv "$doc/CHANGELOG.md" "$doc/changelog"
    cp "$work/LIBRARIES" "$doc/LIBRARIES"
    for page in "$root"/usr/share/man/man?/*.? "$doc/changelog" "$doc/LIBRARIES"; do
        gzip -9n "$page"
    done
    rm "$doc/LICENSE"
    cp scripts/package/copyright "$doc/copyright"

    for page in postinst prerm postrm; do
        install -m 755 "scripts/package/$page" "$root/DEBIAN/$page"
    done
    # AppArmor may be installed or upgraded after this package.
    echo "interest-noawait /etc/apparmor.d/abi" >"$root/DEBIAN/triggers"
    (cd "$root" && find etc -type f | sort | sed 's:^:/:') >"$root/DEBIAN/conffiles"
    [ -s "$root/DEBIAN/conffiles" ] || rm "$root/DEBIAN/conffiles"
    (cd "$root" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"

    architecture=${DEB_ARCH:-$(dpkg --print-architecture)}
    depends=
    if command -v dpkg-shlibdeps >/dev/null; then
        mkdir -p "$work/shlibs/debian"
        printf 'Source: tacit\n\nPackage: tacit\nArchitecture: any\n' >"$work/shlibs/debian/control"
        depends=$(cd "$work/shlibs" && dpkg-shlibdeps -O -e"$root/usr/bin/tacit" 2>/dev/null |
            sed -n 's/^shlibs:Depends=//p')
    fi
    if [ -z "$depends" ]; then
        say "dpkg-shlibdeps is not installed (package dpkg-dev): Depends has no versions"
        depends="libc6, libgcc-s1"
    fi
    size=$(du -k -s --apparent-size --exclude=DEBIAN "$root" | cut -f1)
    cat >"$root/DEBIAN/control" <<END
Package: tacit
Version: $VERSION
Architecture: $architecture
Maintainer: $MAINTAINER
Installed-Size: $size
Depends: $depends, adduser | systemd-sysusers
Recommends: ca-certificates
Section: net
Priority: optional
Description: TLS by policy for programs that cannot be changed
 tacit secures the connections of programs with TLS, as a policy file says,
 without a change to the programs: it listens and connects in their place, or
 runs them in a network of their own. It is for Linux what AT-TLS is for z/OS.
 .
 The package contains the program, its manual pages, shell completions, units
 for systemd and a profile for AppArmor. It starts nothing.
END
    chmod 644 "$root"/DEBIAN/{control,md5sums,triggers}
    set_times "$root"
    local deb=$OUT/tacit_${VERSION}_$architecture.deb
    dpkg-deb --root-owner-group -Zxz --build "$root" "$deb.new" >/dev/null
    mv "$deb.new" "$deb"
    made+=("$deb")
}
if command -v dpkg-deb >/dev/null; then
    debian_package
else
    say "skipped: .deb: dpkg-deb is not installed (package dpkg)"
fi

say "version $VERSION; the program has $(stat -c %s "$work/$name/bin/tacit") bytes"
for file in "${made[@]}"; do
    say "$(stat -c %s "$file") bytes  $file"
done
