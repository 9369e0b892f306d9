//! Certificates and lists that end soon: told in the log when they are loaded, and once a day.
//!
//! What has expired stays in use, and is reported too: peers refuse it themselves, and other rules
//! have other certificates. `tacit check`, `tacit show identities` and the metrics say the same.

use std::collections::HashMap;

use tacit_tls::credentials::{Pinned, crl_expires_soon, ends_soon};
use tacit_tls::facts::{DAY_SECONDS, utc};

use crate::live::Materials;
use crate::log::Event;

/// What was reported, and when.
#[derive(Debug, Default)]
pub(super) struct Expiries {
    told: HashMap<Deadline, i64>,
}

/// Something that ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Deadline {
    /// `identity`, `trust`, `pinned`, or `crl`.
    kind: &'static str,
    /// The name of its table.
    name: String,
    /// Whose certificate or list it is.
    subject: String,
    /// In unix seconds.
    at: i64,
}

impl Expiries {
    /// What must be told now, in unix seconds.
    pub(super) fn due(&mut self, materials: &Materials, now: i64) -> Vec<Event> {
        let soon = soon(materials, now);
        self.told.retain(|deadline, _| soon.contains(deadline));
        let mut events = Vec::new();
        for deadline in soon {
            let told = self.told.get(&deadline).copied();
            if told.is_none_or(|told| now >= told.saturating_add(DAY_SECONDS)) {
                events.push(deadline.event(now));
                self.told.insert(deadline, now);
            }
        }
        events
    }
}

impl Deadline {
    fn event(&self, now: i64) -> Event {
        let next = match self.kind {
            "identity" => "renew the certificate",
            "pinned" => "get the peer's next certificate, and pin it in addition to this one",
            "trust" => "get the CA's next certificate, and certificates issued by it",
            _ => "get the current CRL from the CA",
        };
        let days = self.at.saturating_sub(now).div_euclid(DAY_SECONDS);
        Event::new("expires")
            .field("kind", self.kind)
            .field("name", &self.name)
            .field("subject", &self.subject)
            .field("at", &utc(self.at))
            .field("days-left", &days)
            .field("next", next)
    }
}

fn soon(materials: &Materials, now: i64) -> Vec<Deadline> {
    let deadline = |kind, name: &str, subject: &str, at| Deadline {
        kind,
        name: name.to_owned(),
        subject: subject.to_owned(),
        at,
    };
    let mut soon = Vec::new();
    for (name, identity) in &materials.identities {
        let facts = &identity.facts;
        if ends_soon(facts, now) {
            soon.push(deadline("identity", name, facts.title(), facts.not_after));
        }
    }
    for (name, trust) in &materials.trusts {
        for facts in trust.facts.iter().filter(|facts| ends_soon(facts, now)) {
            soon.push(deadline("trust", name, facts.title(), facts.not_after));
        }
        let pinned = trust.pinned.iter().flat_map(Pinned::facts);
        for facts in pinned.filter(|facts| ends_soon(facts, now)) {
            soon.push(deadline("pinned", name, facts.title(), facts.not_after));
        }
        for list in trust.crls.iter().filter(|list| crl_expires_soon(&list.facts, now)) {
            soon.push(deadline("crl", name, &list.facts.issuer, list.facts.next_update));
        }
    }
    soon
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use tacit_tls::signer::KeyProvider;

    use tacit_core::policy::{
        ExpiredAnchors, Identity, Revocation, SourcePosition, Trust, TrustSource,
    };

    use super::*;
    use tacit_tls::credentials::{load_identity, load_trust};
    use tacit_tls::test_certificates::{Ca, Directory};

    #[test]
    fn what_ends_soon_is_told_when_it_is_loaded_and_once_a_day() {
        let directory = Directory::new();
        let ca = Ca::new("corp CA");
        let end = 4_000_000_000;
        let leaf = ca.leaf_until(end);
        directory.write("ca.pem", ca.pem(), 0o644);
        directory.write("ca.crl", ca.crl(&[], end), 0o644);
        directory.write("web.pem", &leaf.cert_pem, 0o644);
        directory.write("web.key", &leaf.key_pem, 0o600);
        let position = SourcePosition::default();
        let identity = Identity { cert: "web.pem".into(), key: "web.key".into(), position };
        let trust = Trust {
            source: TrustSource::Files(vec!["ca.pem".into()]),
            pinned: Vec::new(),
            crls: vec!["ca.crl".into()],
            revocation: Revocation::Hard,
            expired_anchors: ExpiredAnchors::Reject,
            position,
        };
        let mut materials = Materials::default();
        let loaded =
            load_identity("web", &identity, directory.path(), &KeyProvider::local()).unwrap();
        materials.identities.insert("web".into(), Arc::new(loaded));
        let loaded = load_trust("corp", &trust, directory.path()).unwrap();
        materials.trusts.insert("corp".into(), Arc::new(loaded));

        let mut expiries = Expiries::default();
        let mut told = |now| {
            let events = expiries.due(&materials, now);
            events.iter().map(|event| format!("{event:?}")).collect::<Vec<_>>()
        };
        assert_eq!(told(2_000_000_000), [""; 0]);
        let first = told(end - 10 * DAY_SECONDS);
        assert!(first[0].contains("identity") && first[0].contains("\"10\""), "{first:?}");
        assert!(first[1].contains("crl") && first[1].contains("CN=corp CA"), "{first:?}");
        assert_eq!(told(end - 10 * DAY_SECONDS + 3600), [""; 0]);
        assert_eq!(told(end - 9 * DAY_SECONDS).len(), 2);
        let late = told(end + 2 * DAY_SECONDS);
        assert!(late[0].contains("\"-2\""), "{late:?}");
    }
}
