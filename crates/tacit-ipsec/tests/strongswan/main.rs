//! Tests IKE with strongSwan, in network namespaces of the test.
//!
//! ```text
//!   driver 10.99.0.1 ── w0 ══ w1 ── 10.99.0.2 charon
//! ```
//!
//! The driver is this program again: it moves datagrams between a socket on port 4500 and a
//! connection, prints events, and reads commands. Without strongSwan the tests fail; the script
//! `scripts/install-deps.sh` installs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test stops at what it did not expect"
)]

mod driver;
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
    run("gcm", "initiator", &with_ping(REPLACE));
}

#[test]
fn tacit_opens_and_both_sides_replace_keys_with_chacha20() {
    run("chacha", "initiator", &with_ping(REPLACE));
}

#[test]
fn tacit_opens_and_both_sides_replace_keys_with_cbc() {
    run("cbc", "initiator", REPLACE);
}

#[test]
fn strongswan_assigns_an_inner_address_and_a_resolver() {
    let wanted = "expect 'assigned .10.1.0.1. .10.2.0.53.' 1";
    run("assigned", "initiator", &format!("{wanted}\n{}", with_ping(REPLACE)));
}

#[test]
fn strongswan_opens_and_both_sides_replace_keys() {
    run("gcm", "responder", &with_ping(REPLACE));
}

#[test]
fn both_sides_replace_keys_at_once() {
    run("gcm", "initiator", &with_ping(AT_ONCE));
}

#[test]
fn either_side_deletes_the_ike_sa() {
    run("gcm", "initiator", "echo close >&3; expect closed 1; empty");
    run("gcm", "initiator", "swan --terminate --ike tacit >terminate 2>&1; expect closed 1; empty");
}

#[test]
fn a_wrong_key_is_named() {
    let script = script("gcm", "initiator", "expect 'failed peer-refused' 1");
    let script = script.replace("secret = \"a shared key\"", "secret = \"another\"");
    execute(&script.replace("expect active 1 #first", ""));
}

/// Each side replaces the child SA and the IKE SA.
const REPLACE: &str = "
echo rekey-child >&3; expect active 2; expect removed 1; one
echo rekey >&3; expect rekeyed 1; one
swan --rekey --child net >rekey 2>&1; expect active 3; expect removed 2; one
swan --rekey --ike tacit >rekey 2>&1; expect rekeyed 2; one
echo rekey-child >&3; expect active 4; expect removed 3; one
echo close >&3; expect closed 1; empty";

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
echo close >&3; expect closed 1; empty";

/// After each change, an echo request shows that both sides have the same keys.
fn with_ping(steps: &str) -> String {
    format!("ping\n{}", steps.replace("; one", "; one; ping"))
}

fn run(proposal: &str, role: &str, steps: &str) {
    execute(&script(proposal, role, steps));
}

fn script(proposal: &str, role: &str, steps: &str) -> String {
    let is_assigned = proposal == "assigned";
    let proposal = if is_assigned { "gcm" } else { proposal };
    let (ike, esp) = match proposal {
        "gcm" => ("aes256gcm16-prfsha384-ecp256", "aes256gcm16-ecp256"),
        "chacha" => ("chacha20poly1305-prfsha256-x25519", "chacha20poly1305-x25519"),
        _ => ("aes256-sha512-prfsha512-ecp384", "aes128-sha256-ecp384"),
    };
    let begin = include_str!("begin.sh")
        .replace("@IKE@", ike)
        .replace("@ESP@", esp)
        .replace("@PROPOSAL@", proposal)
        .replace("@ROLE@", role)
        .replace("@INNER@", if is_assigned { "request" } else { "static" })
        .replace("@POOLS@", if is_assigned { "inner" } else { "" })
        .replace("@REMOTE@", if is_assigned { "dynamic" } else { "10.1.0.1/32" })
        .replace("@DRIVER@", &std::env::current_exe().unwrap().to_string_lossy());
    format!("{begin}\n{steps}\n")
}

fn execute(script: &str) {
    assert!(PathBuf::from(CHARON).exists(), "{CHARON} is missing: run scripts/install-deps.sh");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "120", "unshare", "-rnm", "bash", "-c", script]);
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

const CHARON: &str = "/usr/lib/ipsec/charon";
