//! Tests IKE between tacit and libreswan, in network namespaces of the test.
//!
//! ```text
//!   driver 10.99.0.1 ── w0 ══ w1 ── 10.99.0.2 pluto
//! ```
//!
//! The driver is the process with tacit's IKE connection. pluto (the IKE daemon of libreswan)
//! encrypts no packets itself: it needs ESP in the kernel. If the kernel has no ESP, pluto
//! negotiates a child SA, then refuses it, and keeps the IKE SA. So these tests check only the IKE
//! SA. The packages of libreswan and strongSwan conflict. So the script `scripts/install-deps.sh`
//! only extracts the package of libreswan, and does not install it. If libreswan cannot be
//! downloaded, the tests are skipped.

use std::path::{Path, PathBuf};

use super::execute;

#[test]
fn tacit_opens_an_ike_sa_with_libreswan_and_both_sides_replace_its_keys() {
    let steps = "
expect established 1; one
echo rekey >&3; expect rekeyed 1; one
whack --rekey-ike --name tacit >rekey 2>&1; expect rekeyed 2; one
echo rekey >&3; expect rekeyed 3; one
echo close >&3; expect closed 1; until_true ike_sas 0";
    run("initiator", steps);
}

#[test]
fn libreswan_answers_whether_it_is_alive_and_deletes_the_ike_sa() {
    let steps = "
expect established 1; one
asked() { [ \"$(grep -c 'received INFORMATIONAL\\|ISAKMP_v2_INFORMATIONAL' pluto.log)\" -ge 3 ]; }
until_true asked
[ $(count failed) = 0 ] || fail failed
whack --terminate --name tacit >terminate 2>&1; expect closed 1; until_true ike_sas 0";
    run("initiator", steps);
}

#[test]
fn libreswan_opens_an_ike_sa_with_tacit() {
    let steps = "
whack --initiate --name tacit --asynchronous >initiate 2>&1
expect established 1";
    run("responder", steps);
}

fn run(role: &str, steps: &str) {
    let Some(root) = installed() else {
        println!("skipped: libreswan is not there; scripts/install-deps.sh downloads it");
        return;
    };
    let begin = concat!(include_str!("common.sh"), include_str!("pluto.sh"))
        .replace("@ROOT@", &root.to_string_lossy())
        .replace("@ROLE@", role)
        .replace("@DRIVER@", &std::env::current_exe().unwrap().to_string_lossy());
    execute(&format!("{begin}\n{steps}\n"));
}

/// The directory in which the package was extracted.
fn installed() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    let root = target.join("tools/libreswan");
    root.join("usr/libexec/ipsec/pluto").exists().then_some(root)
}
