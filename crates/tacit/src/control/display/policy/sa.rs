//! Lists the settings of `[sa.NAME]` for `tacit show policy`, without the cryptographic keys.

use tacit_core::policy::{ManualMode, ManualProtection, ManualSa, Policy, SaKeyFile, TunnelCipher};

use super::{PolicyTable, Settings, texts};

/// The table of a peer.
pub(super) fn table(policy: &Policy, name: &str, sa: &ManualSa) -> PolicyTable {
    let ManualSa {
        peer,
        protection,
        spi_in,
        spi_out,
        keys_in,
        keys_out,
        anti_replay,
        mode,
        inner,
        position,
    } = sa;
    let mut settings = Settings::default();
    settings.add("peer", peer.ip().to_string(), false);
    if protection.raw_local().is_none() {
        settings.add("port", i64::from(peer.port()), peer.port() == ManualSa::PORT_DEFAULT);
    }
    let is_default = matches!(protection, ManualProtection::EspInUdp(_));
    settings.add("protocol", protection.protocol(), protection.protocol() == "esp");
    settings.add("encapsulation", protection.encapsulation(), is_default);
    let (encryption, integrity) = algorithms(*protection);
    if let Some(encryption) = encryption {
        settings.add("encryption", encryption, false);
    }
    settings.add("integrity", integrity, false);
    for (key, spi) in [("spi-in", spi_in), ("spi-out", spi_out)] {
        settings.add(key, i64::from(*spi), false);
    }
    for (key, SaKeyFile { file, position: _ }) in [("keys-in", keys_in), ("keys-out", keys_out)] {
        settings.add(key, file.display().to_string(), false);
    }
    settings.add("anti-replay", *anti_replay, !*anti_replay);
    match mode {
        ManualMode::Tunnel => {
            settings.add("mode", "tunnel", true);
            settings.add("inner", texts(inner), false);
            if let Some(local) = protection.raw_local() {
                settings.add("local", local.to_string(), false);
            }
        }
        ManualMode::Transport { local } => {
            settings.add("mode", "transport", false);
            settings.add("local", local.to_string(), false);
        }
    }
    settings.table(&format!("[sa.{name}]"), Some(name)).at(policy, *position)
}

/// The words for the cipher, if there is one, and for the hash of the HMAC.
fn algorithms(protection: ManualProtection) -> (Option<String>, Option<String>) {
    let cipher = match protection {
        ManualProtection::EspInUdp(cipher) | ManualProtection::Esp { cipher, .. } => cipher,
        ManualProtection::Ah { hash, .. } => return (None, Some(hash.word().to_owned())),
    };
    let (encryption, hash) = match cipher {
        TunnelCipher::Aes128Cbc(hash) => ("aes128-cbc".to_owned(), Some(hash)),
        TunnelCipher::Aes256Cbc(hash) => ("aes256-cbc".to_owned(), Some(hash)),
        // The parser refuses them.
        other => (other.to_string(), None),
    };
    (Some(encryption), hash.map(|hash| hash.word().to_owned()))
}
