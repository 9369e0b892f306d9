#!/usr/bin/env bash
# Checks that cargo is installed and new enough; otherwise prints how to install it.
#
# The required version is `rust-version` in Cargo.toml. Installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

# at_least VERSION: whether VERSION is the required version or later.
at_least() {
    [ "$(printf '%s\n%s\n' "$needed" "$1" | sort -V | head -n 1)" = "$needed" ]
}

# The package of this Debian or Ubuntu with a new enough cargo, if there is one.
package() {
    command -v apt-cache >/dev/null || return 0
    local name candidate
    for name in cargo cargo-web; do
        candidate=$(LC_ALL=C apt-cache policy "$name" 2>/dev/null |
            sed -n 's/^ *Candidate: \([0-9][0-9.]*\).*/\1/p')
        if [ -n "$candidate" ] && at_least "$candidate"; then
            echo "$name"
            return
        fi
    done
}

if ! command -v cargo >/dev/null; then
    found="cargo is not installed"
else
    # `cargo 1.85.0 (…)`; a missing rustup toolchain prints no version.
    version=$(cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9][0-9.]*\).*/\1/p')
    [ -n "$version" ] && at_least "$version" && exit 0
    found="this cargo is version ${version:-unknown}"
fi

{
    echo "rust: $found; tacit needs Rust $needed or later"
    name=$(package)
    label=fix:
    if [ -n "$name" ]; then
        echo "    fix: apt install $name"
        label="or: "
    fi
    if command -v rustup >/dev/null; then
        echo "    $label rustup toolchain install $needed && rustup override set $needed"
    else
        echo "    $label install rustup (https://rustup.rs), then: rustup toolchain install $needed"
    fi
} >&2
exit 1
