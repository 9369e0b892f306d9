#!/usr/bin/env bash
# Builds the program without shared libraries, as target/static/tacit: it can be the only file of a virtual
# machine or of a container. It finds users and names of hosts by the plain files in /etc only.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
machine=$(uname -m)-unknown-linux-gnu
# An option of its own for the target, so that build scripts and macros are compiled as usual.
variable=CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$machine")_RUSTFLAGS
env "$variable=-C target-feature=+crt-static" \
    cargo build --locked --release -p tacit --target "$machine"
mkdir -p "$target/static"
cp "$target/$machine/release/tacit" "$target/static/tacit"
strip "$target/static/tacit"
echo "$target/static/tacit"
