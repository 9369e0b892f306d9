//! Tests programs that use a link on a host without a network. The results must be the same as on a
//! host with a network. The tests run each program with three links, one link for each transport.
//! The tests of `tacit run` use the same programs.
//!
//! ```text
//! near host, no route               far host                   transport
//! program ── tacit run ───────────────> link server ─> server  UNIX socket that passes sockets
//! program ── tacit run ── link server ─> link server ─> server  TCP with TLS
//! program ── tacit run ── link server ─> link server ─> server  socket of a virtual machine
//! ```
//!
//! Each link server is `tacit link serve`.

use crate::comparison::Comparison;
use crate::links_of_hosts::HOSTS;
use crate::network::Way;
use crate::{connect, datagrams, languages, programs, sockets};

/// Servers of links on both hosts. `unix CMD`, `tcp CMD` and `machine CMD` are runs on the near
/// host.
const LINKS: &str = r#"
cat >far.link.toml <<END
$FAR_CERTIFICATES
[link.unix]
listen = "$TMPDIR/unix.sock"
sockets = 4096
[link.across]
listen = "192.168.78.1:7443"
sockets = 4096
tls = { identity = "far", trust = "guests", client-cert = "required" }
[link.host]
listen = "$TMPDIR/host.sock"
sockets = 4096
[[rule]]
name = "out"
link = ["unix", "across", "host"]
direction = "outbound"
remote = ["10.9.8.0/24", "2001:db8::/64"]
permit = true
[[rule]]
name = "datagrams"
link = ["unix", "across", "host"]
direction = "outbound"
protocol = "udp"
remote = "10.9.8.0/24"
permit = true
END
cat >near.link.toml <<END
$NEAR_CERTIFICATES
[link.tcp]
listen = "$TMPDIR/tcp.sock"
connect = "192.168.78.1:7443"
sockets = 4096
tls = { identity = "guest", trust = "hosts" }
[link.machine]
listen = "$TMPDIR/machine.sock"
connect = "unix:$TMPDIR/host.sock"
sockets = 4096
END
start_ordinary ./tacit link serve --policy far.link.toml
start_near near.link.toml
for link in unix host tcp machine; do until_true [ -S $TMPDIR/$link.sock ]; done
through() {
    near $USER_OF_RUNS timeout 200 ./tacit run --link $TMPDIR/$1.sock --policy run.toml -- "${@:2}"
}
unix() { through unix "$@"; }
tcp() { through tcp "$@"; }
machine() { through machine "$@"; }
"#;

/// Each transport, and one of them with TLS by the rules of the run.
const WAYS: [Way; 4] = [
    Way { name: "unix", host: "clear.example", command: "unix" },
    Way { name: "tcp", host: "clear.example", command: "tcp" },
    Way { name: "machine", host: "clear.example", command: "machine" },
    Way { name: "tcp-tls", host: "tls.example", command: "tcp" },
];

fn see_no_difference(comparisons: &[Comparison]) {
    for comparison in comparisons {
        let network = comparison.network().with_setup(HOSTS).with_setup(LINKS);
        comparison.compare_in(&network, &WAYS);
    }
}

#[test]
fn clients_of_files_see_no_difference_through_links() {
    see_no_difference(&[programs::CURL, programs::WGET, programs::GIT]);
}

#[test]
fn programs_in_several_languages_see_no_difference_through_links() {
    see_no_difference(&[languages::GO, languages::JAVA, languages::NODE]);
}

#[test]
fn clients_of_a_dual_name_see_no_difference_through_links() {
    see_no_difference(&[languages::DUAL, languages::DUAL_IPV6]);
}

#[test]
fn every_socket_call_returns_the_same_through_links() {
    see_no_difference(&[sockets::SOCKETS, datagrams::DATAGRAMS]);
}

#[test]
fn ssh_and_nginx_see_no_difference_through_links() {
    see_no_difference(&[programs::SSH, programs::NGINX]);
}

#[test]
fn clients_of_databases_see_no_difference_through_links() {
    see_no_difference(&[programs::PSQL, programs::REDIS]);
}

#[test]
fn probes_of_ports_see_which_are_closed_through_links() {
    see_no_difference(&[connect::PROBES]);
}

#[test]
fn a_thousand_connections_at_once_see_no_difference_through_links() {
    see_no_difference(&[languages::THOUSAND]);
}
