//! Shows `[sa.NAME]` in `tacit show policy`, without the keys.

use tacit_core::policy::{ManualMode, ManualSa, Policy, SaKeyFile, TunnelCipher};

use super::{PolicyTable, Settings, texts};

/// The table of a peer.
pub(super) fn table(policy: &Policy, name: &str, sa: &ManualSa) -> PolicyTable {
    let ManualSa {
        peer,
        cipher,
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
    settings.add("port", i64::from(peer.port()), peer.port() == ManualSa::PORT_DEFAULT);
    let (encryption, integrity) = match cipher {
        TunnelCipher::Aes128Cbc(hash) => ("aes128-cbc".to_owned(), Some(hash.word().to_owned())),
        TunnelCipher::Aes256Cbc(hash) => ("aes256-cbc".to_owned(), Some(hash.word().to_owned())),
        // The parser refuses them.
        other => (other.to_string(), None),
    };
    settings.add("encryption", encryption, false);
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
        }
        ManualMode::Transport { local } => {
            settings.add("mode", "transport", false);
            settings.add("local", local.to_string(), false);
        }
    }
    settings.table(&format!("[sa.{name}]"), Some(name)).at(policy, *position)
}
