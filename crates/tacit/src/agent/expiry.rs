//! Logs a warning about each certificate or CRL that has expired or expires soon. The agent logs
//! this warning when it loads the certificate or CRL, and then once a day.
//!
//! The agent continues to use an expired certificate until its file is replaced. Peers reject an
//! expired certificate.

use std::collections::HashMap;

use tacit_tls::credentials::{Pinned, crl_expires_soon, ends_soon};
use tacit_tls::facts::{DAY_SECONDS, days_until, utc};

use crate::live::Credentials;
use crate::log::Event;

/// The deadlines that were logged, and when.
#[derive(Debug, Default)]
pub(super) struct Expiries {
    logged: HashMap<Deadline, i64>,
}

/// The expiry of a certificate or CRL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Deadline {
    /// `identity`, `trust`, `pinned`, or `crl`.
    kind: &'static str,
    /// The name of the identity or trust.
    name: String,
    /// The subject of the certificate, or the issuer of the CRL.
    subject: String,
    /// When it expires, in Unix time.
    at: i64,
}

impl Expiries {
    /// The events to log at the time `now` (in Unix time).
    pub(super) fn due(&mut self, credentials: &Credentials, now: i64) -> Vec<Event> {
        let soon = soon(credentials, now);
        self.logged.retain(|deadline, _| soon.contains(deadline));
        let mut events = Vec::new();
        for deadline in soon {
            let logged = self.logged.get(&deadline).copied();
            if logged.is_none_or(|logged| now >= logged.saturating_add(DAY_SECONDS)) {
                events.push(deadline.event(now));
                self.logged.insert(deadline, now);
            }
        }
        events
    }
}

impl Deadline {
    fn event(&self, now: i64) -> Event {
        let next = match self.kind {
            "identity" => "renew the certificate and replace its file",
            "pinned" => "get the peer's new certificate, and add it to the pinned certificates",
            "trust" => {
                "add the CA's new certificate to this [trust] table; if the CA's key has changed, \
                 have the CA reissue the certificates of the peers"
            }
            _ => "get the current CRL from the CA, and replace the file",
        };
        let days = days_until(self.at, now);
        Event::new("expires")
            .field("kind", self.kind)
            .field("name", &self.name)
            .field("subject", &self.subject)
            .field("at", &utc(self.at))
            .value("days-left", days)
            .field("next", next)
    }
}

fn soon(credentials: &Credentials, now: i64) -> Vec<Deadline> {
    let deadline = |kind, name: &str, subject: &str, at| Deadline {
        kind,
        name: name.to_owned(),
        subject: subject.to_owned(),
        at,
    };
    let mut soon = Vec::new();
    for (name, identity) in &credentials.identities {
        let facts = &identity.facts;
        if ends_soon(facts, now) {
            soon.push(deadline("identity", name, facts.title(), facts.not_after));
        }
    }
    for (name, trust) in &credentials.trusts {
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
        ExpiredAnchors, FilePositions, Identity, Revocation, SourcePosition, Trust, TrustSource,
    };

    use super::*;
    use tacit_tls::credentials::{load_identity, load_trust};
    use tacit_tls::test_certificates::{Ca, Directory};

    #[test]
    fn what_expires_soon_is_logged_when_it_is_loaded_and_once_a_day() {
        let directory = Directory::new();
        let ca = Ca::new("corp CA");
        let end = 4_000_000_000;
        let leaf = ca.leaf_until(end);
        directory.write("ca.pem", ca.pem(), 0o644);
        directory.write("ca.crl", ca.crl(&[], end), 0o644);
        directory.write("web.pem", &leaf.cert_pem, 0o644);
        directory.write("web.key", &leaf.key_pem, 0o600);
        let position = SourcePosition::default();
        let identity = Identity {
            cert: "web.pem".into(),
            key: "web.key".into(),
            position,
            file_positions: FilePositions::default(),
        };
        let trust = Trust {
            source: TrustSource::Files(vec!["ca.pem".into()]),
            pinned: Vec::new(),
            crls: vec!["ca.crl".into()],
            revocation: Revocation::Hard,
            expired_anchors: ExpiredAnchors::Reject,
            position,
            file_positions: FilePositions::default(),
        };
        let mut credentials = Credentials::default();
        let loaded =
            load_identity("web", &identity, directory.path(), &KeyProvider::local()).unwrap();
        credentials.identities.insert("web".into(), Arc::new(loaded));
        let loaded = load_trust("corp", &trust, directory.path()).unwrap();
        credentials.trusts.insert("corp".into(), Arc::new(loaded));

        let mut expiries = Expiries::default();
        let mut reported = |now| {
            let events = expiries.due(&credentials, now);
            events.iter().map(|event| format!("{event:?}")).collect::<Vec<_>>()
        };
        assert_eq!(reported(2_000_000_000), [""; 0]);
        let first = reported(end - 10 * DAY_SECONDS);
        assert!(first[0].contains("identity") && first[0].contains("Number(10)"), "{first:?}");
        assert!(first[1].contains("crl") && first[1].contains("CN=corp CA"), "{first:?}");
        assert_eq!(reported(end - 10 * DAY_SECONDS + 3600), [""; 0]);
        assert_eq!(reported(end - 9 * DAY_SECONDS).len(), 2);
        let late = reported(end + 2 * DAY_SECONDS);
        assert!(late[0].contains("Number(-2)"), "{late:?}");
    }
}
