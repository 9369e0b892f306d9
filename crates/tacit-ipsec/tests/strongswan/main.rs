//! Tests IKE between tacit and other implementations. Each test has its own network namespaces.
//! This file tests tacit with strongSwan. The module `libreswan` tests tacit with libreswan.
//!
//! ```text
//!   driver 10.99.0.1 ── w0 ══ w1 ── 10.99.0.2 charon
//! ```
//!
//! The driver is a second process of this test program. The driver moves datagrams between a socket
//! on port 4500 and an IKE connection of tacit, prints events, and reads commands. `charon` is the
//! IKE daemon of strongSwan. The tests need strongSwan, which the script `scripts/install-deps.sh`
//! installs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at the first unexpected result"
)]

mod driver;
mod keys;
mod libreswan;
mod network;
mod ping;

use std::path::PathBuf;
use std::process::Command;

/// The process that the scripts start; nothing in an ordinary run of the tests.
#[test]
fn driver() {
    if let Ok(role) = std::env::var("IKE_DRIVER") {
        driver::run(&role);
    }
}

#[test]
fn tacit_opens_and_both_sides_replace_keys_with_gcm() {
    Setup::new("gcm").run(&with_ping(REPLACE));
}

#[test]
fn tacit_opens_and_both_sides_replace_keys_with_chacha20() {
    Setup::new("chacha").run(&with_ping(REPLACE));
}

#[test]
fn tacit_opens_and_both_sides_replace_keys_with_cbc() {
    Setup::new("cbc").run(&with_ping(REPLACE));
}

#[test]
fn both_sides_replace_keys_with_modp_2048_in_both_roles() {
    for role in ROLES {
        Setup { role, ..Setup::new("modp") }.run(&with_ping(REPLACE));
    }
}

#[test]
fn strongswan_assigns_inner_addresses_and_resolvers_of_both_families() {
    let setup = Setup {
        inner: "request",
        pools: "inner,inner6",
        remote_ts: "dynamic",
        ..Setup::new("gcm")
    };
    let wanted = "expect 'assigned .10.1.0.1, fd01::1. .10.2.0.53, fd02::53.' 1";
    setup.run(&format!("{wanted}\nping6\n{}", with_ping(REPLACE)));
}

#[test]
fn strongswan_opens_and_both_sides_replace_keys() {
    Setup { role: "responder", ..Setup::new("gcm") }.run(&with_ping(REPLACE));
}

#[test]
fn both_sides_replace_keys_at_once() {
    Setup::new("gcm").run(&with_ping(AT_ONCE));
}

#[test]
fn a_stream_is_complete_while_both_sides_replace_keys_at_once() {
    for role in ROLES {
        let stop = "echo stop >&3; expect 'streamed exact=true worst=[01] ' 1\necho close";
        let steps = AT_ONCE.replace("echo close", stop);
        Setup { role, ..Setup::new("gcm") }.run(&format!("echo stream >&3\n{steps}"));
    }
}

#[test]
fn keys_are_replaced_under_a_stream_that_loses_a_tenth_of_its_datagrams() {
    let retransmit =
        "retransmit_timeout = 0.5\n    retransmit_base = 1.3\n    retransmit_tries = 20";
    for role in ROLES {
        let stop = "echo stop >&3; expect 'streamed exact=true ' 1\necho close";
        let steps = REPLACE.replace("echo close", stop);
        let setup = Setup { role, loss: "10", charon: retransmit, ..Setup::new("gcm") };
        setup.run(&format!("echo stream >&3\n{steps}"));
    }
}

#[test]
fn ipv6_outside_works_in_both_roles() {
    for role in ROLES {
        let setup = Setup { role, own: "fd99::1", peer: "fd99::2", ..Setup::new("gcm") };
        setup.run(&with_ping(REPLACE));
    }
}

#[test]
fn either_side_deletes_the_ike_sa() {
    Setup::new("gcm").run("echo close >&3; expect closed 1; empty");
    Setup::new("gcm").run("swan --terminate --ike tacit >terminate 2>&1; expect closed 1; empty");
}

#[test]
fn strongswan_ends_older_connections_only_if_tacit_asserts_initial_contact() {
    let another = "
another() {
    ip address add 10.99.0.$1/24 dev w0
    mkfifo commands$1
    driver 10.99.0.$1 $2 <commands$1 >events$1 2>&1 &
}
another 3 omit; exec 4>commands3
until_true grep -q ^active events3; until_true established 2
[ $(count closed) = 0 ] || fail closed
another 4 assert; exec 5>commands4
until_true grep -q ^active events4; until_true established 1
grep -q 'destroying duplicate' charon.log || fail 'no duplicate'";
    let script = Setup::new("gcm").script(another);
    execute(&script.replace("remote_addrs = 10.99.0.1", "remote_addrs = %any"));
}

#[test]
fn a_wrong_key_is_named() {
    let script = Setup::new("gcm").script("expect 'failed peer-refused' 1");
    let script = script.replace("secret = \"a shared key\"", "secret = \"another\"");
    execute(&script.replace("expect active 1 #first", ""));
}

#[test]
fn certificates_with_ecdsa_prove_both_sides() {
    certificates("-algorithm EC -pkeyopt ec_paramgen_curve:P-256", "EcdsaP256");
}

#[test]
fn certificates_with_ed25519_prove_both_sides() {
    certificates("-algorithm ED25519", "Ed25519");
}

#[test]
fn certificates_with_rsa_pss_prove_both_sides_in_fragments() {
    certificates("-algorithm RSA -pkeyopt rsa_keygen_bits:4096", "RsaPss");
}

#[test]
fn certificates_prove_distinguished_names_in_both_roles() {
    for role in ROLES {
        let setup = Setup {
            role,
            key: "-algorithm EC -pkeyopt ec_paramgen_curve:P-256",
            auth: "pubkey",
            ids: ["O=Corp, CN=gw.example", "O=Corp, CN=branch.example"],
            ..Setup::new("gcm")
        };
        let checks = "expect 'established O=Corp, CN=gw.example ' 1
            swan --list-sas | grep -q \"remote 'O=Corp, CN=branch.example'\" || fail identity";
        setup.run(&format!("{checks}\n{}", with_ping(REPLACE)));
    }
}

#[test]
fn another_distinguished_name_is_refused() {
    let setup = Setup {
        key: "-algorithm EC -pkeyopt ec_paramgen_curve:P-256",
        auth: "pubkey",
        ids: ["O=Corp, CN=gw.example", "O=Corp, CN=other.example"],
        ..Setup::new("gcm")
    };
    let script = setup.script("expect 'failed ' 1");
    execute(&script.replace("expect active 1 #first", ""));
}

/// Both sides have a key of this kind; each side opens once.
fn certificates(key: &str, scheme: &str) {
    for role in ROLES {
        let setup = Setup {
            role,
            key,
            auth: "pubkey",
            connection: "fragmentation = force",
            charon: "rsa_pss = yes\n    fragment_size = 500",
            ..Setup::new("gcm")
        };
        let checks = format!(
            "expect 'signed {scheme}' 1
            grep -q 'received cert request for .CN=ca' charon.log || fail 'no cert request'
            grep -q 'received fragment #1 of ' charon.log || [ {scheme} != RsaPss ] || fail whole
            grep -q 'splitting IKE message' charon.log || fail 'charon sent no fragments'"
        );
        setup.run(&format!("{checks}\n{}", with_ping(REPLACE)));
    }
}

#[test]
fn long_messages_reach_a_peer_that_joins_no_fragments() {
    let setup = Setup {
        key: "-algorithm RSA -pkeyopt rsa_keygen_bits:4096",
        auth: "pubkey",
        connection: "fragmentation = no",
        charon: "rsa_pss = yes",
        ..Setup::new("gcm")
    };
    setup.run(&with_ping(REPLACE));
}

#[test]
fn a_peer_that_wants_eap_is_refused_at_once() {
    let setup =
        Setup { role: "responder", auth: "eap-md5", driver_auth: "psk", ..Setup::new("gcm") };
    let script =
        setup.script("expect 'failed wrong-auth-method' 1; grep -q AUTH_FAILED charon.log");
    let script = script.replace("|| fail \"$(cat initiate)\"", "&& fail established");
    execute(&script.replace("expect active 1 #first", ""));
}

/// Each side replaces the child SA and the IKE SA.
const REPLACE: &str = "
echo rekey-child >&3; expect active 2; expect removed 1; one
echo rekey >&3; expect rekeyed 1; one
swan --rekey --child net >rekey 2>&1; expect active 3; expect removed 2; one
swan --rekey --ike tacit >rekey 2>&1; expect rekeyed 2; one
echo rekey-child >&3; expect active 4; expect removed 3; one
echo close >&3; expect closed 1; empty; grep ^streamed events || true";

/// Both sides replace the same thing, some of them at the same moment.
const AT_ONCE: &str = "
for round in 1 2 3 4 5 6 7 8; do
    before=$(count active)
    echo rekey-child >&3
    swan --rekey --child net >rekey 2>&1
    expect active $((before + 1)); one
    echo rekey >&3
    swan --rekey --ike tacit >rekey 2>&1
    expect rekeyed $round; one
done
echo close >&3; expect closed 1; empty; grep ^streamed events || true";

const ROLES: [&str; 2] = ["initiator", "responder"];

/// After each change, an echo request shows that both sides have the same keys.
fn with_ping(steps: &str) -> String {
    format!("ping\n{}", steps.replace("; one", "; one; ping"))
}

/// How both sides are configured.
struct Setup<'a> {
    /// The role of the driver.
    role: &'a str,
    proposal: &'a str,
    inner: &'a str,
    pools: &'a str,
    remote_ts: &'a str,
    /// The addresses of the driver and of charon.
    own: &'a str,
    peer: &'a str,
    /// How charon proves its identity, and the driver, if not in the same way.
    auth: &'a str,
    driver_auth: &'a str,
    /// The identities that charon has and expects. The driver has distinguished names if these are.
    ids: [&'a str; 2],
    /// Options of `openssl genpkey`.
    key: &'a str,
    /// Further lines of the configuration of charon.
    connection: &'a str,
    charon: &'a str,
    /// How many of 100 datagrams are lost.
    loss: &'a str,
}

impl<'a> Setup<'a> {
    fn new(proposal: &'a str) -> Self {
        Self {
            role: "initiator",
            proposal,
            inner: "static",
            pools: "",
            remote_ts: "10.1.0.1/32",
            own: "10.99.0.1",
            peer: "10.99.0.2",
            auth: "psk",
            driver_auth: "",
            ids: ["gw.example", "branch.example"],
            key: "",
            connection: "",
            charon: "",
            loss: "0",
        }
    }

    fn run(&self, steps: &str) {
        execute(&self.script(steps));
    }

    fn script(&self, steps: &str) -> String {
        let (ike, esp) = match self.proposal {
            "gcm" => ("aes256gcm16-prfsha384-ecp256", "aes256gcm16-ecp256"),
            "chacha" => ("chacha20poly1305-prfsha256-x25519", "chacha20poly1305-x25519"),
            "modp" => ("aes256gcm16-prfsha256-modp2048", "aes256gcm16-modp2048"),
            _ => ("aes256-sha512-prfsha512-ecp384", "aes128-sha256-ecp384"),
        };
        let driver = std::env::current_exe().unwrap();
        let of_driver = if self.driver_auth.is_empty() { self.auth } else { self.driver_auth };
        // Half a minute. An exchange of which each datagram is lost several times takes longer.
        let tries = if self.loss == "0" { "600" } else { "3000" };
        let mut begin = concat!(include_str!("common.sh"), include_str!("begin.sh")).to_owned();
        for (name, value) in [
            ("@IKE@", ike),
            ("@ESP@", esp),
            ("@PROPOSAL@", self.proposal),
            ("@ROLE@", self.role),
            ("@INNER@", self.inner),
            ("@POOLS@", self.pools),
            ("@REMOTE@", self.remote_ts),
            ("@OWN@", self.own),
            ("@PEER@", self.peer),
            ("@AUTH@", self.auth),
            ("@AUTH_OF_DRIVER@", of_driver),
            ("@GW@", self.ids[0]),
            ("@BRANCH@", self.ids[1]),
            ("@KEY@", self.key),
            ("@CONNECTION@", self.connection),
            ("@CHARON@", self.charon),
            ("@LOSS@", self.loss),
            ("@TRIES@", tries),
            ("@DRIVER@", &driver.to_string_lossy()),
        ] {
            begin = begin.replace(name, value);
        }
        format!("{begin}\n{steps}\n")
    }
}

fn execute(script: &str) {
    assert!(PathBuf::from(CHARON).exists(), "{CHARON} is missing: run scripts/install-deps.sh");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "600", "unshare", "-rnm", "bash", "-c", script]);
    let output = command.output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

const CHARON: &str = "/usr/lib/ipsec/charon";
