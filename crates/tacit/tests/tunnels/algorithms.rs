//! Tests the tunnels of a run to gateways that support only old algorithms.

use crate::{Scenario, WEB};

/// A program transfers a file while charon replaces keys, with these algorithms of IKE and of
/// packets in the words of the policy, and those of charon.
fn transfers(ike: &str, esp: &str, charon_ike: &str, charon_esp: &str, installed: &str) {
    let steps = format!(
        r#"sed -i 's/^ *proposals = .*/proposals = {charon_ike}/
                s/esp_proposals = [^ ]*/esp_proposals = {charon_esp}/' swanctl/swanctl.conf
        swan --load-all >load 2>&1 || fail "$(cat load)"
        sed -i 's/^inner.*/&\nproposals = "{ike}"\nesp-proposals = "{esp}"/' private/run.toml
        run bash -c 'curl -sS -m 60 --limit-rate 8M http://10.2.0.1/big | cmp - web/big &&
            echo same' & program=$!
        until_true installed 1
        swan --list-sas | grep -q '{installed}' || fail "$(swan --list-sas)"
        swan --rekey --child net >rekey 2>&1 || fail "$(cat rekey)"
        swan --rekey --ike tacit >rekey 2>&1 || fail "$(cat rekey)"
        # charon finds no child while it replaces the keys of IKE.
        child_rekeyed() {{ swan --rekey --child net >rekey 2>&1; }}
        until_true child_rekeyed
        wait $program
        clear"#
    );
    let text = Scenario { rules: WEB, inner: r#"["10.1.0.1", "fd01::1"]"#, steps: &steps }.output();
    assert_eq!(text, "same\nonly UDP 4500\n");
}

#[test]
fn a_gateway_with_aes_cbc_hmac_sha2_and_modp_2048_serves_a_run() {
    let suite = "aes256-sha256-modp2048";
    transfers(suite, "aes256-sha256", suite, suite, "AES_CBC-256/HMAC_SHA2_256_128");
}

#[test]
fn a_gateway_with_aes_cbc_hmac_sha2_512_and_p_384_serves_a_run() {
    let suite = "aes128-sha512-ecp384";
    transfers(suite, "aes128-sha512", suite, suite, "AES_CBC-128/HMAC_SHA2_512_256");
}

#[test]
fn a_gateway_with_chacha20_and_p_256_serves_a_run() {
    let suite = "chacha20poly1305-prfsha256-ecp256";
    let esp = "chacha20poly1305";
    transfers(suite, esp, suite, "chacha20poly1305-ecp256", "CHACHA20_POLY1305");
}
