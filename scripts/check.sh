#!/usr/bin/env bash
# `make check`: format, clippy, and the tests that start no program of others.
#
# Installs nothing. Needs cargo, a C compiler and the programs of every Linux (coreutils,
# util-linux); cargo downloads the crates of Cargo.lock to its own cache. rustfmt, clippy, git and
# openssl are used if they are there: without one of them its step or its tests are skipped, and the
# last lines say so.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "check: installs nothing; the tests with other programs are in \`make test\`"
./scripts/rust-version.sh
if ! command -v cc >/dev/null; then
    echo "check: no C compiler; fix: install gcc (Debian: apt install gcc libc6-dev)" >&2
    exit 1
fi

skipped=()
leave_out=() # arguments of the test programs

step() {
    printf '\n== check: %s\n' "$1"
    shift
    "$@"
}

if cargo fmt --version >/dev/null 2>&1; then
    step format cargo fmt --all --check
else
    skipped+=("format: rustfmt is not installed")
fi
if cargo clippy --version >/dev/null 2>&1; then
    step clippy cargo clippy --locked --workspace --all-targets -- -D warnings
else
    skipped+=("clippy: it is not installed")
fi
if ! command -v openssl >/dev/null; then
    files=$(grep -rl openssl crates/*/src bench/src --include='*.rs')
    # shellcheck disable=SC2013,SC2086 # one word a file, and one a test
    for name in $(awk -f scripts/openssl-tests.awk $files); do leave_out+=(--skip "$name"); done
    skipped+=("tests with certificates that openssl makes: openssl is not installed")
fi
if ! git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    leave_out+=(--skip the_repository_is_tidy)
    skipped+=("style of the repository: this is no git work tree, or git is not installed")
fi
step "unit tests" cargo test --locked --workspace --no-fail-fast --lib --bins -- --quiet \
    ${leave_out[@]+"${leave_out[@]}"}
step "tests in the documentation" cargo test --locked --workspace --doc -- --quiet

echo
for reason in ${skipped[@]+"${skipped[@]}"}; do echo "check: skipped: $reason"; done
echo "check: passed; nothing was installed"
