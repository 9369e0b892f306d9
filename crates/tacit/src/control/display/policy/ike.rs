//! Lists the settings of `[ike.NAME]` for `tacit show policy`, without the pre-shared key.

use tacit_core::policy::{IkeCredentials, IkePeer, InnerAddressSource, KeyLifetime, Policy};

use super::{PolicyTable, Settings, duration, texts};

/// The table of a peer.
pub(super) fn table(policy: &Policy, name: &str, peer: &IkePeer) -> PolicyTable {
    let IkePeer {
        host,
        port,
        credentials,
        local_id,
        local_id_position: _,
        remote_id,
        proposals,
        esp_proposals,
        pfs,
        ike_lifetime,
        lifetime,
        dpd,
        inner,
        position,
    } = peer;
    let mut settings = Settings::default();
    settings.add("peer", host.to_string(), false);
    settings.add("port", i64::from(*port), *port == IkePeer::PORT_DEFAULT);
    match credentials {
        IkeCredentials::SharedKey { file, position: _ } => {
            settings.add("psk-file", file.display().to_string(), false);
        }
        IkeCredentials::Certificates { identity, trust } => {
            settings.add("identity", identity.clone(), false);
            settings.add("trust", trust.clone(), false);
        }
    }
    settings.add("local-id", local_id.to_string(), false);
    let is_default = *remote_id == host.identity();
    settings.add("remote-id", remote_id.to_string(), is_default);
    let suites = texts(proposals);
    let is_default = suites == IkePeer::PROPOSALS_DEFAULT;
    settings.add("proposals", suites, is_default);
    let suites = texts(esp_proposals);
    let is_default = suites == IkePeer::ESP_PROPOSALS_DEFAULT;
    settings.add("esp-proposals", suites, is_default);
    settings.add("pfs", *pfs, *pfs);
    let is_default = *ike_lifetime == IkePeer::IKE_LIFETIME_DEFAULT;
    settings.add("ike-lifetime", duration(*ike_lifetime), is_default);
    let KeyLifetime { time, bytes, packets } = lifetime;
    settings.add("lifetime", duration(*time), *time == KeyLifetime::TIME_DEFAULT);
    for (key, limit) in [("lifetime-bytes", bytes), ("lifetime-packets", packets)] {
        settings.add(key, limit.and_then(|limit| i64::try_from(limit).ok()), limit.is_none());
    }
    settings.add("dpd", duration(*dpd), *dpd == IkePeer::DPD_DEFAULT);
    let inner = match inner {
        InnerAddressSource::Policy(addresses) => texts(addresses),
        InnerAddressSource::Gateway => vec!["gateway".to_owned()],
    };
    settings.add("inner", inner, false);
    settings.table(&format!("[ike.{name}]"), Some(name)).at(policy, *position)
}
